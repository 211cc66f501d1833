"""``megatune bench``: the figures that Megatune reports of itself."""

from __future__ import annotations

from typing import Annotated
from typing import Any

import typer

from megatune_dashboard.console import console
from megatune_dashboard.console import print_json
from megatune_kernels.figures import benchmark
from megatune_kernels.figures import benchmarks


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; without a name, list them.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the figures of a benchmark on this machine: each with its goal, its provenance and how it was made."""
    if name is None:
        known = [{"name": one.name, "what": one.what} for one in benchmarks().values()]
        if json:
            print_json({"benchmarks": known})
        else:
            _table(["benchmark", "what it reports"], [[one["name"], one["what"]] for one in known])
        return
    report = benchmark(name).report()
    if json:
        print_json(report)
        return
    _table(
        ["figure", "value", "goal", "met", "provenance", "how"],
        [
            [
                figure["figure"],
                "-" if figure["value"] is None else f"{figure['value']:.6g} {figure['unit']}".strip(),
                figure["goal"],
                {True: "yes", False: "no", None: "-"}[figure["met"]],
                figure["provenance"],
                figure["how"],
            ]
            for figure in report["figures"]
        ],
    )


def _table(columns: list[str], rows: list[list[Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)
