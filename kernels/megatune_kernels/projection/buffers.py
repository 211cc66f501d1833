"""Operands of a projection on the current GPU, with float64 references. Imports torch.

The bound that an output must keep to is derived, not chosen. The result is rounded once to BF16 (8 significant bits:
half a unit in the last place is at most 2^-8 of the value) after a sum of k products in FP32. Rounding errors of a sum
of k terms, seen as a random walk, stay within a few times sqrt(k) 2^-24 of the sum of magnitudes (Higham and Mary, A
new approach to probabilistic rounding error analysis, 2019); the factor 8 leaves the chance of a false alarm
negligible over millions of outputs, and a single lost or doubled product still shows.
"""

from __future__ import annotations

import math

import torch

from megatune_kernels.operator import Workload

HALF_ULP = 2.0**-8
FP32_UNIT = 2.0**-24
RANDOM_WALK = 8.0
REFERENCE_WEIGHTS = 1 << 27
"""Weights that are float64 at a time: 1 GiB, and as much for their magnitudes."""
SETS = 2
"""Sets of activations, each with its own references: an output that is left over from one fails with the other."""


class ProjectionBuffers:
    """x [tokens, k], and ``copies`` of w [n, k] and y [tokens, n] that differ in their values.

    Weights rotate and activations do not: in a decode step the weights come from memory, while the predecessor has just
    left the activations in the L2.
    """

    def __init__(self, workload: Workload, copies: int, seed: int, device: str = "cuda") -> None:
        n, k, tokens = workload["n"], workload["k"], workload.tokens
        self.copies = copies
        self._active = 0
        random = torch.Generator(device=device).manual_seed(seed)
        self._w = torch.empty(copies, n, k, dtype=torch.bfloat16, device=device)
        self._w.normal_(generator=random)
        self._x = torch.empty(tokens, k, dtype=torch.bfloat16, device=device)
        self._y = torch.empty(copies, tokens, n, dtype=torch.bfloat16, device=device)
        self._choices = torch.empty(SETS, tokens, k, dtype=torch.bfloat16, device=device)
        self._choices.normal_(generator=random)
        self._low = torch.empty(SETS, copies, tokens, n, dtype=torch.float32, device=device)
        self._high = torch.empty_like(self._low)
        chosen = self._choices.double()
        for copy in range(copies):
            # Some rows at a time: float64 weights take four times their room, and their magnitudes as much again.
            for first in range(0, n, max(1, REFERENCE_WEIGHTS // k)):
                rows = slice(first, min(n, first + max(1, REFERENCE_WEIGHTS // k)))
                w = self._w[copy, rows].double()
                exact = chosen @ w.T
                magnitudes = chosen.abs() @ w.abs().T
                bound = HALF_ULP * exact.abs() + RANDOM_WALK * math.sqrt(k) * FP32_UNIT * magnitudes
                self._low[:, copy, :, rows] = (exact - bound).float()
                self._high[:, copy, :, rows] = (exact + bound).float()
        self._x.copy_(self._choices[0])

    def pointers(self, copy: int) -> tuple[int, ...]:
        return self._x.data_ptr(), self._w[copy].data_ptr(), self._y[copy].data_ptr()

    def refresh(self) -> None:
        self._active = (self._active + 1) % SETS
        self._x.copy_(self._choices[self._active])

    def poison(self) -> None:
        self._y.fill_(math.nan)

    def check(self) -> str:
        # NaN fails both comparisons, so an output that was never written is found.
        y = self._y.float()
        good = (y >= self._low[self._active]) & (y <= self._high[self._active])
        wrong = int(good.numel() - good.sum().item())
        if not wrong:
            return ""
        copy, token, row = (int(i) for i in (~good).nonzero()[0])
        return (
            f"{wrong} of {good.numel()} outputs are outside the rounding bound; first: copy {copy}, token {token}, "
            f"row {row}: got {y[copy, token, row].item():g}, expected "
            f"{self._low[self._active, copy, token, row].item():g} to "
            f"{self._high[self._active, copy, token, row].item():g}"
        )

    def torch_mm(self, copy: int) -> None:
        """Enqueue cuBLAS through torch on the current stream."""
        torch.mm(self._x, self._w[copy].T, out=self._y[copy])
