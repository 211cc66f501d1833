"""Running a campaign: elected in the database, one process coordinates it, and its engine has the jobs measured."""

from __future__ import annotations

from megatune_db.election import TERM_S
from megatune_db.session import Database
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.coordinator import Coordinator
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.local import LocalEngine
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Configs
from megatune_tuner.office import in_office
from megatune_tuner.progress import Progress
from megatune_tuner.runners.base import Runner
from megatune_tuner.stopping import Stop
from megatune_tuner.summary import Summary
from megatune_tuner.transactions import OUTAGE_S
from megatune_tuner.transactions import Transactions


def run_campaign(
    campaign: Campaign,
    bench: Bench,
    database: Database,
    *,
    engine: Engine | None = None,
    builder: Builder | None = None,
    configs: Configs | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    outage_s: float = OUTAGE_S,
    term_s: float = TERM_S,
) -> Summary:
    """Run a campaign, or go on with it; wait while another process does, and take over when that one ends early.

    :param bench: what measures: a runner, unless an engine says how its workers get theirs.
    :param engine: where jobs are measured; by default on the runner, in this process.
    :param builder: builds artifacts; needed when the runner needs them.
    :param configs: the configs of a workload that can be measured, by default every legal one.
    :param stop: ends the campaign after the current measurement.
    :param outage_s: seconds for which the database may be gone.
    :param term_s: seconds without a sign of life after which another process takes over.
    :raises MegatuneError: for a space or a restriction that makes no sense on the runner's target, or a runner that
        cannot measure.
    :raises NothingMeasured: when nothing that was measured works.
    :raises DatabaseError: when another process runs another campaign in this file, or the database cannot be written.
    """
    progress, stop = progress or Progress(), stop or Stop()
    if engine is None:
        assert isinstance(bench, Runner), "an engine is needed where no runner is given"
        engine = LocalEngine(bench)
    transactions = Transactions(database, outage_s=outage_s, note=progress.note)
    with in_office(transactions, campaign, progress, stop, term_s=term_s):
        coordinator = Coordinator(campaign, bench, transactions, engine, builder, configs, progress, stop)
        return coordinator.run()
