"""What of a server's configuration follows from a plan, and from a service level where there is one.

A setting is written where the plan, the level or the memory model decides it, with its reason and its evidence. What
nobody measured is left to the runtime, and named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import model as find_model
from megatune_planner.exporters.vllm_allreduce import ALGORITHM_VARIABLE
from megatune_planner.exporters.vllm_allreduce import FUSION_LIMIT
from megatune_planner.exporters.vllm_allreduce import fusion_of
from megatune_planner.exporters.vllm_allreduce import setting_of
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.serving.memory import GIB
from megatune_planner.serving.memory import Layout
from megatune_planner.serving.memory import Memory
from megatune_planner.serving.traffic import Traffic

SPECIALIZED_ARCHITECTURES = ("sm_100a", "sm_103a")
SPECIALIZED_WORLDS = (8, 16)
SPECIALIZED_MODEL = "Kimi-K3"
"""What vLLM's latency-specialised decode serves."""

STOCK_STEP = 16
"""Distance of the capture sizes beyond what was measured."""

MOST_SEQUENCES = 1 << 16
"""No rank holds the state of so many, and each of their graphs is listed."""

MIN_BATCHED_TOKENS = 2048
"""A prefill chunk that is smaller wastes more steps than it spares."""

UNDECIDED = (
    "performance-mode, moe-backend, kernel-config, mla_core, kda_decode_backend, VLLM_FLASHINFER_ALLREDUCE_BACKEND, "
    "VLLM_ALLREDUCE_USE_SYMM_MEM and VLLM_TUNED_CONFIG_FOLDER: the plan has no measurement that decides them"
)


@dataclass(frozen=True)
class Setting:
    """One value of a configuration."""

    path: tuple[str, ...]
    """The flag without its dashes, then keys inside its value; one environment variable."""
    value: Any
    """What JSON can say."""
    reason: str
    evidence: str


@dataclass(frozen=True)
class Level:
    """What has to be served."""

    rate: float
    """Tokens a second of one user."""
    concurrency: int
    """Sequences at once."""
    context: int
    """Tokens of each of them, prompt and answer together."""
    head_room: float = 0.1
    """Share of the GPU's memory that stays free."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise MegatuneError(f"{self.rate} tokens a second: a service level needs a rate above 0")
        for name in ("concurrency", "context"):
            if getattr(self, name) < 1:
                raise MegatuneError(f"{name} is {getattr(self, name)}: a service level needs at least 1")
        if self.concurrency > MOST_SEQUENCES:
            raise MegatuneError(f"concurrency is {self.concurrency}: at most {MOST_SEQUENCES} sequences are modelled")
        if not 0 <= self.head_room < 1:
            raise MegatuneError(
                f"head room {self.head_room} is no share of the memory: from 0 to less than 1, e.g. 0.1"
            )


@dataclass(frozen=True)
class Served:
    """How a plan is served at a level."""

    model: str
    level: Level
    layout: Layout
    memory: Memory
    spare_bytes: float
    """Of the budget, beyond everything that is held."""
    context_bytes: float
    """That one more sequence of the level's context takes."""
    rate: str
    """What was found of the rate, in words."""
    traffic: Traffic | None = None


def tensor_of(plan: Plan) -> int | None:
    """Ranks of the deployment; None where the plan holds for any.

    :raises MegatuneError: where the plan holds for several numbers.
    """
    worlds = plan.content.gate.worlds
    if len(worlds) > 1:
        raise MegatuneError(
            f"the plan holds for {' and '.join(map(str, worlds))} ranks: megatune serve-plan --ranks says which"
        )
    return worlds[0] if worlds else None


def capture_sizes(plan: Plan, tensor: int | None, concurrency: int | None = None) -> tuple[list[int], int]:
    """Tokens of the graphs, ascending, and the most that was measured of every shape that serves.

    A graph of c tokens runs the decision for c, whatever it is padded from: each band therefore ends in a graph, and
    every measured number of tokens has one.
    """
    shapes = list(_shapes(plan, tensor))
    if not shapes:
        raise MegatuneError(f"the plan has no shape of {tensor} ranks, or of one")
    largest = max(tokens for shape in shapes for tokens in shape.measured_tokens or (1,))
    sizes = {tokens for shape in shapes for tokens in shape.measured_tokens}
    sizes |= {band.tokens_hi for shape in shapes for band in shape.bands if band.tokens_hi is not None}
    sizes |= {1}
    most = largest if concurrency is None else concurrency
    kept = {size for size in sizes if size <= most}
    if most > largest:
        kept |= set(range(largest + STOCK_STEP, most, STOCK_STEP))
    return sorted(kept | {most}), largest


