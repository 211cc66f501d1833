"""Experts' weights on a GPU in every format: drawn at random, and as float64. Imports torch.

MXFP4 has an E8M0 for each 32 elements along K (OCP Microscaling Formats 1.0). Compressed checkpoints store two E2M1 a
byte, the even element in the lower half. The kernels take what is made of that once, when a model is loaded:
``interleaved`` bits of each 4 bytes, and rows ``packed`` in tiles, scales too. Bits are drawn, not numbers: every
magnitude is as likely as any other, and scales take three neighbouring values, so that sums of products with small
integers are exact in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch.nn import functional

from megatune_kernels.experts.geometry import BF16
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import PAIR_BITS
from megatune_kernels.experts.geometry import ROW_BYTES
from megatune_kernels.experts.geometry import SCALE_BLOCK
from megatune_kernels.experts.geometry import SCALE_GROUP
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import TILE_ROWS

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127
EXPERTS_AT_ONCE = 64
"""Whose weights are packed together."""
SCALES = (119, 122)
"""E8M0 drawn, from 2^-8 up to 2^-6: products with a few thousand normals stay small."""
E4M3_ROOT_MEAN_SQUARE = 100.06
"""Of all codes but that of NaN."""
STANDARD_DEVIATION = 2.0**-5
"""Of weights in BF16, about that of the others."""


@dataclass(frozen=True)
class Weights:
    """[copies, experts, rows, k] of one of the two matrices as checkpoints have it, and scales: [copies, experts, rows,
    k / 32] in bytes, [copies, experts, rows / 128, k / 128] in FP32, or nothing. Kernels read both packed."""

    values: torch.Tensor
    scales: torch.Tensor
    packed: torch.Tensor
    packed_scales: torch.Tensor

    @staticmethod
    def of(dtype: str, values: torch.Tensor, scales: torch.Tensor, *, gated: bool) -> Weights:
        """
        :param gated: whether the first half of the rows are gates, as in w13.
        """
        own_scales = packed_scales(scales, gated=gated) if dtype == MXFP4 else scales
        own = torch.empty(*values.shape[:2], values[0, 0].nbytes, dtype=torch.uint8, device=values.device)
        for copy, expert in product(range(values.shape[0]), range(0, values.shape[1], EXPERTS_AT_ONCE)):
            some = values[copy, expert : expert + EXPERTS_AT_ONCE].view(torch.uint8)
            some = interleaved(some) if dtype == MXFP4 else some
            own[copy, expert : expert + EXPERTS_AT_ONCE] = packed(some, dtype, gated=gated)
        return Weights(values, scales, own, own_scales)

    @staticmethod
    def drawn(
        dtype: str, copies: int, experts: int, rows: int, k: int, random: torch.Generator, device: str, *, gated: bool
    ) -> Weights:
        if dtype == BF16:
            values = torch.empty(copies, experts, rows, k, dtype=torch.bfloat16, device=device)
            for copy in range(copies):
                values[copy].normal_(generator=random, std=STANDARD_DEVIATION)
            return Weights.of(dtype, values, torch.empty(0, dtype=torch.uint8, device=device), gated=gated)
        if dtype == FP8:
            values = torch.empty(copies, experts, rows, k, dtype=torch.uint8, device=device)
            for copy in range(copies):
                values[copy].random_(0, 256, generator=random)
            # The code of NaN, of either sign.
            values.masked_fill_((values & 0x7F) == 0x7F, 0)
            shape = (copies, experts, rows // SCALE_BLOCK, k // SCALE_BLOCK)
            scales = torch.empty(shape, dtype=torch.float32, device=device)
            scales.uniform_(0.5, 1.5, generator=random).mul_(STANDARD_DEVIATION / E4M3_ROOT_MEAN_SQUARE)
            return Weights.of(dtype, values, scales, gated=gated)
        values = torch.empty(copies, experts, rows, k // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(copies, experts, rows, k // SCALE_GROUP, dtype=torch.uint8, device=device)
        for copy in range(copies):
            values[copy].random_(0, 256, generator=random)
            scales[copy].random_(*SCALES, generator=random)
        return Weights.of(dtype, values, scales, gated=gated)

    def pointers(self, copy: int) -> tuple[int, int]:
        return self.packed[copy].data_ptr(), self.packed_scales[copy].data_ptr() if self.scales.numel() else 0

    def as_numbers(self, copy: int, experts: torch.Tensor | int, dtype: torch.dtype) -> torch.Tensor:
        """The weights […, rows, k] of some experts, exactly."""
        values = self.values[copy][experts]
        if not self.scales.numel():
            return values.to(dtype)
        if self.scales.dtype == torch.float32:
            scales = self.scales[copy][experts].to(dtype)
            spread = scales.repeat_interleave(SCALE_BLOCK, dim=-1).repeat_interleave(SCALE_BLOCK, dim=-2)
            return values.view(torch.float8_e4m3fn).to(dtype) * spread
        numbers = functional.embedding(values.to(torch.int32), _pairs(dtype, values.device)).flatten(-2)
        factors = torch.exp2(self.scales[copy][experts].to(dtype) - E8M0_BIAS)
        return (numbers.unflatten(-1, (-1, SCALE_GROUP)) * factors[..., None]).flatten(-2)


def packed(values: torch.Tensor, dtype: str, *, gated: bool) -> torch.Tensor:
    """Weights in the order in which kernels read them (``geometry``).

    :param values: [..., rows, bytes of a row]; MXFP4 interleaved.
    :param gated: whether the first half of the rows are gates, as in w13.
    :returns: [..., bytes of all rows].
    """
    lane_bytes = ROW_BYTES[dtype] // 4
    piece = min(lane_bytes, COPY_BYTES)
    rows = _in_tiles(values, ROW_BYTES[dtype], gated=gated).unflatten(-1, (4, lane_bytes // piece, piece))
    # Tiles of rows, half, row, tiles of K, lane of a quad, piece, byte.
    order = (0, 3, 2, 4, 1, 5, 6) if dtype == MXFP4 else (0, 3, 1, 5, 2, 4, 6)
    return _reordered(rows, order)


def packed_scales(scales: torch.Tensor, *, gated: bool) -> torch.Tensor:
    """Scales of MXFP4 in the order in which kernels read them.

    :param scales: [..., rows, k / 32] in bytes.
    :returns: [..., bytes of all rows].
    """
    return _reordered(_in_tiles(scales, TILE_K // SCALE_GROUP, gated=gated), (0, 3, 2, 4, 1))


def _in_tiles(rows: torch.Tensor, tile_bytes: int, *, gated: bool) -> torch.Tensor:
    """[..., tiles of rows, half, 8, tiles of K, bytes], the two halves of a tile being 8 rows each."""
    tiles = rows.shape[-2] // TILE_ROWS
    split = rows.unflatten(-1, (-1, tile_bytes))
    if gated:
        return split.unflatten(-3, (2, tiles, 8)).transpose(-5, -4)
    return split.unflatten(-3, (tiles, 2, 8))


def _reordered(tiles: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Everything from the tiles of rows on in another order, one behind the other."""
    leading = tiles.dim() - len(order)
    return tiles.permute(*range(leading), *(leading + dim for dim in order)).flatten(leading)


def interleaved(values: torch.Tensor) -> torch.Tensor:
    """MXFP4 with its bits where the kernels have them.

    :param values: [..., k / 2] in bytes, as checkpoints have it, k a multiple of 8.
    """
    tables = _places(values.device)
    words = values.unflatten(-1, (-1, 4)).to(torch.int32)
    found = [tables[number][words[..., number]] for number in range(4)]
    return (found[0] | found[1] | found[2] | found[3]).view(torch.uint8)


@cache
def _places(device: torch.device) -> torch.Tensor:
    """What each byte of a word of checkpoints becomes [4, 256]: the byte has two neighbouring elements."""
    found = torch.zeros(4, 256, dtype=torch.int64)
    every = torch.arange(256)
    for number in range(4):
        for half in range(2):
            for bit, place in enumerate(PAIR_BITS[number]):
                found[number] |= ((every >> (4 * half + bit)) & 1) << (place + 16 * half)
    return found.to(torch.int32).to(device)


@cache
def _pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The two numbers of a byte [256, 2]. Made once: nothing may be copied to a GPU while a graph is captured."""
    numbers = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=dtype)
    every = torch.arange(256)
    return torch.stack([numbers[every & 15], numbers[every >> 4]], dim=-1).to(device)
