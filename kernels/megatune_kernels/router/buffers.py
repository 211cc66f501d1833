"""Operands of a router front on the current GPU, with float64 references. Imports torch.

Copies differ in their weights. Those of even numbers hold normals; those of odd numbers hold so few and small numbers
that every logit is exact, whatever the order of its sum, and many are equal: there the choice has one right answer,
with the lower id where scores are equal. Activations are normals or integers too, in turns.

What rounding may change is derived: a logit errs by a random walk over its k products in FP32 (as in a projection), a
sigmoid passes on at most a quarter of that and adds the errors of a base-2 exponential and of a reciprocal that are
approximations (PTX ISA 8.8: 2 and 1 units in the last place).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch

from megatune_kernels.cold import sets_of
from megatune_kernels.operator import Workload
from megatune_kernels.projection.buffers import FP32_UNIT
from megatune_kernels.projection.buffers import HALF_ULP
from megatune_kernels.projection.buffers import RANDOM_WALK
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.router.geometry import PARITIES
from megatune_kernels.router.geometry import weight_bytes

SETS = 2
"""Sets of activations: normals, then integers."""
EXACT_SCALE = 2.0**-6
SPREAD = 2.0
"""Standard deviation of the logits of normals: sigmoids from one hundredth to ninety-nine."""
APPROXIMATIONS = 8 * FP32_UNIT
"""Of a sigmoid between 0 and 1, and of its sum with a bias below 2."""
NO_ID = -1


class FrontBuffers:
    """x [tokens, k]; ``copies`` of w [experts + latent, k], bias [experts], and of the outputs latent [tokens, latent],
    ids and weights [tokens, top].

    Rows of the router and the bias are every rank's; those of the latent a rank's own.
    """

    def __init__(
        self,
        workload: Workload,
        copies: int,
        seed: int,
        *,
        rank: int = 0,
        heaps: Sequence[int] = (),
        device: str = "cuda",
    ) -> None:
        """:param heaps: by rank, the address in this process of the memory that holds its workspace; none alone."""
        self.copies = self.sets = copies
        self._workload, self._rank = workload, rank
        self._experts, self._latent, self._top = (workload[name] for name in ("experts", "latent", "top"))
        k, tokens = workload["k"], workload.tokens
        shared = torch.Generator(device=device).manual_seed(seed)
        own = torch.Generator(device=device).manual_seed(seed + 1 + rank)
        self._w = torch.empty(copies, self._experts + self._latent, k, dtype=torch.bfloat16, device=device)
        self._bias = torch.empty(copies, self._experts, dtype=torch.float32, device=device)
        for copy in range(copies):
            self._draw_weights(copy, shared, own)
        self._choices = torch.empty(SETS, tokens, k, dtype=torch.bfloat16, device=device)
        self._choices[0].normal_(generator=shared)
        self._choices[1] = torch.randint(-1, 2, (tokens, k), generator=shared, device=device).to(torch.bfloat16)
        self._x = self._choices[0].clone()
        self._active = 0
        self._references: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        """By set of activations and copy."""
        self._outputs = torch.empty(copies, tokens, self._latent, dtype=torch.bfloat16, device=device)
        self._ids = torch.empty(copies, tokens, self._top, dtype=torch.int32, device=device)
        self._weights = torch.empty(copies, tokens, self._top, dtype=torch.float32, device=device)
        self._library_ids = torch.empty(copies, tokens, self._top, dtype=torch.int64, device=device)
        self._heaps = tuple(heaps[(rank + i) % workload.world] for i in range(workload.world)) if heaps else ()
        padded = next(size for size in PADDED_TOKENS if size >= tokens)
        self._mailboxes = torch.empty(0 if heaps else copies, padded, self._experts, dtype=torch.int32, device=device)
        self.poison()

    @classmethod
    def of_rank(cls, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> Self:
        """A rank's; copies are a multiple of the parities, and so many that their weights leave the L2."""
        pairs = math.ceil(sets_of(weight_bytes(workload), "cuda") / PARITIES)
        return cls(workload, PARITIES * pairs, seed, rank=rank, heaps=heaps)

    def _draw_weights(self, copy: int, shared: torch.Generator, own: torch.Generator) -> None:
        for rows, random in ((slice(None, self._experts), shared), (slice(self._experts, None), own)):
            w = self._w[copy, rows]
            if copy % 2:
                drawn = torch.randint(-1, 2, w.shape, generator=random, device=w.device)
                w.copy_(drawn * EXACT_SCALE)
            else:
                w.normal_(generator=random, std=SPREAD / math.sqrt(w.shape[1]))
        bias = self._bias[copy]
        if copy % 2:
            # Whole steps of what no two sigmoids of the same sign differ by.
            bias.copy_(torch.randint(0, 2, bias.shape, generator=shared, device=bias.device))
        else:
            bias.normal_(generator=shared, std=0.1)

    def pointers(self, copy: int) -> tuple[int, ...]:
        """x, w, bias, latent, ids, weights, then this rank's mailboxes and the peers' in the order of ranks."""
        heaps = self._heaps or (self._mailboxes[copy].data_ptr(),)
        operands = (self._x, *(each[copy] for each in (self._w, self._bias, self._outputs, self._ids, self._weights)))
        return *(operand.data_ptr() for operand in operands), *heaps

    def scalars(self, copy: int) -> tuple[int, ...]:
        return self._rank, copy

    def refresh(self) -> None:
        self._active = (self._active + 1) % SETS
        self._x.copy_(self._choices[self._active])

    def poison(self) -> None:
        self._outputs.fill_(math.nan)
        self._ids.fill_(NO_ID)
        self._library_ids.fill_(NO_ID)
        self._weights.fill_(math.nan)
        # A kernel that failed may have left something in them.
        self._mailboxes.fill_(ARMED[SENTINEL] - (1 << 32))

    def check(self) -> str:
        by_library = bool((self._ids == NO_ID).all()) and not bool((self._library_ids == NO_ID).any())
        for copy in range(self.copies):
            ids = self._library_ids[copy] if by_library else self._ids[copy].long()
            wrong = self._wrong(copy, ids, ties=not by_library)
            if wrong:
                return f"copy {copy}: {wrong}"
        return ""

    def fingerprint(self) -> int:
        """Of the ids and weights: the latent is each rank's own."""
        words = torch.cat([self._ids.flatten(), self._weights.flatten().view(torch.int32)]).long()
        places = torch.arange(words.numel(), device=words.device)
        return int(((words + 0x8001) * (2 * places + 1)).sum().item())

    def _wrong(self, copy: int, ids: torch.Tensor, *, ties: bool) -> str:
        """What is wrong with a copy's outputs; empty for nothing.

        :param ids: [tokens, top].
        :param ties: whether equal scores have to come in the order of ids.
        """
        exact, error = self._expected(copy)
        logits, latent = exact[:, : self._experts], exact[:, self._experts :]
        slack = HALF_ULP * latent.abs() + error[:, self._experts :]
        # NaN fails the comparison, so what was never written is found.
        bad = ~((self._outputs[copy].double() - latent).abs() <= slack)
        if bool(bad.any()):
            token, row = (int(i) for i in bad.nonzero()[0])
            found = self._outputs[copy, token, row].item()
            return f"latent of token {token}, row {row}: got {found:g}, expected {latent[token, row].item():g}"
        scores = torch.sigmoid(logits)
        keys = scores + self._bias[copy].double()
        slack = 0.25 * error[:, : self._experts] + APPROXIMATIONS
        return _unlike(ids, keys, slack, ties=ties) or self._unweighed(copy, ids, scores, slack)

    def _expected(self, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and latent [tokens, experts + latent] of the active activations, and what FP32 may err by.

        Kept: every config of the workload is compared with them, and operands stay.
        """
        key = (self._active, copy)
        if key not in self._references:
            x, w = self._x.double(), self._w[copy].double()
            exact, magnitudes = x @ w.T, x.abs() @ w.abs().T
            error = RANDOM_WALK * math.sqrt(x.shape[1]) * FP32_UNIT * magnitudes
            if copy % 2 and self._active:
                error.zero_()
            self._references[key] = exact, error
        return self._references[key]

    def _unweighed(self, copy: int, ids: torch.Tensor, scores: torch.Tensor, slack: torch.Tensor) -> str:
        """Weights against those of the experts that were chosen: shares of their sum, of which each errs a little."""
        chosen, slack = scores.gather(1, ids), slack.gather(1, ids)
        total = chosen.sum(1, keepdim=True)
        expected = chosen / total
        allowed = slack / total + expected * (slack.sum(1, keepdim=True) / total + 4 * FP32_UNIT)
        bad = ~((self._weights[copy].double() - expected).abs() <= allowed)
        if not bool(bad.any()):
            return ""
        token, place = (int(i) for i in bad.nonzero()[0])
        found = self._weights[copy, token, place].item()
        return f"weight {place} of token {token}: got {found:g}, expected {expected[token, place].item():g}"

    def torch_front(self, copy: int) -> None:
        """Enqueue what torch has for it on the current stream: a GEMM that keeps FP32, sigmoid, top-k, the shares."""
        products = torch.mm(self._x, self._w[copy].T, out_dtype=torch.float32)
        scores = products[:, : self._experts].sigmoid()
        _, ids = torch.topk(scores + self._bias[copy], self._top, dim=1)
        weights = scores.gather(1, ids)
        torch.div(weights, weights.sum(1, keepdim=True), out=self._weights[copy])
        self._library_ids[copy].copy_(ids)
        self._outputs[copy].copy_(products[:, self._experts :])


def _unlike(ids: torch.Tensor, keys: torch.Tensor, slack: torch.Tensor, *, ties: bool) -> str:
    """Whether ids [tokens, top] are those of the largest keys [tokens, experts], in their order, but for ``slack``.

    :param ties: whether exactly equal keys have to come in the order of ids.
    """
    experts = keys.shape[1]
    if bool(((ids < 0) | (ids >= experts)).any()):
        token, place = (int(i) for i in ((ids < 0) | (ids >= experts)).nonzero()[0])
        return f"id {place} of token {token} is {int(ids[token, place])}: there are {experts} experts"
    chosen, spread = keys.gather(1, ids), slack.gather(1, ids)
    lower, upper = chosen[:, 1:] - spread[:, 1:], chosen[:, :-1] + spread[:, :-1]
    disordered = lower > upper
    least, at = chosen.min(1, keepdim=True)
    reach = least + spread.gather(1, at)
    left = torch.ones_like(keys, dtype=torch.bool).scatter_(1, ids, False)
    missed = left & (keys - slack > reach)
    if ties:
        disordered |= (chosen[:, 1:] == chosen[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
        # Of those that are as good as the last of the chosen, the chosen have the lower ids.
        highest = torch.where(chosen == least, ids, NO_ID).max(1, keepdim=True).values
        missed |= left & (keys == least) & (torch.arange(experts, device=keys.device) < highest)
    twice = (ids.sort(1).values.diff(dim=1) == 0).any(1)
    for what, where in (("an expert twice", twice), ("experts out of order", disordered), ("not the best", missed)):
        if bool(where.any()):
            token = int(where.nonzero()[0][0])
            return f"token {token} has {what}: {ids[token].tolist()}"
    return ""
