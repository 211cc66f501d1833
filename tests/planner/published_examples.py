"""What the planner says of every published figure that comes with Megatune, as one text."""

from __future__ import annotations

from megatune_planner.published.answers import answer
from megatune_planner.published.documents import shipped_entries
from megatune_planner.published.rendering import published_lines


def published_answers() -> str:
    """The answers, entry by entry; it is kept in tests/golden/published/answers.txt."""
    lines = [line for entry in shipped_entries() for line in published_lines(answer(entry))]
    return "\n".join(lines) + "\n"
