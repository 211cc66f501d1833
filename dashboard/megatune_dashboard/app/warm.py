"""What the first page would otherwise wait for: libraries that are loaded, piece by piece, when they are first used."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from megatune_dashboard.app import latency_chart
from megatune_dashboard.app import running
from megatune_dashboard.app import search_charts
from megatune_kernels.operator import operators


def warm() -> None:
    """Use once what every page uses."""
    # Streamlit imports them with the first table.
    for name in ("pandas", "pyarrow"):
        import_module(name)
    operators()
    running.declared_trials("")
    latency_chart.samples_figure(np.ones(2, np.float32), ()).to_json()
    search_charts.parallel_figure(search_charts.study_of((), "")).to_json()
