"""``python -m megatune_dashboard``: the ``megatune`` command without its script on the path."""

from __future__ import annotations

from megatune_dashboard.command import main

main()
