"""One cell of a running campaign: its search, its baselines and its finalists, as the database knows them."""

from __future__ import annotations

from collections.abc import Sequence

from megatune_db.queries import TrialRow
from megatune_db.records import TrialState
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.finals import finalists
from megatune_tuner.ledger import BASELINE
from megatune_tuner.ledger import CROSSOVER
from megatune_tuner.ledger import FINALIST
from megatune_tuner.ledger import INCUMBENT
from megatune_tuner.ledger import KNOWN
from megatune_tuner.ledger import Ledger
from megatune_tuner.reasons import PRIOR
from megatune_tuner.reasons import SHARED


class CellRun:
    """A cell as the database's rows make it: made anew from them, a killed campaign goes on where it was.

    What any campaign measured of this workload on this target is told to the search and costs no trial; what this
    campaign measured counts as its trials.

    :param winners: the only configs to measure; None: search.
    """

    def __init__(
        self,
        campaign: Campaign,
        workload: Workload,
        space: Space,
        catalogue: Catalogue,
        ledger: Ledger,
        winners: Sequence[Config] | None = None,
    ) -> None:
        self.workload = workload
        self.space = space
        self.finalists = campaign.budget.finalists
        self.shared: list[Config] = []
        """Finalists at any routing of the same shape and tokens, where plans choose over routings."""
        self._curve_of = operator(workload.operator).curve_of
        history = ledger.trials(workload)
        known = ledger.known(workload)
        # What is not known any more was measured of other kernels, or on another target.
        mine = [
            row
            for row in history
            if row.state is TrialState.DONE and row.reason not in (BASELINE, FINALIST, KNOWN) and row.config in known
        ]
        self.last_number = max((row.number for row in history), default=0)
        self._finals_at = max((row.number for row in history if row.reason == FINALIST), default=-1)
        self.cell = Cell(
            workload,
            catalogue,
            trials=campaign.budget.trials,
            kind=campaign.sampler.kind,
            seed=campaign.sampler.seed,
            patience=campaign.budget.patience,
        )
        self.cell.spent = len({row.config for row in mine if row.reason != SHARED})
        order = dict.fromkeys(row.config for row in mine) | dict.fromkeys(known)
        for known_digest in order:
            index = catalogue.by_digest.get(known_digest)
            if index is not None:
                self.cell.learn(catalogue.configs[index], known[known_digest].median_us)
        # What this campaign found itself before it was killed is no incumbent.
        own = {row.config for row in mine if row.reason not in (INCUMBENT, PRIOR)}
        best = ledger.incumbents(workload)
        self.incumbents = [config for config in best if config.digest not in own and not space.violations(config)]
        for config in self.incumbents:
            self.cell.enqueue(config, INCUMBENT)
        # Half of the trials at most: what others found is for their hardware and their kernels.
        most = None if campaign.budget.trials is None else max(1, campaign.budget.trials // 2)
        self.cell.enqueue_first(ledger.priors(workload)[:most], PRIOR)
        if winners is not None:
            self.cell.limit(winners, CROSSOVER)
        named = [Config.of(name, {}) for name in operator(workload.operator).baselines]
        self.baselines = {config: known[config.digest].median_us for config in named if config.digest in known}
        self._baselines_left = [config for config in named if config not in self.baselines]
        counted = {row.config for row in history if row.state is TrialState.DONE}
        reused = [config for config in (*self.baselines, *self.contenders()) if config.digest not in counted]
        if reused:
            ledger.reused(workload, space, [(config, known[config.digest]) for config in reused])
        self.reused = len(reused)
        self.taken: dict[tuple[int, str, str], TrialRow] = {}
        """What an earlier process took up on this way, by number, digest of the config and reason."""
        self.jobs = ledger.jobs(workload)
        """Id and state of what is in the queue, or was, by stage and number."""
        if ledger.goes_on:
            self._go_on(ledger.way(workload))

    def _go_on(self, way: Sequence[TrialRow]) -> None:
        proposed = [row for row in way if row.reason not in (BASELINE, FINALIST, KNOWN)]
        self.cell.recall([(Config.of(row.variant, row.params), row.reason) for row in proposed])
        self.taken = {(row.number, row.config, row.reason): row for row in way}

    def take_baselines(self) -> list[Config]:
        """The baselines that are still to be measured, once."""
        left, self._baselines_left = self._baselines_left, []
        return left

    def number(self) -> int:
        """The next trial's number."""
        self.last_number += 1
        return self.last_number

    @property
    def needs_finals(self) -> bool:
        """Whether anything was measured since the finalists were, and there is something to compare."""
        return self.finalists > 0 and self._finals_at < self.last_number and self.cell.best_us is not None

    @property
    def most_finals(self) -> int:
        """How many the finals are at most, baselines included; 0 without any."""
        if self.shared:
            # The best of its own are among them.
            return len(self.shared) + len(self.baselines) if self.finalists else 0
        values = (p.values for variant in self.space.variants for p in variant.parameters if p.name == self._curve_of)
        firsts = len(self.space.variants) + sum(len(each) - 1 for each in values)
        others = firsts - 1 + len(self.incumbents[:1]) + len(self.baselines)
        return self.finalists + others if self.finalists else 0

    def finals_taken(self) -> int:
        """The number under which the finalists are kept: that of the last trial that they decide about."""
        self._finals_at = self.last_number
        return self.last_number

    def contenders(self) -> list[Config]:
        """The configs for the final: the best few, the best of each variant, then the incumbent and what is shared
        where it works."""
        ranked = self.cell.ranked()
        others = [config for config in (*self.incumbents[:1], *self.shared) if config in ranked]
        return list(dict.fromkeys([*finalists(ranked, self.finalists, self._curve_of), *others]))

    def share(self, configs: Sequence[Config]) -> int:
        """Measure these too, and nothing else from now on, and have them among the finalists; returns how many are
        left to be measured."""
        self.shared = list(configs)
        before = self.cell.spent
        self.cell.limit(configs, SHARED)
        return (self.cell.trials or before) - before

    def working_baselines(self) -> list[Config]:
        return [config for config, us in self.baselines.items() if us is not None]
