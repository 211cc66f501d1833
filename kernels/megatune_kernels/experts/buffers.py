"""Operands of experts on the current GPU, with float64 references. Imports torch.

Copies are routings, drawn one after the other over experts in turns, so that the weights of a copy are not those of its
neighbours: what they read together is more than the L2 holds. There are as many sets of weights as that takes, mostly
one. Activations take turns with the routing's rows: normals, then 2^20 times -1, 0 or 1 (one of them, for SiLU), with
which every gate is so large, or zero, that an activation is a known number; in MXFP4 with SiTU all sums are then exact
in FP32, whatever their order, and every bit of the result is known.

Else what rounding may change is derived. Sums of n products in FP32 err by a random walk, as in a projection. An
activation passes the error of its gate on by at most 1.1 times up, and that of up by at most the gate. It is rounded to
BF16 before w2, by up to half a unit in the last place of each of its elements, independently: their sum errs by a few
times the root of the sum of squares, at most by the sum of magnitudes. The result is rounded to BF16 once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from megatune_kernels.buffers import Windows
from megatune_kernels.experts.geometry import BOTH
from megatune_kernels.experts.geometry import DOWN
from megatune_kernels.experts.geometry import FAULT_WORDS
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import expert_bytes
from megatune_kernels.experts.routing import apart
from megatune_kernels.experts.routing import draw
from megatune_kernels.experts.weights import Weights
from megatune_kernels.operator import Workload
from megatune_kernels.projection.buffers import FP32_UNIT
from megatune_kernels.projection.buffers import HALF_ULP
from megatune_kernels.projection.buffers import RANDOM_WALK

SETS = 2
LARGE = 2.0**20
STEEPEST = 1.1
"""The most that the activation of a gate grows by, of either kind."""
APPROXIMATIONS = 2.0**-18
"""Of an activation: exponentials and reciprocals that are off by one or two units in the last place (PTX ISA 8.8)."""
FLUSHED_BYTES = 2 * (126 << 20)
"""Twice the largest L2 there is (``GB300``)."""
ROUTES_AT_ONCE = 32
"""Whose weights the torch path takes apart together."""


class Operands(NamedTuple):
    """x [tokens, k], w13 [experts, 2 width, k] and w2 [experts, k, width] as the dtype stores them, shares and ids
    [tokens, top], and y [tokens, k], which is the result's."""

    x: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    shares: torch.Tensor
    ids: torch.Tensor
    y: torch.Tensor


