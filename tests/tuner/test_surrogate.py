"""The model of a cell and its neighbours."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from toy import Toy
from toy import true_us

from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import architecture
from megatune_tuner import surrogate
from megatune_tuner.candidates import Catalogue
from megatune_tuner.surrogate import Evidence
from megatune_tuner.surrogate import Posterior
from megatune_tuner.surrogate import Scale
from megatune_tuner.surrogate import posterior

SM90 = architecture("sm_90a")


def evidence(tokens: int, count: int, *, failed: int = 0, seed: int = 0) -> Evidence:
    workload = Toy().workload({"n": 1536, "k": 7168}, tokens)
    catalogue = Catalogue(Toy().space(workload, SM90))
    chosen = random.Random(seed).sample(catalogue.configs, count)
    known: dict[Config, float | None] = {config: true_us(workload, config) for config in chosen}
    known |= dict.fromkeys(chosen[:failed])
    return Evidence(workload, catalogue, known)


def expected(own: Evidence, *others: Evidence) -> Posterior:
    return posterior(own, others, np.ones(len(own.catalogue), dtype=bool), Scale())


def truth(own: Evidence) -> np.ndarray:
    return np.log([true_us(own.workload, config) for config in own.catalogue.configs])


def correlation(own: Evidence, *others: Evidence) -> float:
    """Between what is expected and what is true, over the configs that were not measured in the cell."""
    unknown = [index for config, index in own.catalogue.index.items() if config not in own.known]
    return float(np.corrcoef(expected(own, *others).mean[unknown], truth(own)[unknown])[0, 1])


def test_what_was_measured_is_known_and_the_rest_less_well() -> None:
    own = evidence(4, 30)
    found = expected(own)
    indices = [own.catalogue.index[config] for config in own.known]
    order = np.argsort(truth(own)[indices])
    assert (np.diff(found.mean[indices][order]) > -0.02).all()
    unknown = np.setdiff1d(np.arange(len(own.catalogue)), indices)
    assert found.deviation[indices].max() < found.deviation[unknown].min()


def test_more_measurements_and_neighbours_say_more() -> None:
    few, many = evidence(4, 16), evidence(4, 80)
    assert correlation(few) < correlation(many)
    assert correlation(few, evidence(2, 60, seed=1), evidence(8, 60, seed=2)) > correlation(few)
    assert correlation(many) > 0.9


def test_neighbours_alone_are_enough_for_a_start() -> None:
    assert correlation(evidence(4, 0), evidence(2, 60, seed=1), evidence(8, 60, seed=2)) > 0.7


def test_without_any_evidence_nothing_is_preferred() -> None:
    own = evidence(4, 0)
    found = expected(own)
    assert len(set(found.mean.tolist())) == 1
    assert np.allclose(found.deviation, found.deviation[0])


def test_levels_of_cells_do_not_matter() -> None:
    own, other = evidence(4, 20), evidence(8, 40, seed=1)
    slower = Evidence(other.workload, other.catalogue, {c: us and 1000 * us for c, us in other.known.items()})
    one, two = expected(own, other), expected(own, slower)
    assert np.allclose(one.mean, two.mean, atol=1e-6)
    assert np.allclose(one.deviation, two.deviation)


def test_failures_are_expected_to_be_slow() -> None:
    own = evidence(4, 30, failed=5)
    found = expected(own)
    failed = [own.catalogue.index[config] for config, us in own.known.items() if us is None]
    working = [own.catalogue.index[config] for config, us in own.known.items() if us is not None]
    assert found.mean[failed].min() > np.median(found.mean[working])
    everything_failed = Evidence(own.workload, own.catalogue, dict.fromkeys(own.known))
    assert np.isfinite(expected(everything_failed).mean).all()


def test_only_free_and_promising_configs_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "PROMISING", 10)
    own = evidence(4, 30)
    free = np.array([config not in own.known for config in own.catalogue.configs])
    found = posterior(own, [], free, Scale())
    finite = np.isfinite(found.mean)
    assert finite.sum() == 10
    assert free[finite].all()
    assert (found.deviation[finite] > 0).all()
    whole = expected(own)
    assert np.isinf(whole.mean).any()
    monkeypatch.setattr(surrogate, "PROMISING", 400)
    assert np.allclose(posterior(own, [], free, Scale()).mean[finite], found.mean[finite])


def test_variants_with_other_parameters_say_nothing() -> None:
    own = evidence(4, 20)
    workload = Workload("toy", own.workload.dims, 8)
    sizes = Parameter("size", (1, 2, 3), 1, "another axis")
    other = Catalogue(Space((VariantSpace("simt", (sizes,)), VariantSpace("new", (sizes,)))))
    foreign = Evidence(workload, other, {config: 1.0 + math.log(2) for config in other.configs})
    assert np.allclose(expected(own, foreign).mean, expected(own).mean)


def test_the_fastest_count_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "MOST_OWN", 5)
    own = evidence(4, 60)
    best = sorted(own.known, key=lambda config: own.known[config] or 0.0)[:5]
    fewer = Evidence(own.workload, own.catalogue, {config: own.known[config] for config in best})
    assert np.allclose(expected(own).mean, expected(fewer).mean)
