"""What proposes configs: Optuna samplers whose every proposal is legal and new.

Optuna's own samplers know neither constraints between parameters nor that a space is finite: left alone they spend
trials on configs that cannot run, or that were measured already. Nor do they see what other cells have found. Of the
samplers here, ``SnappingSampler`` moves the proposals of one of Optuna's to the nearest legal config that is free, and
``ModelSampler`` chooses among the free ones with a model over neighbouring cells.

In a study, a config is the categorical parameter ``variant`` and for each parameter of that variant an integer
parameter ``variant.parameter``: the rank of its value among the parameter's values. Ranks tell a sampler the order of
the values; on recorded spaces it finds better configs with them than with categories.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from typing import Literal

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import IntDistribution
from optuna.samplers import BaseSampler
from optuna.samplers import GPSampler
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from optuna.trial import Trial
from optuna.trial import TrialState

from megatune_kernels.errors import MegatuneError
from megatune_tuner.candidates import Catalogue
from megatune_tuner.surrogate import Evidence
from megatune_tuner.surrogate import Posterior
from megatune_tuner.surrogate import Scale
from megatune_tuner.surrogate import posterior

Kind = Literal["model", "tpe", "gp", "random"]
VARIANT = "variant"

EXPLORE = 0.2
"""Share of the posterior's deviation in a draw; on recorded spaces 0.1 to 0.3 do equally well, and 0.7 clearly less."""
DOUBT = 0.3
"""Standard deviation of the logarithm of the factors on what the model assumes."""
FEWEST_KNOWN = 4
"""Measurements below which the model is not asked."""

# A line for every study would bury what a person wants to see.
optuna.logging.set_verbosity(optuna.logging.WARNING)


class Encoding:
    """Between the configs of a catalogue, by index, and the parameters of a study's trials.

    :param conditional: whether a trial has the parameters of its own variant only, as a config does. Otherwise it has
        those of every variant, the others' at rank 0: some samplers see only trials that have all parameters.
    """

    def __init__(self, catalogue: Catalogue, *, conditional: bool = True) -> None:
        self.catalogue = catalogue
        self.conditional = conditional
        self.variant = CategoricalDistribution([group.name for group in catalogue.groups])
        self.axes: list[dict[str, BaseDistribution]] = [
            {f"{group.name}.{p.name}": IntDistribution(0, len(p.values) - 1) for p in group.variant.parameters}
            for group in catalogue.groups
        ]
        self.every: dict[str, BaseDistribution] = {VARIANT: self.variant}
        for axes in self.axes:
            self.every |= axes

    def params(self, index: int) -> dict[str, Any]:
        number = self.catalogue.group_of[index]
        group = self.catalogue.groups[number]
        ranks = group.ranks[index - group.first].tolist()
        inactive = {} if self.conditional else dict.fromkeys(self.every, 0)
        return inactive | {VARIANT: group.name} | dict(zip(self.axes[number], ranks, strict=True))

    def distributions(self, index: int) -> dict[str, BaseDistribution]:
        if not self.conditional:
            return self.every
        return {VARIANT: self.variant} | self.axes[self.catalogue.group_of[index]]

    def suggest(self, trial: Trial) -> None:
        """Have the trial take up the parameters of one config."""
        number = self.variant.choices.index(trial.suggest_categorical(VARIANT, self.variant.choices))
        for name, axis in (self.axes[number] if self.conditional else self.every).items():
            if isinstance(axis, IntDistribution):
                trial.suggest_int(name, axis.low, axis.high)


class LegalSampler(BaseSampler):
    """Proposes configs that are legal and free: this one at random, each as likely as the next.

    A config is free until it is proposed, or taken with ``take``.
    """

    def __init__(self, encoding: Encoding, seed: int) -> None:
        self._encoding = encoding
        self._groups = encoding.catalogue.groups
        self._rng = np.random.default_rng(seed)
        self._free: NDArray[np.bool_] = np.ones(len(encoding.catalogue), dtype=bool)
        self.proposed: int = -1
        """Index of the latest proposal."""

    def free(self) -> int:
        """How many configs are free."""
        return int(self._free.sum())

    def is_free(self, index: int) -> bool:
        return bool(self._free[index])

    def take(self, index: int) -> None:
        """Never propose this config."""
        self._free[index] = False

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._encoding.every

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not self._free.any():
            raise LookupError("every config is taken: ask only while some are free")
        self.proposed = self._propose(study, trial)
        self.take(self.proposed)
        return self._encoding.params(self.proposed)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise LookupError(f"{param_name} is not a parameter of the space")

    def reseed_rng(self) -> None:
        self._rng = np.random.default_rng()

    def reseed(self, seed: int) -> None:
        """Draw from this seed on, and from nothing else that went before."""
        self._rng = np.random.default_rng(seed)

    def _propose(self, study: Study, trial: FrozenTrial) -> int:
        """Index of a free config."""
        return int(self._rng.choice(np.flatnonzero(self._free)))

    def _any_variant(self) -> int:
        """A variant that has a free config, each as likely as the next."""
        return int(self._rng.choice([number for number in range(len(self._groups)) if self._free_of(number).any()]))

    def _any_of(self, number: int) -> int:
        """A free config of that variant."""
        return self._groups[number].first + int(self._rng.choice(np.flatnonzero(self._free_of(number))))

    def _free_of(self, number: int) -> NDArray[np.bool_]:
        group = self._groups[number]
        return self._free[group.first : group.first + len(group.ranks)]


