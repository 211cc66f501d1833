"""Chains, what can be tuned of them, and what their configs are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatune_kernels.artifact import revision_of
from megatune_kernels.artifact import source_digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch import consumers
from megatune_kernels.prefetch.ahead import ahead_bytes
from megatune_kernels.prefetch.ahead import head_bytes
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import architecture
from megatune_kernels.target import architecture_of

PREFETCH = operator("prefetch")
H200 = Hardware("NVIDIA H200", "sm_90a", "2335", 132, 60 * MIB, 140 << 30, "none")
ARCH = architecture_of(H200)
GROUPED = {"width": 7168, "n1": 6288, "k1": 7168, "n2": 1536, "k2": 128}
KDA = {"idle_ns": 5000, "n1": 6288, "k1": 7168, "n2": 1536, "k2": 128}
MLA = {"idle_ns": 5000, "n1": 2112, "k1": 7168, "n2": 2304, "k2": 1536, "n3": 1536, "k3": 7168}


def chain(dims: dict[str, int], tokens: int = 1) -> Workload:
    return PREFETCH.workload(dims, tokens)


def default(workload: Workload, **changes: object) -> Config:
    (config,) = (c for c in PREFETCH.space(workload, ARCH).defaults() if c.variant == "prefetch")
    return Config.of("prefetch", {**config.params, **changes})  # type: ignore[dict-item]


def test_chains_of_a_model_begin_its_layers() -> None:
    every = PREFETCH.workloads(model("Kimi-K3"), Parallel(8), [1, 8])
    found = [w for w in every if w.world == 1]
    shapes = {(w.tokens, w["idle_ns"]): 0 for w in found}
    assert set(shapes) == {(tokens, idle) for tokens in (1, 8) for idle in (3000, 5000, 10000)}
    sizes = {tuple((c.n, c.k) for c in chain_of(w).consumers) for w in found}
    assert sizes == {
        ((6288, 7168), (1536, 128)),
        ((2112, 7168), (2304, 1536), (1536, 7168)),
        ((560, 7168),),
    }
    assert len(found) == 2 * 3 * 3
    # In a group the idle phase is the reduction in front of them.
    grouped = [w for w in every if w.world > 1]
    assert {(w.world, w["width"], w.tokens) for w in grouped} == {(8, 7168, 1), (8, 7168, 8)}
    assert {tuple((c.n, c.k) for c in chain_of(w).consumers) for w in grouped} == sizes
    assert len(grouped) == 2 * 3
    wider = PREFETCH.workloads(model("Kimi-K3"), Parallel(16), [1])
    assert chain_of(wider[0]).consumers[0].n == 3216
    # A model without latent experts or linear attention has one chain, and none is empty.
    only = {
        w.shape
        for w in PREFETCH.workloads(model("DeepSeek-V3"), Parallel(8), [1])
        if dict(w.dims).get("idle_ns") == 3000
    }
    assert only == {"idle_ns=3000,k1=7168,k2=1536,n1=2112,n2=3072"}


def test_equal_chains_are_equal_workloads() -> None:
    assert chain({**KDA, "after1": 0, "after2": 1}) == chain(KDA)
    assert chain({**KDA, "after2": 0}) != chain(KDA)
    assert chain(dict(chain({**MLA, "after3": 0}).dims)) == chain({**MLA, "after3": 0})


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({**KDA, "after1": 2}, "after1=2, after2=1: a cycle"),
        ({**MLA, "after2": 3, "after3": 2}, "after2=3, after3=2: a cycle"),
        ({**KDA, "after2": 2}, "after2=2: a cycle"),
        ({**KDA, "after2": 3}, "after2=3: there is no consumer 3; allowed: 0 to 2"),
        ({**KDA, "n4": 64, "k4": 64}, "n3: consumer 3 of 4 is missing"),
        ({**KDA, "k3": 64}, "n3: consumer 3 of 3 is missing"),
        ({"idle_ns": 5000, "n1": 64}, "k1: consumer 1 of 1 is missing"),
        ({**KDA, "after3": 1}, "n3: consumer 3 of 3 is missing"),
        ({"idle_ns": 5000}, "n1: missing"),
        ({"n1": 64, "k1": 64}, "idle_ns: missing"),
        ({**KDA, "idle_ns": 10}, "idle_ns=10 is out of range: 500 to 1000000"),
        ({**KDA, "k2": 132}, "n2, k2: k=132 is impossible: rows are read 16 bytes at a time"),
        ({**KDA, "n9": 64, "k9": 64}, "n9: a chain has 1 to 8 consumers"),
        ({**KDA, "depth": 64}, "depth: a chain has the dims idle_ns"),
        ({**KDA, "n01": 64}, "n01: a chain has the dims idle_ns"),
    ],
)
def test_a_chain_that_cannot_be_names_the_dim(dims: dict[str, int], said: str) -> None:
    with pytest.raises(MegatuneError) as raised:
        chain(dims)
    assert said in str(raised.value)


def test_other_things_that_a_chain_cannot_be() -> None:
    for given, said in (
        ({"world": 8}, "idle_ns: a chain has the dims width, n1 and k1, .* in a group of ranks"),
        ({"world": 17, "dims": GROUPED}, "width: the idle phase of a group is a reduction: world=17 is impossible"),
        (
            {"world": 8, "dims": {"n1": 64, "k1": 64}},
            "width: the idle phase .*: a reduction has the dim width, got none",
        ),
        ({"dtype": "fp8"}, "dtype 'fp8' is not supported"),
        ({"tokens": 65}, "tokens=65 is out of range"),
    ):
        with pytest.raises(MegatuneError, match=said):
            PREFETCH.workload(**{"dims": KDA, "tokens": 1, **given})  # type: ignore[arg-type]


def test_an_unknown_l2_is_an_error_that_names_the_field() -> None:
    for arch in (architecture("sm_90a"), architecture_of(replace(H200, l2_bytes=0))):
        with pytest.raises(MegatuneError, match=r"^l2_bytes: the size of the L2 is not known for sm_90a"):
            PREFETCH.space(chain(KDA), arch)


@pytest.mark.parametrize("dims", [KDA, MLA, {"idle_ns": 3000, "n1": 288, "k1": 7168}], ids=["kda", "mla", "front"])
@pytest.mark.parametrize("l2_mib", [8, 60, 126])
def test_no_depth_is_more_than_the_weights_or_the_l2(dims: dict[str, int], l2_mib: int) -> None:
    workload = chain(dims, 8)
    weights = chain_of(workload).weight_bytes
    configs = PREFETCH.space(workload, replace(ARCH, l2_bytes=l2_mib * MIB)).configs
    depths = sorted({int(c.params["depth_mib"]) for c in configs if c.variant == "prefetch"})
    own = sum(2 * 8 * (c.n + c.k) for c in chain_of(workload).consumers)
    assert depths
    assert all(min(depth * MIB, weights) + own <= l2_mib * MIB for depth in depths)
    # Where the L2 has room for all, all can be asked for.
    assert (depths[-1] * MIB >= weights) == (weights + own <= l2_mib * MIB)
    assert all(
        int(c.params["grid"]) * int(c.params["chunk_kib"]) * 1024 <= min(int(c.params["depth_mib"]) * MIB, weights)
        for c in configs
        if c.variant == "prefetch"
    )


def test_constraints_say_why() -> None:
    space = PREFETCH.space(chain(KDA), ARCH)
    assert space.violations(default(chain(KDA), depth_mib=64))[0].startswith("L2: what was asked for must stay")
    small = PREFETCH.space(chain({"idle_ns": 3000, "n1": 32, "k1": 7168}), ARCH)
    assert small.violations(default(chain(KDA), depth_mib=1, grid=64, consumer="default"))[0].startswith(
        "blocks: every"
    )
    assert space.violations(default(chain(KDA), depth_mib=96))[0].startswith("depth_mib=96: allowed are 1, 2")
    assert space.violations(default(chain(KDA), pdl=False))[0].startswith("early: only a programmatic launch asks")
    assert space.violations(default(chain(KDA), walk="later"))[0].startswith("walk=later: allowed are rows, columns")
    later = PREFETCH.space(chain(MLA), ARCH)
    assert not later.violations(default(chain(MLA), walk="later", depth_mib=28))
    assert later.violations(default(chain(MLA), walk="later", depth_mib=32)) == [
        "walk: behind the first consumer there are no more weights"
    ]
    assert [str(c) for c in space.configs if c.variant == "plain"] == [
        "plain consumer=cold pdl=False shared=own",
        "plain consumer=cold pdl=False shared=most",
        "plain consumer=cold pdl=True shared=own",
        "plain consumer=cold pdl=True shared=most",
        "plain consumer=early pdl=True shared=own",
        "plain consumer=early pdl=True shared=most",
    ]


def test_a_depth_beyond_the_weights_is_never_launched() -> None:
    workload = chain({"idle_ns": 3000, "n1": 288, "k1": 7168})
    for call in (PREFETCH.parts, PREFETCH.launch):
        with pytest.raises(MegatuneError, match=r"depth_mib=5 is impossible: the consumers have 3.9 MiB of weights"):
            call(workload, default(workload, depth_mib=5))
    with pytest.raises(
        MegatuneError, match=r"depth_mib=32 is impossible: the consumers behind the first have 27.8 MiB"
    ):
        PREFETCH.parts(chain(MLA), default(chain(MLA), depth_mib=32, walk="later"))


def test_parts_of_a_prefetch_are_its_kernel_beside_the_idle_phase_and_the_consumers_behind() -> None:
    workload = chain(MLA, 4)
    parts = PREFETCH.parts(workload, default(workload, consumer="cold"))
    assert [(p.name, p.workload.operator, p.stream, p.after) for p in parts] == [
        ("prefetch", "prefetch", 1, ()),
        ("idle", "prefetch", 0, ()),
        ("consumer1", "projection", 0, ()),
        ("consumer2", "projection", 0, ()),
        ("consumer3", "projection", 0, ()),
    ]
    assert [p.workload.shape for p in parts[2:]] == ["k=7168,n=2112", "k=1536,n=2304", "k=7168,n=1536"]
    assert all(p.workload.tokens == 4 for p in parts)
    for part in parts[2:]:
        assert not operator("projection").space(part.workload, ARCH).violations(part.config)
        assert part.config.params["pdl"] is True
    # What a part is does not depend on what it does not take: parts are timed once for many configs.
    other = PREFETCH.parts(workload, default(workload, consumer="cold", pdl=False))
    assert other[:2] == parts[:2]
    assert not any(p.config.params["pdl"] for p in other[2:])


def test_the_baseline_is_the_chain_without_prefetch_and_programmatic_launches() -> None:
    workload = chain(KDA, 8)
    baseline = PREFETCH.parts(workload, Config.of("none", {}))
    assert baseline == PREFETCH.parts(workload, Config.of("plain", {"pdl": False}))
    assert [p.name for p in baseline] == ["idle", "consumer1", "consumer2"]
    assert not any(PREFETCH.launch(p.workload, p.config).programmatic for p in baseline[:1])
    assert not any(operator("projection").launch(p.workload, p.config).programmatic for p in baseline[1:])


def test_a_consumer_that_follows_another_part_has_a_stream_of_its_own_and_no_programmatic_launch() -> None:
    workload = chain({**MLA, "after3": 0})
    parts = {p.name: p for p in PREFETCH.parts(workload, default(workload, pdl=True))}
    assert (parts["consumer3"].stream, parts["consumer3"].after) == (2, ("idle",))
    assert parts["consumer3"].config.params["pdl"] is False
    assert parts["consumer2"].config.params["pdl"] is True
    # Read in the order of dependencies, not of numbers.
    turned = chain({**MLA, "after1": 3, "after2": 0, "after3": 2})
    assert [c.number for c in chain_of(turned).consumers] == [2, 3, 1]
    order = [p.name for p in PREFETCH.parts(turned, default(turned))]
    assert order == ["prefetch", "idle", "consumer2", "consumer3", "consumer1"]
    assert {p.stream for p in PREFETCH.parts(turned, default(turned))[1:]} == {0}


def test_the_launch_of_the_prefetch_is_its_config() -> None:
    workload = chain(MLA)
    chosen = default(workload, depth_mib=24, grid=16, chunk_kib=4, carveout=0, start_percent=50)
    launch = PREFETCH.launch(workload, chosen)
    assert (launch.grid, launch.block, launch.carveout) == ((16, 1, 1), (32, 1, 1), 0)
    assert launch.scalars == (0, 3, 24, 4096, 0, 0, 2500)
    assert PREFETCH.launch(workload, Config.of("prefetch", {**chosen.params, "walk": "later"})).scalars[:2] == (1, 3)
    idle = PREFETCH.launch(workload, Config.of("idle", {}))
    # Nothing of what waits for it has to wait for its SM to change.
    assert (idle.scalars, idle.carveout, idle.shared_bytes) == ((5000,), 100, 0)
    with pytest.raises(MegatuneError, match="'plain' is no kernel of prefetch"):
        PREFETCH.launch(workload, Config.of("plain", {"pdl": True}))


def test_a_prefetch_by_columns_leaves_to_the_first_consumer_what_it_asks_for_itself() -> None:
    workload = chain(MLA, 8)

    def parts(**changes: object) -> dict[str, Part]:
        return {part.name: part for part in PREFETCH.parts(workload, default(workload, **changes))}

    found = parts(walk="columns")
    first = found["consumer1"]
    head = head_bytes(first.workload, first.config)
    assert 0 < head < 2 * 7168
    assert found["prefetch"].launch().scalars[4:6] == (1, head)
    # What is as it lies, or waits for nothing, leaves nothing out.
    assert parts(walk="rows")["prefetch"].launch().scalars[4:6] == (0, 0)
    apart = parts(walk="columns", pdl=False, consumer="cold", shared="own")
    assert apart["prefetch"].launch().scalars[4:6] == (1, 0)


@pytest.mark.parametrize("tokens", [1, 8])
def test_what_is_asked_for_ahead_is_a_head_of_every_row_that_is_on_the_gpu(tokens: int) -> None:
    projection = operator("projection")
    for n, k in ((560, 7168), (2112, 7168), (1152, 1536)):
        workload = projection.workload({"n": n, "k": k}, tokens)
        configs = projection.space(workload, ARCH).configs
        for config in configs[:: max(1, len(configs) // 40)]:
            ahead, head = ahead_bytes(workload, config, ARCH, 132), head_bytes(workload, config)
            assert 0 <= ahead <= 2 * n * k
            assert 0 <= head <= 2 * k
            # A GPU of so many SMs has all blocks at once, and the last one may have fewer rows than the others.
            everywhere = ahead_bytes(workload, config, ARCH, 1 << 20)
            assert ahead <= everywhere
            if head:
                assert head * n <= everywhere <= head * (n + 127)


def test_early_consumers_are_those_behind_the_idle_phase() -> None:
    workload = chain(MLA, 8)

    def configs(**changes: object) -> list[Config]:
        return [part.config for part in PREFETCH.parts(workload, default(workload, **changes))[2:]]

    early, cold = configs(consumer="early"), configs(consumer="cold")
    assert early[0] != cold[0]
    assert early[1:] == cold[1:]
    first = chain_of(workload).consumers[0].workload(8)
    assert ahead_bytes(first, early[0], ARCH, 132) > ahead_bytes(first, cold[0], ARCH, 132)
    # One that waits for an event overlaps nothing.
    apart = chain({**MLA, "after3": 0}, 8)
    third = {part.name: part for part in PREFETCH.parts(apart, default(apart))}["consumer3"]
    assert third.config == consumers.config_of("cold", third.workload, False)


def test_consumers_of_one_share_of_shared_memory_do_not_wait_for_another() -> None:
    workload = chain(MLA, 8)
    for shared, carveout in (("own", None), ("most", 100)):
        parts = PREFETCH.parts(workload, default(workload, shared=shared))
        assert {part.launch().carveout for part in parts[2:]} == {carveout}
    assert {part.launch().carveout for part in PREFETCH.parts(workload, Config.of("none", {}))[1:]} == {None}


def test_one_prefetch_kernel_serves_every_config() -> None:
    found = {
        str(PREFETCH.specialization(w, c))
        for w in (chain(KDA), chain(MLA, 8))
        for c in PREFETCH.space(w, ARCH).configs
        if c.variant == "prefetch"
    }
    assert len(found) == 1


def test_costs_add_up() -> None:
    workload = chain(KDA, 2)
    each = [operator("projection").cost(c.workload(2), Config.of("none", {})) for c in chain_of(workload).consumers]
    cost = PREFETCH.cost(workload, Config.of("none", {}))
    assert (cost.memory_bytes, cost.flops) == (sum(c.memory_bytes for c in each), sum(c.flops for c in each))
    assert PREFETCH.rotating_bytes(workload) == 2 * (6288 * 7168 + 1536 * 128)


def test_other_kernels_of_a_consumer_are_another_revision_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    projection = type(operator("projection"))
    before = revision_of(PREFETCH)
    assert revision_of(operator("projection")) == source_digest(projection)
    monkeypatch.setattr(
        "megatune_kernels.artifact.source_digest", lambda cls: "other" if cls is projection else source_digest(cls)
    )
    assert revision_of(PREFETCH) != before


def test_consumers_run_as_their_winners_do(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = chain_of(chain(KDA, 5)).consumers[0].workload(5)
    assert consumers.kinds(chain_of(chain(KDA))) == ("warm", "cold", "early")
    # 5 tokens were not recorded: 6 are nearest, more tokens before fewer.
    table = consumers._tables()["cold"]["6288x7168"]
    assert "5" not in table
    assert consumers.config_of("cold", consumer, True).params == table["6"]["pdl"]["params"]
    assert consumers.config_of("cold", consumer, False).params == table["6"]["plain"]["params"]
    # A winner that is not legal at these tokens gives way to one that is.
    far = chain_of(chain(KDA, 9)).consumers[0].workload(9)
    assert not operator("projection").space(far, ARCH).violations(consumers.config_of("cold", far, True))


def test_consumers_of_unknown_shapes_run_with_defaults() -> None:
    workload = chain({"idle_ns": 5000, "n1": 512, "k1": 1024}, 2)
    assert consumers.kinds(chain_of(workload)) == ("default",)
    assert {c.params["consumer"] for c in PREFETCH.space(workload, ARCH).configs if c.variant == "prefetch"} == {
        "default"
    }
    for tokens, variant in ((2, "simt"), (8, "mma")):
        consumer = chain_of(workload).consumers[0].workload(tokens)
        for pdl in (False, True):
            config = consumers.config_of("default", consumer, pdl)
            assert (config.variant, config.params["pdl"]) == (variant, pdl)
            assert not operator("projection").space(consumer, ARCH).violations(config)


def test_winners_of_warm_weights_are_a_choice_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = consumers._tables()["cold"]
    monkeypatch.setattr(consumers, "_tables", lambda: {"cold": cold})
    assert consumers.kinds(chain_of(chain(KDA))) == ("cold",)
    warm = {"6288x7168": {"1": {kind: cold["6288x7168"]["8"][kind] for kind in ("pdl", "plain")}}}
    monkeypatch.setattr(consumers, "_tables", lambda: {"cold": cold, "warm": {**warm, "1536x128": cold["1536x128"]}})
    consumers.config_of.cache_clear()
    try:
        workload = chain(KDA)
        values = {c.params["consumer"] for c in PREFETCH.space(workload, ARCH).configs if c.variant == "prefetch"}
        assert values == {"cold", "warm"}
        chosen = [PREFETCH.parts(workload, default(workload, consumer=kind))[2].config for kind in ("cold", "warm")]
        assert chosen[0] != chosen[1]
        # The baseline and the chain without prefetch read cold weights.
        assert PREFETCH.parts(workload, Config.of("plain", {"pdl": True}))[1].config == chosen[0]
    finally:
        consumers.config_of.cache_clear()


def test_the_idle_phase_of_a_group_is_a_reduction_that_overlaps_nothing_before_it() -> None:
    workload = PREFETCH.workload(GROUPED, 4, world=8)
    space = PREFETCH.space(workload, ARCH)
    config = Config.of("prefetch", {**default(workload).params, "pdl": True})
    assert not space.violations(config)
    # How long it takes is not known, so nothing starts after a share of it.
    (start,) = (p for p in space.by_variant["prefetch"].parameters if p.name == "start_percent")
    assert start.values == (0,)
    parts = PREFETCH.parts(workload, config)
    assert [part.name for part in parts] == ["prefetch", "reduction", "consumer1", "consumer2"]
    reduction = parts[1]
    assert reduction.workload == operator("reduction").workload({"width": 7168}, 4, world=8)
    assert not operator("reduction").space(reduction.workload, ARCH).violations(reduction.config)
    # It lets others start before its end, and itself waits for all that is before it.
    assert reduction.config.params["pdl"] is True
    assert reduction.launch().programmatic is False
    assert reduction.launch().carveout == 100
    assert all(part.config.params["pdl"] and part.launch().programmatic for part in parts[2:])
    baseline = PREFETCH.parts(workload, Config.of("none", {}))
    assert not any(part.config.params["pdl"] for part in baseline)
    assert PREFETCH.workspace(workload, config) == operator("reduction").workspace(reduction.workload, reduction.config)
    assert PREFETCH.workspace(chain(KDA), default(chain(KDA))).bytes == 0


def test_a_reduction_runs_as_it_was_the_fastest_where_it_was_measured() -> None:
    def reducer(tokens: int, world: int, width: int = 7168, pdl: bool = False) -> Config:
        return consumers.reducer_of(operator("reduction").workload({"width": width}, tokens, world=world), pdl)

    assert (reducer(1, 2).variant, reducer(512, 2).variant) == ("full_fanout", "two_stage")
    # At the nearest tokens at which that is legal, and the same one where consumers may start while it runs.
    assert reducer(1, 2, pdl=True) == Config.of("full_fanout", {**reducer(1, 2).params, "pdl": True})
    assert reducer(3, 2) == reducer(4, 2)
    default = operator("reduction").space(operator("reduction").workload({"width": 7168}, 1, world=8), ARCH).defaults()
    assert reducer(1, 8) == Config.of(default[0].variant, {**default[0].params, "pdl": False})
    for tokens in (1, 5, 64, 512):
        assert reducer(tokens, 2, 3584).params["pdl"] is False
