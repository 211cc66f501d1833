"""One cell of a campaign: the search for the best config of one workload. No database, no runner."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import optuna
from optuna.study import Study
from optuna.trial import Trial
from optuna.trial import TrialState
from optuna.trial import create_trial

from megatune_kernels.canonical import digest
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.candidates import Catalogue
from megatune_tuner.sampling import Kind
from megatune_tuner.sampling import legal_sampler
from megatune_tuner.surrogate import Evidence

BETTER = 0.99
"""A config that takes at most this share of the best's time counts as progress: less is within the noise."""


def cell_seed(seed: int, workload: Workload, spent: int = 0) -> int:
    """The seed of a cell's sampler in a campaign of that seed, when the cell has spent so many trials."""
    return int(digest([seed, workload.digest, spent]), 16) % 2**31


@dataclass(frozen=True)
class Proposal:
    """A config to measure, and who proposed it: ``prior``, ``default``, ``incumbent``, ``neighbour``, ``sampler`` or,
    where two variants cross, ``crossover``."""

    config: Config
    reason: str
    trial: Trial = field(repr=False, compare=False)


class Cell:
    """Ask and tell for one workload.

    Every config is proposed at most once, and what is known already is never proposed. Queued configs come before the
    sampler's.

    :param trials: proposals to make; None: until the space is exhausted.
    :param patience: end after so many proposals of the sampler in a row without progress; None: never.
    """

    def __init__(
        self,
        workload: Workload,
        catalogue: Catalogue,
        *,
        trials: int | None,
        kind: Kind = "model",
        seed: int = 0,
        patience: int | None = None,
    ) -> None:
        self.workload = workload
        self.catalogue = catalogue
        self.trials = trials
        self.spent = 0
        self.known: dict[Config, float | None] = {}
        """Microseconds of every config that is known here; None: it failed."""
        self._seed = seed
        self._patience = patience
        self._without_progress = 0
        self._recorded: deque[tuple[int, str]] = deque()
        self._queue: deque[tuple[int, str]] = deque()
        self.neighbours: Sequence[Cell] = ()
        """Cells of the same operator and dims whose measurements say something of this one."""
        self._encoding, self._sampler = legal_sampler(catalogue, kind, seed, self._evidence)
        self.study: Study = optuna.create_study(direction="minimize", sampler=self._sampler)
        for index in catalogue.defaults():
            self._queue.append((index, "default"))

    @property
    def done(self) -> bool:
        """Whether there is nothing left to propose."""
        if self.trials is not None and self.spent >= self.trials:
            return True
        if self._patience is not None and self._without_progress >= self._patience:
            return True
        return self._sampler.free() == 0

    def learn(self, config: Config, us: float | None) -> None:
        """Take in a measurement from elsewhere; it costs no trial. Baselines and illegal configs are ignored."""
        index = self.catalogue.index.get(config)
        if index is None or config in self.known:
            return
        self._sampler.take(index)
        self.known[config] = us
        params, distributions = self._encoding.params(index), self._encoding.distributions(index)
        state = TrialState.FAIL if us is None else TrialState.COMPLETE
        self.study.add_trial(create_trial(state=state, value=us, params=params, distributions=distributions))

    def enqueue_first(self, configs: Sequence[Config], reason: str) -> None:
        """Propose the legal configs nearest to these before anything else, unless they were proposed or are known."""
        found = dict.fromkeys(self.catalogue.nearest(config) for config in configs)
        chosen = [index for index in found if index is not None and self._sampler.is_free(index)]
        rest = [(index, why) for index, why in self._queue if index not in chosen]
        self._queue = deque([*((index, reason) for index in chosen), *rest])

    def enqueue(self, config: Config, reason: str) -> None:
        """Propose the legal config nearest to this one soon, unless it was proposed or is known."""
        index = self.catalogue.nearest(config)
        if index is not None and self._sampler.is_free(index) and all(index != queued for queued, _ in self._queue):
            self._queue.append((index, reason))

    def forget(self, reason: str) -> None:
        """Drop what was enqueued for that reason and not proposed yet."""
        self._queue = deque((index, why) for index, why in self._queue if why != reason)

    def limit(self, configs: Sequence[Config], reason: str) -> None:
        """Propose nothing but these from now on, those of them that are neither proposed nor known."""
        self._queue.clear()
        self._without_progress = 0
        for config in configs:
            self.enqueue(config, reason)
        self.trials = self.spent + len(self._queue)

    def recall(self, proposals: Sequence[tuple[Config, str]]) -> None:
        """What this cell proposed before its process was killed, in order: it proposes the same again.

        With a seed for each turn, what follows is then what would have followed.
        """
        self._recorded = deque((self.catalogue.index[c], why) for c, why in proposals if c in self.catalogue.index)

    def begin_turn(self) -> None:
        """The next proposals follow from what is known by now, the seed and how many came before, and nothing else."""
        self._sampler.reseed(cell_seed(self._seed, self.workload, self.spent))

    def ask(self) -> Proposal | None:
        """The next config to measure; None when there is nothing left to propose."""
        if self.done:
            return None
        self.spent += 1
        for waiting in (self._recorded, self._queue):
            while waiting:
                index, reason = waiting.popleft()
                if self._sampler.is_free(index):
                    self._sampler.take(index)
                    self.study.enqueue_trial(self._encoding.params(index))
                    trial = self.study.ask()
                    self._encoding.suggest(trial)
                    return Proposal(self.catalogue.configs[index], reason, trial)
        trial = self.study.ask()
        self._encoding.suggest(trial)
        return Proposal(self.catalogue.configs[self._sampler.proposed], "sampler", trial)

    def tell(self, proposal: Proposal, us: float | None) -> None:
        """What measuring gave: microseconds, or None for a config that failed."""
        best = self.best_us
        self.known[proposal.config] = us
        if us is None:
            self.study.tell(proposal.trial, state=TrialState.FAIL)
        else:
            self.study.tell(proposal.trial, us)
        if us is not None and (best is None or us <= BETTER * best):
            self._without_progress = 0
        elif proposal.reason == "sampler":
            self._without_progress += 1

    def drop(self, proposal: Proposal) -> None:
        """Nothing is known of the config and nobody is to blame: it is not proposed again, and says nothing."""
        self.study.tell(proposal.trial, state=TrialState.FAIL)

    def _evidence(self) -> list[Evidence]:
        return [Evidence(cell.workload, cell.catalogue, cell.known) for cell in (self, *self.neighbours)]

    @property
    def best_us(self) -> float | None:
        """The fastest known time in microseconds."""
        return min((us for us in self.known.values() if us is not None), default=None)

    def ranked(self) -> list[Config]:
        """The configs that work, the fastest first."""
        working = [(us, number, config) for number, (config, us) in enumerate(self.known.items()) if us is not None]
        return [config for _, _, config in sorted(working, key=lambda entry: entry[:2])]
