"""What the first page would otherwise wait for: libraries that are loaded, piece by piece, when they are first used."""

from __future__ import annotations

import contextlib
from importlib import import_module

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import IntDistribution
from optuna.study import Study
from optuna.trial import create_trial

from megatune_dashboard.app import latency_chart
from megatune_dashboard.app import running
from megatune_dashboard.app import search_charts
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.outcomes import outcomes_of
from megatune_dashboard.app.people import local_person
from megatune_dashboard.app.source import Source
from megatune_db import queries
from megatune_db.errors import DatabaseError
from megatune_kernels.operator import operators


def warm(source: Source | None = None) -> None:
    """Use once what every page uses.

    :param source: the database, for the answers that the first page asks for.
    """
    # Streamlit imports them with the first table.
    for name in ("pandas", "pyarrow"):
        import_module(name)
    operators()
    running.declared_trials("")
    latency_chart.samples_figure(np.ones(2, np.float32), ()).to_json()
    search_charts.parallel_figure(search_charts.study_of((), "")).to_json()
    search_charts.importances_figure(_study())
    if source is not None:
        # Whatever is wrong with it the page will say.
        with contextlib.suppress(DatabaseError):
            context = Context(source, local_person())
            for row in context.read(queries.campaigns):
                outcomes_of(context, row)


def _study() -> Study:
    """The smallest that says something of two parameters."""
    study = search_charts.study_of((), "")
    axes: dict[str, BaseDistribution] = {name: IntDistribution(0, 3) for name in ("a", "b")}
    study.add_trials(
        create_trial(value=place, params={"a": place % 4, "b": place // 4}, distributions=axes) for place in range(16)
    )
    return study
