"""What Streamlit runs, once for every session and interaction.

It does not lie beside the folder ``pages``: Streamlit would take that for pages of its own kind, and tell whoever opens
the first address that there is no such page.
"""

from __future__ import annotations

from megatune_dashboard.app.frame import run

run()
