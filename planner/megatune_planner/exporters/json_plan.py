"""The plan itself, with the reader that a runtime embeds beside it."""

from __future__ import annotations

from pathlib import Path

from megatune_planner import reader
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.measured import require_shown
from megatune_planner.plan import Plan

PLAN_FILE = "plan.json"
READER_FILE = "megatune_reader.py"


class JsonPlan(Exporter):
    """``plan.json`` and ``megatune_reader.py``: copy both, import the reader, load the plan."""

    name = "json"
    what = "the plan and a reader of one file, for a runtime that embeds it"

    def files(self, plan: Plan) -> dict[str, str]:
        require_shown(plan, self.name)
        text = plan.to_json()
        # What the embedded reader would refuse is not exported; it raises what the command prints.
        Plan.from_json(text)
        return {PLAN_FILE: text, READER_FILE: Path(reader.__file__).read_text(encoding="utf-8")}