def arguments(plan: Plan, served: Served | None = None) -> Iterator[Setting]:
    """Settings of ``vllm serve --config``."""
    gate = plan.content.gate
    tensor = served.layout.tensor if served else tensor_of(plan)
    digest = f"plan {plan.digest}"
    name = served.model if served else gate.model
    if name is not None:
        found = find_model(name)
        yield Setting(("model",), found.hf_id or found.name, "the plan's decisions are for this model's shapes", digest)
    if tensor is not None:
        why = "the least ranks that meet the level" if served else "reductions were measured among so many ranks"
        yield Setting(("tensor-parallel-size",), tensor, why, f"{digest}, worlds {list(gate.worlds) or 'any'}")
    if served and served.layout.nodes > 1:
        yield Setting(
            ("nnodes",),
            served.layout.nodes,
            "the ranks are on so many hosts: start each with its own --node-rank, and --master-addr of the first",
            f"{digest}, whose gate accepts multi_node",
        )
    yield Setting(("dtype",), "bfloat16", "the operands that were measured", f"{digest}, dtypes {list(gate.dtypes)}")
    if served:
        yield from _of_level(served)
    sizes, largest = capture_sizes(plan, tensor, served.level.concurrency if served else None)
    if not served:
        yield Setting(
            ("max-num-seqs",), sizes[-1], "more rows than were measured would be stock", f"measured up to {largest}"
        )
    if gate.execution == "graph":
        yield from _graphs(plan, tensor, sizes, largest)
    else:
        why = "steps were measured without graphs"
        yield Setting(("compilation-config", "cudagraph_mode"), "NONE", why, f"regime {plan.content.regime}")
    for setting in _allreduce(plan, tensor):
        if setting.path[0] == "compilation-config":
            yield setting
    if name == SPECIALIZED_MODEL and gate.arch in SPECIALIZED_ARCHITECTURES and tensor in SPECIALIZED_WORLDS:
        yield Setting(
            ("additional-config", "decode_backend"),
            "latency_specialized",
            "the plan's reductions and packed front are this backend's",
            f"it serves {SPECIALIZED_MODEL} on {gate.arch} at {tensor} ranks",
        )
    yield Setting(
        ("additional-config", "megatune_plan"), plan.digest, "takes part in vLLM's config hash: no stale graphs", digest
    )


def environment(plan: Plan, served: Served | None = None) -> Iterator[Setting]:
    """Settings of the environment."""
    tensor = served.layout.tensor if served else tensor_of(plan)
    for setting in _allreduce(plan, tensor):
        if setting.path[0] != "compilation-config":
            yield setting


def _graphs(plan: Plan, tensor: int | None, sizes: list[int], largest: int) -> Iterator[Setting]:
    why = "each band ends in a graph, so that no step is padded into another band's decision"
    bands = sum(len(shape.bands) for shape in _shapes(plan, tensor))
    evidence = f"{bands} bands, measured up to {largest} tokens" + (
        f"; above, every {STOCK_STEP} tokens, stock" if sizes[-1] > largest else ""
    )
    yield Setting(("compilation-config", "cudagraph_capture_sizes"), sizes, why, evidence)
    yield Setting(
        ("compilation-config", "max_cudagraph_capture_size"), sizes[-1], "the largest of them, which vLLM asserts", ""
    )
    yield Setting(
        ("compilation-config", "cudagraph_mode"),
        "FULL_AND_PIECEWISE",
        "decode steps were measured as whole graphs",
        f"regime {plan.content.regime}",
    )


def _of_level(served: Served) -> Iterator[Setting]:
    level, layout, memory = served.level, served.layout, served.memory
    held = f"{memory.bytes_.high / GIB:.1f} GiB of {memory.gpu_bytes / GIB:.1f} GiB a rank, predicted upper end"
    if layout.context_ranks > 1:
        yield Setting(
            ("decode-context-parallel-size",),
            layout.context_ranks,
            "the cache is held whole by every rank otherwise, and does not fit",
            held,
        )
    yield Setting(("max-num-seqs",), level.concurrency, f"the level's; {served.rate}", held)
    yield Setting(("max-model-len",), level.context, "the level's context", held)
    yield Setting(
        ("gpu-memory-utilization",),
        math.floor(round((1 - level.head_room) * 1000, 6)) / 1000,
        "what the level's head room leaves",
        held,
    )
    spare = f"{served.spare_bytes / GIB:.1f} GiB are spare, one more context takes {served.context_bytes / GIB:.2f} GiB"
    kept = served.spare_bytes >= served.context_bytes
    why = (
        "there is room to keep prefixes" if kept else "prefixes would push out what runs: there is no room for another"
    )
    yield Setting(("enable-prefix-caching",), kept, why, f"{spare}, predicted")
    chunk = max(MIN_BATCHED_TOKENS, 1 << (level.concurrency - 1).bit_length())
    if level.context > chunk:
        rule = "a rule, not measured"
        yield Setting(("enable-chunked-prefill",), True, "a whole prompt would hold up every user's next token", rule)
        yield Setting(("max-num-batched-tokens",), chunk, "the shorter a chunk, the shorter the wait behind it", rule)
        yield Setting(
            ("long-prefill-token-threshold",), chunk // 2, "one long prompt leaves half of a chunk to others", rule
        )


def _allreduce(plan: Plan, tensor: int | None) -> Iterator[Setting]:
    """vLLM's own all-reduce, where the plan's reductions support a setting of it."""
    for name in (FUSION_LIMIT, ALGORITHM_VARIABLE):
        found = setting_of(plan, tensor, name)
        if found is not None:
            path = ("compilation-config", *name.split(".")) if name == FUSION_LIMIT else (name,)
            yield Setting(path, found.value, found.conversion, f"reductions at {tensor} ranks, plan {plan.digest}")
    fused = fusion_of(plan, tensor)
    if fused is not None:
        evidence = f"reductions at {tensor} ranks, plan {plan.digest}"
        yield Setting(("compilation-config", "pass_config", "fuse_allreduce_rms"), *fused, evidence)


def _shapes(plan: Plan, tensor: int | None) -> Iterator[ShapePlan]:
    for operator in plan.content.operators:
        for shape in operator.shapes:
            if shape.world == 1 or tensor is None or shape.world == tensor:
                yield shape
