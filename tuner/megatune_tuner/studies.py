"""Optuna's studies as a view of the database: one a (campaign, workload), rebuilt from its trials.

While a cell searches, its study is in memory: writing to Optuna's own tables takes milliseconds a trial, and would only
say again what is committed already. They are written when a campaign ends, with the real values of the parameters, so
that Optuna's tools can show them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from optuna.trial import create_trial

from megatune_db import queries
from megatune_db.queries import TrialRow
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_kernels.operator import Workload
from megatune_kernels.space import Space
from megatune_tuner.sampling import VARIANT


def study_name(campaign: str, workload: Workload) -> str:
    return f"{campaign}/{workload}"


def study_trials(rows: Sequence[TrialRow], space: Space) -> list[FrozenTrial]:
    """The trials of a study from those of a campaign: every config of the space that was measured to search.

    The value is in microseconds; a config that did not work is failed, with its status as an attribute. Reused
    measurements count.
    """
    searched = {row.config: row for row in rows if row.stage is Stage.SEARCH and row.variant in space.by_variant}
    names = [variant.variant for variant in space.variants]
    values: dict[str, dict[Any, None]] = {
        f"{variant.variant}.{parameter.name}": dict.fromkeys(parameter.values)
        for variant in space.variants
        for parameter in variant.parameters
    }
    params_of = {}
    for row in searched.values():
        params_of[row.config] = {f"{row.variant}.{name}": value for name, value in row.params.items()}
        for name, value in params_of[row.config].items():
            values.setdefault(name, {})[value] = None
    axes: dict[str, BaseDistribution] = {name: CategoricalDistribution(list(known)) for name, known in values.items()}
    axes[VARIANT] = CategoricalDistribution(names)
    found = []
    for row in searched.values():
        params = {VARIANT: row.variant, **params_of[row.config]}
        works = row.status is Status.OK
        found.append(
            create_trial(
                state=TrialState.COMPLETE if works else TrialState.FAIL,
                value=row.median_us if works else None,
                params=params,
                distributions={name: axes[name] for name in params},
                user_attrs={} if works else {"status": str(row.status)},
            )
        )
    return found


def write_study(storage: BaseStorage, name: str, trials: Sequence[FrozenTrial]) -> Study:
    """The study of that name with these trials and no others."""
    with contextlib.suppress(KeyError):
        storage.delete_study(storage.get_study_id_from_name(name))
    study = optuna.create_study(study_name=name, storage=storage, direction="minimize")
    study.add_trials(trials)
    return study


def write_studies(database: Database, campaign: str, spaces: Mapping[Workload, Space]) -> int:
    """Write the study of each workload of a campaign, rebuilt from its trials, and return how many.

    This takes some 5 ms a trial.

    :param campaign: name.
    :raises DatabaseError: when another version of Optuna wrote the studies that are there, or nothing can be written.
    """
    with database.session() as session:
        row = queries.campaign(session, campaign)
        found = queries.trials(session, row.id) if row is not None else []
    by_workload: dict[str, list[TrialRow]] = {}
    for trial in found:
        by_workload.setdefault(trial.workload, []).append(trial)
    storage = database.optuna_storage()
    for workload, space in spaces.items():
        if workload.digest in by_workload:
            trials = study_trials(by_workload[workload.digest], space)
            write_study(storage, study_name(campaign, workload), trials)
    return len(by_workload)
