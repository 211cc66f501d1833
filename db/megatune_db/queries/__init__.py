"""Reading: the named queries. Times are in microseconds a launch unless a name says otherwise.

Each takes a session, returns plain values and is served by an index. Things are named by digest.
"""

from megatune_db.queries._campaigns import CampaignRow
from megatune_db.queries._campaigns import TrialRow
from megatune_db.queries._campaigns import asked_objective
from megatune_db.queries._campaigns import campaign
from megatune_db.queries._campaigns import campaigns
from megatune_db.queries._campaigns import status_counts
from megatune_db.queries._campaigns import trials
from megatune_db.queries._contenders import Contender
from megatune_db.queries._contenders import contenders
from megatune_db.queries._contenders import refuted
from megatune_db.queries._measurements import ArtifactRow
from megatune_db.queries._measurements import ExportRow
from megatune_db.queries._measurements import FinalRow
from megatune_db.queries._measurements import StatusCount
from megatune_db.queries._measurements import TargetRow
from megatune_db.queries._measurements import WorkloadRow
from megatune_db.queries._measurements import artifacts
from megatune_db.queries._measurements import export_rows
from megatune_db.queries._measurements import final_sessions
from megatune_db.queries._measurements import known_measurements
from megatune_db.queries._measurements import measurements
from megatune_db.queries._measurements import samples
from megatune_db.queries._measurements import status_by_workload
from megatune_db.queries._measurements import targets
from megatune_db.queries._measurements import workloads
from megatune_db.queries._outcomes import IncumbentRow
from megatune_db.queries._outcomes import OutcomeRow
from megatune_db.queries._outcomes import incumbents
from megatune_db.queries._outcomes import outcomes
from megatune_db.queries._plans import PlanRow
from megatune_db.queries._plans import PlanSummary
from megatune_db.queries._plans import earlier_plans
from megatune_db.queries._plans import plan
from megatune_db.queries._plans import plan_in_service
from megatune_db.queries._plans import plan_summaries
from megatune_db.queries._plans import plans
from megatune_db.queries._plans import replaced_plan
from megatune_db.queries._priors import PriorRow
from megatune_db.queries._priors import imported_configs
from megatune_db.queries._priors import priors
from megatune_db.queries._queue import TroubledJob
from megatune_db.queries._queue import WorkerRow
from megatune_db.queries._queue import troubled_jobs
from megatune_db.queries._queue import workers
from megatune_db.queries._reviews import CampaignLogRow
from megatune_db.queries._reviews import PlanExportRow
from megatune_db.queries._reviews import ReviewRow
from megatune_db.queries._reviews import campaign_log
from megatune_db.queries._reviews import plan_export
from megatune_db.queries._reviews import plan_exports
from megatune_db.queries._reviews import reviews
from megatune_db.queries._seen import MOST_FAILING
from megatune_db.queries._seen import DatabaseSize
from megatune_db.queries._seen import FailingConfig
from megatune_db.queries._seen import FailureRow
from megatune_db.queries._seen import ParameterPoint
from megatune_db.queries._seen import ShapeRow
from megatune_db.queries._seen import StoredSamples
from megatune_db.queries._seen import WorkloadName
from megatune_db.queries._seen import campaign_names
from megatune_db.queries._seen import campaign_workloads
from megatune_db.queries._seen import failing_configs
from megatune_db.queries._seen import failure_counts
from megatune_db.queries._seen import failures
from megatune_db.queries._seen import measured_shapes
from megatune_db.queries._seen import parameter_curves
from megatune_db.queries._seen import shapes_version
from megatune_db.queries._seen import stored_samples
from megatune_db.queries._seen import table_sizes
from megatune_db.queries._seen import trial_pace_s
from megatune_db.queries._verifications import RepeatRow
from megatune_db.queries._verifications import VerificationRow
from megatune_db.queries._verifications import repeats
from megatune_db.queries._verifications import verifications

__all__ = [
    "MOST_FAILING",
    "ArtifactRow",
    "CampaignLogRow",
    "CampaignRow",
    "Contender",
    "DatabaseSize",
    "ExportRow",
    "FailingConfig",
    "FailureRow",
    "FinalRow",
    "IncumbentRow",
    "OutcomeRow",
    "ParameterPoint",
    "PlanExportRow",
    "PlanRow",
    "PlanSummary",
    "PriorRow",
    "RepeatRow",
    "ReviewRow",
    "ShapeRow",
    "StatusCount",
    "StoredSamples",
    "TargetRow",
    "TrialRow",
    "TroubledJob",
    "VerificationRow",
    "WorkerRow",
    "WorkloadName",
    "WorkloadRow",
    "artifacts",
    "asked_objective",
    "campaign",
    "campaign_log",
    "campaign_names",
    "campaign_workloads",
    "campaigns",
    "contenders",
    "earlier_plans",
    "export_rows",
    "failing_configs",
    "failure_counts",
    "failures",
    "final_sessions",
    "imported_configs",
    "incumbents",
    "known_measurements",
    "measured_shapes",
    "measurements",
    "outcomes",
    "parameter_curves",
    "plan",
    "plan_export",
    "plan_exports",
    "plan_in_service",
    "plan_summaries",
    "plans",
    "priors",
    "refuted",
    "repeats",
    "replaced_plan",
    "reviews",
    "samples",
    "shapes_version",
    "status_by_workload",
    "status_counts",
    "stored_samples",
    "table_sizes",
    "targets",
    "trial_pace_s",
    "trials",
    "troubled_jobs",
    "verifications",
    "workers",
    "workloads",
]