class ModelSampler(LegalSampler):
    """Proposes what a model of the cell and its neighbours expects to be fast, or knows too little of.

    Each proposal is the least of one draw from the model's posterior (Thompson sampling), with less than its whole
    deviation: a budget of some thirty configs is for finding a good one, not for learning the space. The model's
    assumptions vary from turn to turn, so that a wrong one cannot rule a config out for good.

    :param evidence: what is known of the cell itself, and of its neighbours.
    """

    def __init__(self, encoding: Encoding, evidence: Callable[[], Sequence[Evidence]], seed: int) -> None:
        super().__init__(encoding, seed)
        self._evidence = evidence
        self._known: tuple[int, ...] = ()
        self._posterior: Posterior | None = None

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self._known = ()
        self._posterior = None

    def _propose(self, study: Study, trial: FrozenTrial) -> int:
        evidence = self._evidence()
        known = tuple(len(each.known) for each in evidence)
        if known != self._known:
            self._known = known
            self._posterior = None
            if sum(known) >= FEWEST_KNOWN:
                lengths = np.exp(self._rng.normal(0.0, DOUBT, 4)).tolist()
                self._posterior = posterior(evidence[0], evidence[1:], self._free, Scale(*lengths))
        if self._posterior is None:
            return self._any_of(self._any_variant())
        drawn = self._rng.standard_normal(len(self._free))
        expected = self._posterior.mean + EXPLORE * self._posterior.deviation * drawn
        expected[~self._free] = np.inf
        best = int(expected.argmin())
        return best if np.isfinite(expected[best]) else self._any_of(self._any_variant())


class SnappingSampler(LegalSampler):
    """Moves each proposal of one of Optuna's samplers to the nearest legal config that is free.

    Of the inner sampler only ``sample_relative`` is used: first for the variant, then for its parameters. While it
    proposes nothing, because it has seen too little, a config is drawn at random, each variant as likely as the next.
    """

    def __init__(self, encoding: Encoding, inner: Callable[[int], BaseSampler], seed: int) -> None:
        super().__init__(encoding, seed)
        self._make = inner
        self._inner = inner(seed)

    def reseed_rng(self) -> None:
        super().reseed_rng()
        self._inner.reseed_rng()

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        # What Optuna's samplers keep beside their generator is not to be seen.
        self._inner = self._make(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def _propose(self, study: Study, trial: FrozenTrial) -> int:
        wanted: dict[str, Any] = {}
        if not self._encoding.conditional:
            wanted = self._inner.sample_relative(study, trial, _open(self._encoding.every))
        number = self._variant(study, trial, wanted)
        axes = self._encoding.axes[number]
        if self._encoding.conditional:
            wanted = self._inner.sample_relative(study, trial, _open(axes))
        if not wanted:
            return self._any_of(number)
        group = self._groups[number]
        ranks = np.array([wanted.get(name, 0) for name in axes], dtype=np.int16)
        steps = np.abs(group.ranks - ranks).sum(axis=1)
        steps[~self._free_of(number)] = np.iinfo(steps.dtype).max
        return group.first + int(steps.argmin())

    def _variant(self, study: Study, trial: FrozenTrial, wanted: dict[str, Any]) -> int:
        """The proposed variant, or a random one when that has no free config or none is proposed."""
        if self._encoding.conditional and len(self._groups) > 1:
            wanted = self._inner.sample_relative(study, trial, {VARIANT: self._encoding.variant})
        if VARIANT in wanted:
            number = self._encoding.variant.choices.index(wanted[VARIANT])
            if self._free_of(number).any():
                return number
        return self._any_variant()


def _open(space: dict[str, BaseDistribution]) -> dict[str, BaseDistribution]:
    """The parameters that leave something to choose: inner samplers are never given others."""
    return {name: distribution for name, distribution in space.items() if not distribution.single()}


def legal_sampler(
    catalogue: Catalogue, kind: Kind, seed: int, evidence: Callable[[], Sequence[Evidence]]
) -> tuple[Encoding, LegalSampler]:
    """A sampler for one cell, and how it writes configs down.

    :param evidence: what is known of the cell itself, and of its neighbours; only ``model`` asks.
    :raises MegatuneError: when ``gp`` is asked for and torch or scipy is not installed.
    """
    encoding = Encoding(catalogue, conditional=kind != "gp")
    if kind == "random":
        return encoding, LegalSampler(encoding, seed)
    if kind == "model":
        return encoding, ModelSampler(encoding, evidence, seed)
    if kind == "gp" and (importlib.util.find_spec("torch") is None or importlib.util.find_spec("scipy") is None):
        raise MegatuneError('the sampler "gp" needs torch and scipy: pip install torch scipy, or use "model"')
    return encoding, SnappingSampler(encoding, _gp if kind == "gp" else _tpe, seed)


def _gp(seed: int) -> BaseSampler:
    with _without_warnings():
        return GPSampler(seed=seed)


def _tpe(seed: int) -> BaseSampler:
    with _without_warnings():
        return TPESampler(multivariate=True, constant_liar=True, seed=seed)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Some of the options are experimental in the older of the supported versions of Optuna, and stable since."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
