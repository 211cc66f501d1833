"""The samples behind one measurement, and how they were taken."""

from __future__ import annotations

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from megatune_dashboard.app import charts
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.latency_chart import samples_figure
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.text import plain
from megatune_db import queries
from megatune_db.records import Status


def samples_of(context: Context, measurement_id: int) -> None:
    """The samples of a measurement in their order, with what is known of how they were taken."""
    found = context.read(queries.stored_samples, measurement_id)
    if found is None:
        st.info(f"There is no measurement {measurement_id} any more.")
        return
    if found.status is not Status.OK:
        st.warning(f"It ended {found.status}: {plain(found.reason)}")
        return
    finite = np.isfinite(found.samples)
    if not finite.all():
        st.warning(f"{int((~finite).sum())} of {len(finite)} samples are no finite number of µs and are left out.")
    samples = found.samples[finite]
    if not len(samples):
        st.info("The measurement has no samples.")
        return
    clock = "" if found.sm_clock_mhz is None else f", SM clock {found.sm_clock_mhz} MHz"
    st.markdown(
        f"**{np.median(samples):.3f} µs**, the median of {len(samples)} samples from {samples.min():.3f} to "
        f"{samples.max():.3f} µs{clock}"
    )
    flags = [flag for flag, kept in zip(found.throttled, finite, strict=False) if kept]
    charts.show(samples_figure(samples, flags), "samples-chart")
    if len(samples) > charts.MOST_POINTS:
        st.caption(f"Of {len(samples)} samples the chart shows every {-(-len(samples) // charts.MOST_POINTS)}th.")
    st.caption(
        f"A sample is {found.launches_a_sample} launches; stage {found.stage}, {found.provenance}, regime "
        f"{plain(found.regime)}, measured {found.measured_at:%Y-%m-%d %H:%M:%S} UTC in session {plain(found.session)}."
    )
    folded_table("As a table", "samples", lambda: _rows(samples), empty="")


def _rows(samples: NDArray[np.float32]) -> list[dict[str, float]]:
    return [{"sample": place, "µs": float(us)} for place, us in enumerate(samples, 1)]