class ExpertBuffers:
    """x [tokens, k] in BF16, w13 and w2, and of each copy ids [tokens, top], shares [tokens, top] and y [tokens, k]."""

    def __init__(self, workload: Workload, copies: int, seed: int, device: str = "cuda") -> None:
        self.copies = copies
        self._workload = workload
        dims = dict(workload.dims)
        experts, k, top, width = (dims[name] for name in ("experts", "k", "top", "width"))
        self._beta, self._linear_beta = dims.get("beta", 0), dims.get("linear_beta", 0)
        tokens = workload.tokens
        random = torch.Generator(device=device).manual_seed(seed)
        drawn, self._sets_of_weights, self._distinct = self._routings()
        order = np.random.default_rng(experts).permutation(experts)
        others = [
            apart(drawn[0], experts, turn * self._distinct[0], order)[0] for turn in range(experts // self._distinct[0])
        ]
        self._window_ids = torch.from_numpy(np.stack(others)).to(device)
        sets = 1 + max(self._sets_of_weights)
        self._w13 = Weights.drawn(workload.dtype, sets, experts, 2 * width, k, random, device, gated=True)
        self._w2 = Weights.drawn(workload.dtype, sets, experts, k, width, random, device, gated=False)
        ids = torch.from_numpy(drawn).to(device)
        self._ids_choices = torch.stack([ids, ids.roll(1, dims=1)])
        shares = torch.rand(copies, tokens, top, generator=random, device=device) + 0.1
        exact = torch.exp2(-2.0 - torch.arange(tokens, device=device) % 4)
        exact = exact[None, :, None].expand(copies, tokens, top)
        self._shares_choices = torch.stack([shares / shares.sum(2, keepdim=True), exact])
        self._choices = torch.empty(SETS, tokens, k, dtype=torch.bfloat16, device=device)
        self._choices[0].normal_(generator=random)
        if self._beta:
            whole = torch.randint(-1, 2, (tokens, k), generator=random, device=device)
        else:
            whole = torch.zeros(tokens, k, dtype=torch.int64, device=device)
            whole.scatter_(1, torch.randint(0, k, (tokens, 1), generator=random, device=device), 1)
        self._choices[1] = (whole * LARGE).to(torch.bfloat16)
        self._x = self._choices[0].clone()
        self._ids = self._ids_choices[0].clone()
        self._shares = self._shares_choices[0].clone()
        self._y = torch.empty(copies, tokens, k, dtype=torch.bfloat16, device=device)
        self._hidden = torch.empty(tokens * top, width, dtype=torch.bfloat16, device=device)
        self._faults = torch.zeros(FAULT_WORDS, dtype=torch.int32, device=device)
        self._active = 0
        self._bounds: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.poison()

    def _routings(self) -> tuple[np.ndarray, list[int], list[int]]:
        """Ids [copies, tokens, top], and of each copy the set of weights it reads and its distinct experts."""
        workload, found = self._workload, []
        experts, top = workload["experts"], workload["top"]
        order = np.random.default_rng(experts).permutation(experts)
        sets, distinct, used = [], [], 0
        for number in range(self.copies):
            ids = draw(workload.routing, experts, top, workload.tokens, number)
            count = len(np.unique(ids))
            if used % experts + count > experts:
                used += -used % experts
            sets.append(used // experts)
            distinct.append(count)
            ids, used = apart(ids, experts, used, order)
            found.append(ids)
        # Of workloads that read most of the experts at once, the same are cold again when their turn comes.
        most = -(-FLUSHED_BYTES // (experts * expert_bytes(workload)))
        return np.stack(found), [number % most for number in sets], distinct

    def pointers(self, copy: int) -> tuple[int, ...]:
        return self.part_pointers(BOTH, copy)

    def part_pointers(self, part: str, copy: int) -> tuple[int, ...]:
        return self._addresses(part, self._ids[copy], self._shares[copy], self._y[copy], self._sets_of_weights[copy])

    def _addresses(
        self, part: str, ids: torch.Tensor, shares: torch.Tensor, y: torch.Tensor, of: int
    ) -> tuple[int, ...]:
        """x, weights, scales, ids, shares, what the part makes, and the word of faults. All but ``down`` have both
        weights with their scales, and both parts in one launch make both results."""
        routing = (ids.data_ptr(), shares.data_ptr())
        faults, hidden = self._faults.data_ptr(), self._hidden.data_ptr()
        weights = (*self._w13.pointers(of), *self._w2.pointers(of))
        if part == BOTH:
            return self._x.data_ptr(), *weights, *routing, hidden, y.data_ptr(), faults
        if part == UP:
            return self._x.data_ptr(), *weights, *routing, hidden, faults
        return hidden, *self._w2.pointers(of), *routing, y.data_ptr(), faults

    def windows(self, part: str, most_bytes: int | None = None) -> Windows | None:
        """The first routing with other experts each time, until all have had their turn; there are no smaller pieces.
        None where all of them together stay in an L2."""
        size = self._distinct[0] * expert_bytes(self._workload) * {BOTH: 3, UP: 2, DOWN: 1}[part] // 3
        turns = self._window_ids.shape[0]
        sets = self._w13.values.shape[0]
        if (most_bytes is not None and size > most_bytes) or turns * sets * size < FLUSHED_BYTES:
            return None
        places = [
            self._addresses(part, self._window_ids[turn], self._shares[0], self._y[0], of)
            for of in range(sets)
            for turn in range(turns)
        ]
        return Windows(self._workload, size, tuple(places))

    def refresh(self) -> None:
        self._active = (self._active + 1) % SETS
        self._x.copy_(self._choices[self._active])
        self._ids.copy_(self._ids_choices[self._active])
        self._shares.copy_(self._shares_choices[self._active])

    def poison(self) -> None:
        self._y.fill_(math.nan)
        self._hidden.fill_(math.nan)
        self._faults.zero_()

    def check(self) -> str:
        if int(self._faults[0].item()):
            return self._fault()
        low, high = self._bounds_of(self._active)
        y = self._y.float()
        # NaN fails both comparisons, so an output that was never written is found.
        good = (y >= low) & (y <= high)
        wrong = int(good.numel() - good.sum().item())
        if not wrong:
            return ""
        copy, token, row = (int(i) for i in (~good).nonzero()[0])
        return (
            f"{wrong} of {good.numel()} outputs are outside the rounding bound of activations {self._active}; first: "
            f"copy {copy}, token {token}, row {row}: got {y[copy, token, row].item():g}, expected "
            f"{low[copy, token, row].item():g} to {high[copy, token, row].item():g}"
        )

    def _fault(self) -> str:
        """Which route the kernel could not take."""
        experts = self._workload["experts"]
        outside = (self._ids < 0) | (self._ids >= experts)
        if bool(outside.any()):
            copy, token, slot = (int(i) for i in outside.nonzero()[0])
            found = int(self._ids[copy, token, slot])
            return f"copy {copy}: id {slot} of token {token} is {found}: there are {experts} experts"
        return "a token goes to an expert twice"

    def _bounds_of(self, active: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Least and largest outputs [copies, tokens, k] with one set of activations."""
        if active not in self._bounds:
            bounds = [self._bounds_of_copy(active, copy) for copy in range(self.copies)]
            self._bounds[active] = (torch.stack([low for low, _ in bounds]), torch.stack([high for _, high in bounds]))
        return self._bounds[active]

    def _bounds_of_copy(self, active: int, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._choices[active].double()
        ids, shares = self._ids_choices[active][copy], self._shares_choices[active][copy].double()
        tokens, k = x.shape
        zero = torch.zeros(tokens, k, dtype=torch.float64, device=x.device)
        exact, certain, squares, magnitudes = zero, zero.clone(), zero.clone(), zero.clone()
        exact = exact.clone()
        known = active == 1
        walk = 0.0 if known else RANDOM_WALK * math.sqrt(k) * FP32_UNIT
        for expert in torch.unique(ids).tolist():
            token, slot = (ids == expert).nonzero(as_tuple=True)
            share = shares[token, slot][:, None]
            w13 = self._w13.as_numbers(self._sets_of_weights[copy], expert, torch.float64)
            sums, sizes = x[token] @ w13.T, x[token].abs() @ w13.abs().T
            gate, up = sums.chunk(2, dim=1)
            gate_error, up_error = (walk * sizes).chunk(2, dim=1)
            gate, up = self._activated_parts(gate, up)
            hidden = gate * up
            error = STEEPEST * up.abs() * gate_error + gate.abs() * up_error
            w2 = self._w2.as_numbers(self._sets_of_weights[copy], expert, torch.float64)
            exact.index_add_(0, token, share * (hidden @ w2.T))
            if not (known and self._is_exact):
                error += APPROXIMATIONS * hidden.abs()
                error += RANDOM_WALK * math.sqrt(w2.shape[1]) * FP32_UNIT * hidden.abs()
                certain.index_add_(0, token, share * (error @ w2.abs().T))
                rounded = HALF_ULP * (hidden.abs() + error)
                squares.index_add_(0, token, share**2 * (rounded**2 @ (w2**2).T))
                magnitudes.index_add_(0, token, share * (rounded @ w2.abs().T))
        if known and self._is_exact:
            value = exact.float().bfloat16().float()
            return value, value
        error = certain + torch.minimum(RANDOM_WALK * squares.sqrt(), magnitudes)
        error += HALF_ULP * (exact.abs() + error)
        return (exact - error).float(), (exact + error).float()

    @property
    def _is_exact(self) -> bool:
        """Whether the second set of activations leaves nothing to rounding but the result."""
        return self._workload.dtype == MXFP4 and self._beta > 0 and self._linear_beta > 0

    def _activated_parts(self, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What an activation is the product of."""
        beta, linear_beta = self._beta, self._linear_beta
        linear = gate * torch.sigmoid(gate) if not beta else beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
        return linear, linear_beta * torch.tanh(up / linear_beta) if linear_beta else up

    def operands(self, copy: int) -> Operands:
        """What another implementation takes for a copy."""
        of = self._sets_of_weights[copy]
        w13, w2 = self._w13.values[of], self._w2.values[of]
        return Operands(self._x, w13, w2, self._shares[copy], self._ids[copy], self._y[copy])

    def torch_experts(self, copy: int) -> None:
        """Enqueue what torch has for it on the current stream: some routes at a time, their weights taken apart to
        BF16, two batches of products that keep FP32, and a weighted sum."""
        tokens, top = self._workload.tokens, self._workload["top"]
        of = self._sets_of_weights[copy]
        experts = self._ids[copy].flatten()
        rows = self._x.repeat_interleave(top, dim=0)[:, None]
        found = []
        for first in range(0, tokens * top, ROUTES_AT_ONCE):
            some = slice(first, min(tokens * top, first + ROUTES_AT_ONCE))
            w13 = self._w13.as_numbers(of, experts[some], torch.bfloat16)
            sums = torch.bmm(rows[some], w13.mT, out_dtype=torch.float32)
            gate, up = self._activated_parts(*sums.chunk(2, dim=2))
            hidden = (gate * up).bfloat16()
            w2 = self._w2.as_numbers(of, experts[some], torch.bfloat16)
            found.append(torch.bmm(hidden, w2.mT, out_dtype=torch.float32)[:, 0])
        results = torch.cat(found).view(tokens, top, -1) * self._shares[copy][..., None]
        self._y[copy].copy_(results.sum(1))
