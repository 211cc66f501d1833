"""A database with a plan in service and a draft that would replace it, and strange ones beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plan_examples import example_cases
from plan_examples import fill

from megatune_db import reviews
from megatune_db import store
from megatune_db.reviews import By
from megatune_db.session import open_database
from megatune_planner.drafting import draft_plan
from megatune_planner.drafting import keep_draft
from megatune_planner.exporters.base import exporter
from megatune_planner.planning import Options
from megatune_planner.reviewing import export_plan

ANA = By("ana@example.org", "as measured on node 7")
MARKUP = "<script>alert(1)</script> **bold** $x$ [link](https://example.org) `code` :red[red] | _it_"
"""What somebody could call a plan."""


@dataclass(frozen=True)
class Example:
    """Digests of what is in the database."""

    path: Path
    serving: str
    draft: str


def make(path: Path) -> Example:
    """A plan that was approved and exported by Ana, and its successor."""
    with open_database(path) as database, database.session() as session:
        fill(session, example_cases())
        first = draft_plan(session, name="kimi", options=Options(min_gain=0.2))
        keep_draft(session, first)
        reviews.approve(session, first.digest, ANA)
        export_plan(session, first, exporter("json"), ANA)
        second = draft_plan(session, name="kimi", parent=first.digest)
        keep_draft(session, second)
    return Example(path, first.digest, second.digest)


def add_strange(example: Example) -> None:
    """Plans that no page may stumble over: named with markup, of another schema, and none at all."""
    with open_database(example.path) as database, database.session() as session:
        hostile = draft_plan(session, name=MARKUP, options=Options(min_gain=0.05))
        keep_draft(session, hostile)
        reviews.approve(session, hostile.digest, By(MARKUP, f"{MARKUP}\n=HYPERLINK(1)"))
        target, text = hostile.content.target.digest, hostile.to_json()
        newer = text.replace('"schema_version":3', '"schema_version":99')
        assert newer != text
        store.put_plan(session, digest="newer", name="of another schema", content=newer, target=target)
        store.put_plan(session, digest="torn", name="", content='{"bands":[', target=target)
