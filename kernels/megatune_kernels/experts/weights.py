"""Experts' weights on a GPU in every format: drawn at random, and as float64. Imports torch.

MXFP4 has an E8M0 for each 32 elements along K (OCP Microscaling Formats 1.0). Compressed checkpoints store two E2M1 a
byte, the even element in the lower half; the kernels take what ``interleaved`` makes of that, once, when a model is
loaded: the same bytes, the bits of each 4 of them in another order. Bits are drawn, not numbers: every magnitude is as
likely as any other, and scales take three neighbouring values, so that sums of products with small integers are exact
in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from megatune_kernels.experts.geometry import BF16
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import PAIR_BITS
from megatune_kernels.experts.geometry import SCALE_BLOCK
from megatune_kernels.experts.geometry import SCALE_GROUP

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127
SCALES = (119, 122)
"""E8M0 drawn, from 2^-8 up to 2^-6: products with a few thousand normals stay small."""
E4M3_ROOT_MEAN_SQUARE = 100.06
"""Of all codes but that of NaN."""
STANDARD_DEVIATION = 2.0**-5
"""Of weights in BF16, about that of the others."""


@dataclass(frozen=True)
class Weights:
    """[copies, experts, rows, k] of one of the two matrices, and scales: [copies, experts, rows, k / 32] in bytes,
    [copies, experts, rows / 128, k / 128] in FP32, or nothing."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def drawn(
        dtype: str, copies: int, experts: int, rows: int, k: int, random: torch.Generator, device: str
    ) -> Weights:
        if dtype == BF16:
            values = torch.empty(copies, experts, rows, k, dtype=torch.bfloat16, device=device)
            for copy in range(copies):
                values[copy].normal_(generator=random, std=STANDARD_DEVIATION)
            return Weights(values, torch.empty(0, dtype=torch.uint8, device=device))
        if dtype == FP8:
            values = torch.empty(copies, experts, rows, k, dtype=torch.uint8, device=device)
            for copy in range(copies):
                values[copy].random_(0, 256, generator=random)
            # The code of NaN, of either sign.
            values.masked_fill_((values & 0x7F) == 0x7F, 0)
            shape = (copies, experts, rows // SCALE_BLOCK, k // SCALE_BLOCK)
            scales = torch.empty(shape, dtype=torch.float32, device=device)
            scales.uniform_(0.5, 1.5, generator=random).mul_(STANDARD_DEVIATION / E4M3_ROOT_MEAN_SQUARE)
            return Weights(values, scales)
        values = torch.empty(copies, experts, rows, k // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(copies, experts, rows, k // SCALE_GROUP, dtype=torch.uint8, device=device)
        for copy in range(copies):
            values[copy].random_(0, 256, generator=random)
            scales[copy].random_(*SCALES, generator=random)
        return Weights(values, scales)

    def pointers(self, copy: int) -> tuple[int, int]:
        return self.values[copy].data_ptr(), self.scales[copy].data_ptr() if self.scales.numel() else 0

    def as_numbers(self, copy: int, experts: torch.Tensor | int, dtype: torch.dtype) -> torch.Tensor:
        """The weights […, rows, k] of some experts, exactly."""
        values = self.values[copy][experts]
        if not self.scales.numel():
            return values.to(dtype)
        if self.scales.dtype == torch.float32:
            scales = self.scales[copy][experts].to(dtype)
            spread = scales.repeat_interleave(SCALE_BLOCK, dim=-1).repeat_interleave(SCALE_BLOCK, dim=-2)
            return values.view(torch.float8_e4m3fn).to(dtype) * spread
        table = _table(dtype, values.device)
        codes = codes_of(values)
        exponents = self.scales[copy][experts].to(torch.int32) - E8M0_BIAS
        factors = torch.exp2(exponents.to(dtype)).repeat_interleave(SCALE_GROUP, dim=-1)
        return table[codes] * factors


def interleaved(values: torch.Tensor) -> torch.Tensor:
    """MXFP4 as the kernels take it.

    :param values: [..., k / 2] in bytes, as checkpoints have it, k a multiple of 8.
    """
    codes = torch.stack([values & 15, values >> 4], dim=-1).flatten(-2).unflatten(-1, (-1, 8)).to(torch.int32)
    words = torch.zeros(codes.shape[:-1], dtype=torch.int32, device=values.device)
    for element in range(8):
        for bit, place in enumerate(PAIR_BITS[element // 2]):
            words |= ((codes[..., element] >> bit) & 1) << (place + element % 2 * 16)
    return words.view(torch.uint8)


def codes_of(values: torch.Tensor) -> torch.Tensor:
    """E2M1 [..., k] of interleaved bytes [..., k / 2]."""
    words = values.contiguous().view(torch.int32)
    found = []
    for element in range(8):
        code = torch.zeros_like(words)
        for bit, place in enumerate(PAIR_BITS[element // 2]):
            code |= ((words >> (place + element % 2 * 16)) & 1) << bit
        found.append(code)
    return torch.stack(found, dim=-1).flatten(-2)


@cache
def _table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers by code. Made once: nothing may be copied to a GPU while a graph is captured."""
    return torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=dtype, device=device)
