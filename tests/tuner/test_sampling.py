"""The sampler proposes what is legal and new, and finds good configs with few of them."""

from __future__ import annotations

import statistics
import time
from functools import cache
from importlib.util import find_spec

import optuna
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from toy import Toy
from toy import true_us

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import architecture
from megatune_tuner import sampling
from megatune_tuner.candidates import Catalogue
from megatune_tuner.sampling import Encoding
from megatune_tuner.sampling import Kind
from megatune_tuner.sampling import legal_sampler
from megatune_tuner.surrogate import Evidence

SM90 = architecture("sm_90a")
WORKLOAD = Toy().workload({"n": 1536, "k": 7168}, 4)
NO_SCIPY = pytest.mark.skipif(find_spec("scipy") is None, reason="scipy is not installed")
GP = pytest.param("gp", marks=(pytest.mark.torch, NO_SCIPY))


@cache
def catalogue(workload: Workload = WORKLOAD) -> Catalogue:
    return Catalogue(Toy().space(workload, SM90))


def search(of: Catalogue, kind: Kind, seed: int, trials: int, workload: Workload = WORKLOAD) -> list[Config]:
    """What is proposed, one after the other; every seventh fails."""
    known: dict[Config, float | None] = {}
    encoding, sampler = legal_sampler(of, kind, seed, lambda: [Evidence(workload, of, known)])
    study = optuna.create_study(sampler=sampler)
    found = []
    for number in range(trials):
        trial = study.ask()
        encoding.suggest(trial)
        config = of.configs[sampler.proposed]
        assert trial.params == encoding.params(of.index[config])
        found.append(config)
        known[config] = None if number % 7 == 6 else true_us(workload, config)
        if number % 7 == 6:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, true_us(workload, config))
    return found


@pytest.mark.parametrize("kind", ["model", "tpe", "random", GP])
def test_every_config_is_proposed_once_and_only_legal_ones(kind: Kind) -> None:
    space = Toy().space(WORKLOAD, SM90)
    few = {"simt": {"block": [64, 128], "rows": [2], "static": [True]}, "mma": {"tile": [64], "swizzle": ["full"]}}
    small = Catalogue(space.restricted(None, few))
    found = search(small, kind, 0, len(small))
    assert len(found) == len(set(found)) == len(small)
    assert set(found) == set(small.configs)


def test_more_than_there_is() -> None:
    small = Catalogue(Toy().space(WORKLOAD, SM90), catalogue().configs[:2])
    with pytest.raises(LookupError, match="every config is taken"):
        search(small, "model", 0, 3)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_taken_is_never_proposed(data: st.DataObject) -> None:
    of = catalogue()
    chosen = data.draw(st.lists(st.sampled_from(of.configs), min_size=2, max_size=60, unique=True))
    some = Catalogue(Toy().space(WORKLOAD, SM90), chosen)
    encoding, sampler = legal_sampler(some, data.draw(st.sampled_from(["model", "tpe", "random"])), 0, list)
    taken = data.draw(st.sets(st.integers(0, len(some) - 1), max_size=len(some) - 1))
    for index in taken:
        sampler.take(index)
    study = optuna.create_study(sampler=sampler)
    proposed = set()
    for _ in range(sampler.free()):
        trial = study.ask()
        encoding.suggest(trial)
        proposed.add(sampler.proposed)
        study.tell(trial, 1.0)
    assert proposed == set(range(len(some))) - taken
    assert sampler.free() == 0


@given(st.data(), st.booleans())
def test_configs_survive_being_written_as_parameters(data: st.DataObject, conditional: bool) -> None:
    of = catalogue()
    encoding = Encoding(of, conditional=conditional)
    index = data.draw(st.integers(0, len(of) - 1))
    params, distributions = encoding.params(index), encoding.distributions(index)
    assert set(params) == set(distributions)
    group = of.groups[of.group_of[index]]
    values = {p.name: p.values[params[f"{group.name}.{p.name}"]] for p in group.variant.parameters}
    assert Config.of(str(params["variant"]), values) == of.configs[index]
    if conditional:
        assert {name.partition(".")[0] for name in params} <= {"variant", group.name}
    else:
        assert set(params) == set(encoding.every)


@pytest.mark.parametrize("kind", ["model", "tpe", "random"])
def test_the_same_seed_proposes_the_same(kind: Kind) -> None:
    assert search(catalogue(), kind, 3, 25) == search(catalogue(), kind, 3, 25)
    assert search(catalogue(), kind, 3, 25) != search(catalogue(), kind, 4, 25)


@pytest.mark.parametrize("kind", ["model", "tpe"])
def test_it_comes_close_to_the_optimum_and_closer_than_chance(kind: Kind) -> None:
    def regret(kind: Kind, seed: int, tokens: int) -> float:
        workload = WORKLOAD.at(tokens)
        of = catalogue(workload)
        best = min(true_us(workload, config) for config in search(of, kind, seed, 36, workload))
        return best / min(true_us(workload, config) for config in of.configs) - 1

    cells = [(seed, tokens) for seed in range(3) for tokens in (1, 8, 32)]
    with_model = statistics.mean(regret(kind, *cell) for cell in cells)
    by_chance = statistics.mean(regret("random", *cell) for cell in cells)
    assert with_model < 0.02
    assert with_model < by_chance


@pytest.mark.parametrize("kind", ["model", "tpe"])
def test_a_variant_without_parameters_and_axes_of_one_value(kind: Kind) -> None:
    one = Parameter("size", (4,), 4, "fixed")
    two = Parameter("depth", (1, 2), 1, "free")
    space = Space((VariantSpace("plain", ()), VariantSpace("fixed", (one,)), VariantSpace("mixed", (one, two))))
    of = Catalogue(space)
    known: dict[Config, float | None] = {}
    encoding, sampler = legal_sampler(of, kind, 0, lambda: [Evidence(WORKLOAD, of, known)])
    study = optuna.create_study(sampler=sampler)
    for index in range(3):
        study.add_trial(
            optuna.trial.create_trial(
                value=1.0, params=encoding.params(index), distributions=encoding.distributions(index)
            )
        )
    for _ in range(20):
        study.add_trial(study.trials[0])
    for left in range(4, 0, -1):
        assert sampler.free() == left
        trial = study.ask()
        encoding.suggest(trial)
        known[of.configs[sampler.proposed]] = 1.0 + left
        study.tell(trial, 1.0 + left)


def test_gp_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MegatuneError, match='"gp" needs torch and scipy: pip install torch scipy, or use "model"'):
        legal_sampler(catalogue(), "gp", 0, list)


def test_the_parameters_are_those_of_the_space_alone() -> None:
    encoding, sampler = legal_sampler(catalogue(), "tpe", 0, list)
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(LookupError, match="depth is not a parameter of the space"):
        study.ask().suggest_int("depth", 1, 2)
    sampler.reseed_rng()
    encoding.suggest(study.ask())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "tpe"])
def test_a_proposal_takes_milliseconds(kind: Kind) -> None:
    begin = time.process_time()
    search(catalogue(), kind, 0, 100)
    assert (time.process_time() - begin) / 100 < 0.010
