"""Campaigns of one GPU, of groups and of emulated groups: which workloads each can have, with the real operators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operators
from megatune_tuner import doctor
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.equipping import equipment
from megatune_tuner.runners import group
from megatune_tuner.runners.group import EmulatedRunner
from megatune_tuner.runners.group import GroupRunner

GPU = doctor.Gpu(0, "NVIDIA H200", "9.0", 150 * 10**9, 132, 60 << 20)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """In the place of the toys."""
    operators.cache_clear()
    yield
    operators.cache_clear()


def model(kind: str, parallel: object, more: str = "") -> Campaign:
    text = f"""
name = "worlds"
tokens = [1, 64]
{more}
[model]
name = "Kimi-K3"
tensor_parallel = {parallel}
[runner]
kind = "{kind}"
"""
    return parse_campaign(text, source="file.toml")


def shapes(kind: str, *worlds: int) -> Campaign:
    text = 'name = "worlds"\ntokens = [1, 64]\n'
    for world in worlds:
        text += f'[[shapes]]\noperator = "reduction"\nwidth = 7168\nworld = {world}\n'
    return parse_campaign(f'{text}[runner]\nkind = "{kind}"\n', source="file.toml")


def test_without_operators_a_runner_has_those_that_it_can_measure() -> None:
    found = {(w.operator, w.world) for w in model("gpu", 8).workloads()}
    assert found >= {("projection", 1), ("router_front", 1)}
    assert {world for _, world in found} == {1}
    for kind in ("group", "emulated"):
        campaign = model(kind, 8)
        assert {(w.operator, w.world) for w in campaign.workloads()} == {("reduction", 8), ("router_front", 8)}
        assert campaign.world == 8
    assert model("gpu", 8).world == 1


def test_shapes_have_a_world() -> None:
    campaign = shapes("group", 4)
    assert [(w["width"], w.tokens, w.world) for w in campaign.workloads()] == [(7168, 1, 4), (7168, 64, 4)]


@pytest.mark.parametrize(
    ("kind", "parallel", "more", "message"),
    [
        (
            "gpu",
            8,
            'operators = ["reduction"]',
            'operators: reduction takes 8 GPUs here: set runner.kind to "group", or to "emulated" for all ranks on one',
        ),
        (
            "group",
            8,
            'operators = ["projection", "reduction"]',
            'operators: projection runs on one GPU here, world 1: kind = "group" measures worlds of 2 and more',
        ),
        ("group", "[4, 8]", "", "model.tensor_parallel: a group has one world, and these are 4, 8: give each a"),
        (
            "group",
            1,
            "",
            'runner.kind: the model has no workload that kind = "group" measures; ranks that reduce are 2 or more: '
            "raise model.tensor_parallel",
        ),
        ("group", 1, 'operators = ["reduction"]', "operators: the model has no workload that kind = "),
        (
            "emulated",
            16,
            'operators = ["reduction"]',
            'operators: reduction has world 16 here: kind = "emulated" measures worlds of 2 to 8',
        ),
        ("emulated", 16, "", 'runner.kind: the model has no workload that kind = "emulated" measures'),
    ],
)
def test_models_that_a_runner_cannot_measure(kind: str, parallel: object, more: str, message: str) -> None:
    with pytest.raises(MegatuneError, match=f"^{re.escape(f'file.toml: {message}')}"):
        model(kind, parallel, more)


@pytest.mark.parametrize(
    ("kind", "worlds", "message"),
    [
        ("gpu", (2,), "shapes[0].world: reduction takes 2 GPUs here: set runner.kind"),
        ("group", (2, 1), "shapes[1] at tokens 1: world=1 is impossible: a reduction has 2 to 16 ranks"),
        ("group", (2, 4), "shapes: a group has one world, and these are 2, 4: give each a campaign of its own"),
        ("emulated", (9,), "shapes[0].world: reduction has world 9 here"),
        ("group", (17,), "shapes[0] at tokens 1: world=17 is impossible"),
        ("group", (0,), "shapes[0].world: has to be greater than 0, not 0"),
    ],
)
def test_shapes_that_a_runner_cannot_measure(kind: str, worlds: tuple[int, ...], message: str) -> None:
    with pytest.raises(MegatuneError, match=f"^{re.escape(f'file.toml: {message}')}"):
        shapes(kind, *worlds)


def test_a_projection_has_no_group() -> None:
    with pytest.raises(MegatuneError, match=r"^file.toml: shapes\[0\].world: projection runs on one GPU here, world 1"):
        parse_campaign(
            """
            name = "worlds"
            tokens = [1]
            shapes = [{operator = "projection", n = 1536, k = 7168}]
            runner.kind = "group"
            """,
            source="file.toml",
        )


@pytest.mark.parametrize(("there", "gpu", "where"), [(2, 0, ""), (4, 2, " from GPU 2 on")])
def test_a_world_larger_than_the_machine_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, there: int, gpu: int, where: str
) -> None:
    monkeypatch.setattr(doctor, "visible_gpus", lambda: (GPU,) * there)
    message = f"file.toml: runner.kind: world 4 takes 4 GPUs{where}, this machine shows {there}; kind = "
    with pytest.raises(MegatuneError, match=re.escape(message)), equipment(shapes("group", 4), gpu):
        pass


@pytest.mark.parametrize(("kind", "runner"), [("group", GroupRunner), ("emulated", EmulatedRunner)])
def test_a_campaign_makes_its_runner(monkeypatch: pytest.MonkeyPatch, kind: str, runner: type[GroupRunner]) -> None:
    made: list[tuple[type, int, int]] = []

    def start(self: GroupRunner, *, describe: bool = False) -> None:
        made.append((type(self), self.world, self._first_gpu))
        raise MegatuneError("no GPU here")

    monkeypatch.setattr(doctor, "visible_gpus", lambda: (GPU,) * 4)
    monkeypatch.setattr(group, "require_packages", lambda: None)
    monkeypatch.setattr(GroupRunner, "_start", start)
    with pytest.raises(MegatuneError, match="no GPU here"), equipment(shapes(kind, 2), 1):
        pass
    assert made == [(runner, 2, 1)]


def test_a_replay_is_of_one_world_where_an_operator_has_several() -> None:
    def worlds(more: str = "") -> set[int]:
        text = model("gpu", 8, 'operators = ["router_front"]').text
        replayed = text.replace('kind = "gpu"', f'kind = "replay"\nrecording = "any"\n{more}')
        return {w.world for w in parse_campaign(replayed, source="file.toml").workloads()}

    assert worlds() == {1}
    assert worlds("world = 8") == {8}
    with pytest.raises(MegatuneError, match='only kind = "replay" takes a world'):
        parse_campaign(model("group", 8).text + "world = 8\n", source="file.toml")
    # A world that an operator or a shape does not have is not passed by.
    with pytest.raises(MegatuneError, match=r"operators: router_front has world 1 here: runner.world says .* of 4 was"):
        worlds("world = 4")
    one = model("gpu", 8, 'operators = ["projection"]').text
    with pytest.raises(MegatuneError, match=r"operators: projection has world 1 here: runner.world says .* of 8 was"):
        parse_campaign(one.replace('kind = "gpu"', 'kind = "replay"\nrecording = "any"\nworld = 8'), source="file.toml")
    both = shapes("group", 2).text.replace('kind = "group"', 'kind = "replay"\nrecording = "any"\nworld = 8')
    with pytest.raises(MegatuneError, match=r"shapes\[0\].world: reduction has world 2 here: runner.world says"):
        parse_campaign(both, source="file.toml")
    # Without names, a replay is of one GPU.
    text = model("gpu", 8).text.replace('kind = "gpu"', 'kind = "replay"\nrecording = "any"')
    assert {w.world for w in parse_campaign(text, source="file.toml").workloads()} == {1}
