"""The commands ``plan``, ``show`` and ``export``, for the one ``megatune`` command to compose.

What they need is imported when they run: ``megatune --help`` should not wait for a database library.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_kernels.errors import MegatuneError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from megatune_db.records import Provenance
    from megatune_planner.plan import Plan

app = typer.Typer(help="Turn measurements into plans.", add_completion=False)

PIPE_COLUMNS = 120
"""Width of tables where stdout is no terminal and nothing says how wide it is."""

DatabaseOption = Annotated[
    Path, typer.Option("--db", envvar="MEGATUNE_DB", dir_okay=False, help="The database with the measurements.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or a plan's name or digest in --db.")]
DEFAULT_DATABASE = Path("megatune.db")


@app.command(epilog="Example: megatune plan --db tuned.db --name kimi-k3-tp8 --out plan.json")
def plan(
    db: DatabaseOption = DEFAULT_DATABASE,
    target: Annotated[
        str | None, typer.Option(help="Digest of the target; needed where the database has several.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the plan.")] = "plan",
    regime: Annotated[str, typer.Option(help="Conditions of the measurements, weights and execution.")] = "cold-graph",
    provenance: Annotated[
        list[str] | None,
        typer.Option(help="What counts as evidence, the most trusted first; by default measured, then replayed."),
    ] = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="Plan these operators alone; by default every registered one.")
    ] = None,
    min_gain: Annotated[float, typer.Option(help="Share of the baseline's time that a config must save.")] = 0.01,
    config_cost_us: Annotated[
        float, typer.Option(help="Microseconds of expected latency that each further config must save.")
    ] = 0.01,
    traffic: Annotated[
        str | None, typer.Option(help="Weight of a step by its tokens, e.g. 1:5,8:2,64:1; by default all the same.")
    ] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="The plan that serves today: its configs win ties. A file, name or digest.")
    ] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="File for the plan; by default NAME.json.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a plan from the measurements, keep it as a draft, and write it as JSON."""
    from megatune_db.session import open_database
    from megatune_planner.drafting import draft_plan
    from megatune_planner.drafting import keep_draft
    from megatune_planner.exporters.base import write
    from megatune_planner.planning import EVIDENCE
    from megatune_planner.planning import Options

    path = Path(f"{_file_name(name)}.json") if out is None else out
    options = Options(min_gain=min_gain, config_cost_us=config_cost_us, traffic=_traffic(traffic))
    with open_database(db, create=False) as database, database.session() as session:
        made = draft_plan(
            session,
            name=name,
            target=target,
            regime=_regime(regime),
            only_operators=operator or (),
            provenances=_provenances(provenance) or EVIDENCE,
            options=options,
            incumbent=(_from_file(incumbent) or _from_database(incumbent, session)[0]) if incumbent else None,
        )
        # The file comes first: a plan that could not be written is not kept either.
        write({path.name: made.to_json()}, path.parent)
        keep_draft(session, made)
    if as_json:
        _print_json(_summary(made) | {"file": str(path)})
    else:
        _print(made)
        typer.echo(f"\nwritten to {path}, kept in {db}: megatune show {path}")


@app.command(epilog="Example: megatune show plan.json")
def show(plan: PlanArgument, db: DatabaseOption = DEFAULT_DATABASE, as_json: JsonOption = False) -> None:
    """Print a plan: its bands, gains, crossovers and fallback rules."""
    found, _ = _find(plan, db)
    if as_json:
        typer.echo(found.to_json(), nl=False)
    else:
        _print(found)


