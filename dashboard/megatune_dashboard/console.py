"""How commands print: tables for people on stdout, JSON for programs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING
from typing import Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 120
"""Width of tables where stdout is no terminal and nothing says how wide it is."""


def console() -> Console:
    """A console on stdout, as it is at this moment."""
    from rich.console import Console

    return Console(width=shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns, highlight=False)


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, and nothing else."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))
