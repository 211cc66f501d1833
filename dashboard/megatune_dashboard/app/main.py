"""What Streamlit runs, once for every session and interaction."""

from __future__ import annotations

from megatune_dashboard.app.frame import run

run()