@app.command(epilog="Example: megatune export plan.json --to json --out serving/")
def export(
    plan: PlanArgument,
    to: Annotated[str, typer.Option("--to", metavar="EXPORTER", help="What to write: json, vllm-low-latency-table, …")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Directory for the files; made when it is missing.")],
    db: DatabaseOption = DEFAULT_DATABASE,
    as_json: JsonOption = False,
) -> None:
    """Write a plan as what a target runtime reads. Nothing is written unless all of it is valid."""
    from megatune_planner.exporters.base import exporter
    from megatune_planner.exporters.base import write

    chosen = exporter(to)
    found, state = _find(plan, db)
    checked = chosen.check_runtime()
    paths = write(chosen.files(found), out)
    if state == "approved":
        _mark_exported(found, db)
    if as_json:
        files = [str(path) for path in paths]
        _print_json({"plan": found.digest, "exporter": chosen.name, "files": files, "runtime": checked, "state": state})
        return
    for path in paths:
        typer.echo(path)
    if checked:
        typer.echo(checked, err=True)
    if state == "draft":
        typer.echo("the plan is a draft that nobody approved yet", err=True)


def _find(plan: str, db: Path) -> tuple[Plan, str | None]:
    """The plan, and its state where it comes from the database."""
    from megatune_db.session import open_database

    found = _from_file(plan)
    if found is not None:
        return found, None
    if not db.exists():
        raise MegatuneError(f"there is no file {plan}, and no database {db} that could hold a plan of that name")
    with open_database(db, read_only=True) as database, database.session() as session:
        return _from_database(plan, session)


def _from_file(plan: str) -> Plan | None:
    from megatune_planner.plan import Plan

    path = Path(plan)
    return Plan.load(path) if path.exists() or path.suffix == ".json" else None


def _from_database(plan: str, session: Session) -> tuple[Plan, str]:
    from megatune_db import queries
    from megatune_planner.plan import Plan

    row = queries.plan(session, plan)
    if row is None:
        known = ", ".join(sorted({row.name for row in queries.plans(session)}))
        raise MegatuneError(f"there is no file {plan}, and no plan of that name or digest; there are {known or 'none'}")
    return Plan.from_json(row.content), row.state.value


def _mark_exported(plan: Plan, db: Path) -> None:
    from megatune_db import store
    from megatune_db.records import PlanState
    from megatune_db.session import open_database

    with open_database(db, create=False) as database, database.session() as session:
        store.set_plan_state(session, plan.digest, PlanState.EXPORTED)


def _regime(text: str) -> Any:
    from megatune_db.records import Regime

    try:
        return Regime.parse(text)
    except ValueError:
        raise MegatuneError(
            f"no such regime: {text!r}; allowed: cold-graph, cold-eager, warm-graph, warm-eager"
        ) from None


def _provenances(words: list[str] | None) -> list[Provenance]:
    from megatune_db.records import Provenance

    allowed = [each for each in Provenance if each is not Provenance.PREDICTED]
    for word in words or ():
        if word not in allowed:
            raise MegatuneError(f"{word!r} is no evidence; allowed: {', '.join(allowed)}")
    return [Provenance(word) for word in words or ()]


def _traffic(text: str | None) -> dict[int, float]:
    found: dict[int, float] = {}
    for item in text.split(",") if text else ():
        tokens, _, weight = item.partition(":")
        try:
            found[int(tokens)] = float(weight)
        except ValueError:
            raise MegatuneError(f"traffic is tokens:weight, separated by commas, e.g. 1:5,8:2; not {item!r}") from None
    return found


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).lstrip(".") or "plan"


def _summary(plan: Plan) -> dict[str, Any]:
    from megatune_planner.rendering import saved_share

    content = plan.content
    return {
        "name": content.name,
        "digest": plan.digest,
        "target": content.target.digest,
        "regime": content.regime,
        "coverage": content.coverage.model_dump(mode="json"),
        "shapes": [
            {
                "operator": operator.name,
                "shape": shape.shape,
                "bands": len(shape.bands),
                "configs": len({band.decision.config for band in shape.bands if band.decision.kind == "config"}),
                "saved_share": saved_share(shape),
            }
            for operator in content.operators
            for shape in operator.shapes
        ],
    }


def _print(plan: Plan) -> None:
    from rich.console import Console

    from megatune_planner.rendering import render_plan

    width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
    Console(width=width, highlight=False).print(render_plan(plan))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))
