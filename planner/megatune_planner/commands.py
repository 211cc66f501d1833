"""The commands of the planner, for the one ``megatune`` command.

What they need is imported when they run: ``megatune --help`` should not wait for a database library.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_db.location import Location
from megatune_kernels.errors import MegatuneError
from megatune_planner.check_command import check
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DEFAULT_REGIME
from megatune_planner.command_words import ByOption
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import PlanArgument
from megatune_planner.command_words import ProvenanceOption
from megatune_planner.command_words import RegimeOption
from megatune_planner.command_words import TargetOption
from megatune_planner.command_words import by_of
from megatune_planner.command_words import database_session
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import from_database
from megatune_planner.command_words import from_file
from megatune_planner.command_words import print_json
from megatune_planner.command_words import print_rich
from megatune_planner.command_words import provenances_of
from megatune_planner.command_words import regime_of
from megatune_planner.crossover_commands import crossovers
from megatune_planner.lineage_commands import diff
from megatune_planner.lineage_commands import sign
from megatune_planner.predict_command import predict
from megatune_planner.review_commands import approve
from megatune_planner.review_commands import reject
from megatune_planner.review_commands import rollback
from megatune_planner.serve_plan_command import serve_plan
from megatune_planner.warning_words import warn_unverified

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from megatune_planner.plan import Plan

app = typer.Typer(help="Turn measurements into plans.", add_completion=False)
app.command(epilog="Example: megatune check plan.json --against vllm-0.33.0-….whl")(check)
app.command(epilog="Example: megatune crossovers plan.json")(crossovers)
app.command(epilog="Example: megatune diff old.json new.json")(diff)
app.command(epilog="Example: megatune sign plan.json --key key.pem")(sign)
app.command(epilog="Example: megatune predict --db tuned.db --world 4 --world 8")(predict)
app.command(epilog="Example: megatune approve plan.json --comment 'as measured on node 7'")(approve)
app.command(epilog="Example: megatune reject plan.json --comment 'the crossover is suspect'")(reject)
app.command(epilog="Example: megatune rollback kimi-k3-tp8 --comment 'p99 rose by a tenth'")(rollback)
app.command(
    name="serve-plan",
    epilog="Example: megatune serve-plan plan.json --rate 50 --concurrency 16 --context 32768 --out serving/",
)(serve_plan)


@app.command(epilog="Example: megatune plan --db tuned.db --name kimi-k3-tp8 --out plan.json")
def plan(
    db: DatabaseOption = DEFAULT_DATABASE,
    target: TargetOption = None,
    name: Annotated[str, typer.Option(help="Name of the plan.")] = "plan",
    regime: RegimeOption = DEFAULT_REGIME,
    provenance: ProvenanceOption = None,
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
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to choose by over the routings of a shape: mean, worst, weights as balanced:1,same:3, or each, "
            "which gives each routing bands of its own; by default what the campaign asks for, else each."
        ),
    ] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="The plan that serves today: its configs win ties. A file, name or digest.")
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(help="The plan that this one replaces; its configs win ties, unless --incumbent names another."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Serve this model alone; by default every model that has the shapes.")
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(help="Serve where this is switched on too, e.g. lora; by default nothing is.")
    ] = None,
    context_errors: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            metavar="FILE",
            help="Errors that were measured at lengths of context, as TOML: stock serves longer contexts.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="File for the plan; by default NAME.json.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a plan from the measurements, keep it as a draft, and write it as JSON."""
    from megatune_db.session import open_database
    from megatune_planner.context_errors import read_context_errors
    from megatune_planner.drafting import draft_plan
    from megatune_planner.drafting import keep_draft
    from megatune_planner.exporters.base import write
    from megatune_planner.objective import Objective
    from megatune_planner.planning import EVIDENCE
    from megatune_planner.planning import Options

    path = Path(f"{_file_name(name)}.json") if out is None else out
    options = Options(
        min_gain=min_gain,
        config_cost_us=config_cost_us,
        traffic=_traffic(traffic),
        objective=None if objective is None else Objective.parse(objective),
    )
    errors = None if context_errors is None else read_context_errors(context_errors)
    with open_database(db, create=False) as database, database.session() as session:
        replaced = _named(parent, session)
        made = draft_plan(
            session,
            name=name,
            target=target,
            regime=regime_of(regime),
            only_operators=operator or (),
            provenances=provenances_of(provenance) or EVIDENCE,
            options=options,
            incumbent=_named(incumbent, session) or replaced,
            model=model,
            features=accept or (),
            parent=replaced.digest if replaced else None,
            context_errors=errors,
        )
        # The file comes first: a plan that could not be written is not kept either.
        write({path.name: made.to_json()}, path.parent)
        keep_draft(session, made)
    if as_json:
        print_json(_summary(made) | {"file": str(path)})
    else:
        _print(made)
        typer.echo(f"\nwritten to {path}, kept in {db}: megatune show {path}")


def _named(plan: str | None, session: Session) -> Plan | None:
    return (from_file(plan) or from_database(plan, session)[0]) if plan else None


@app.command(epilog="Example: megatune show plan.json")
def show(
    plan: PlanArgument,
    db: DatabaseOption = DEFAULT_DATABASE,
    public_key: Annotated[
        str | None, typer.Option(help="The key that must have signed it: 64 hexadecimal digits, or a PEM file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a plan: what it holds for, its bands, gains, crossovers and fallback rules."""
    from megatune_planner.signing import read_key
    from megatune_planner.signing import verify

    found, _ = find_plan(plan, db)
    if public_key is not None:
        verify(found, read_key(public_key))
    if as_json:
        typer.echo(found.to_json(), nl=False)
    else:
        _print(found)
        _print_depths(found, db)
    warn_unverified(found, db)


@app.command(epilog="Example: megatune export plan.json --to json --out serving/")
def export(
    plan: PlanArgument,
    to: Annotated[str, typer.Option("--to", metavar="EXPORTER", help="What to write: json, vllm-low-latency-table, …")],
    out: Annotated[Path, typer.Option(help="Directory for the files; made when it is missing.")],
    db: DatabaseOption = DEFAULT_DATABASE,
    unreviewed: Annotated[
        bool,
        typer.Option("--unreviewed", help="Export a plan that nobody approved; it does not go into service."),
    ] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an approved plan as what a target runtime reads. Nothing is written unless all of it is valid.

    The plan is in service from then on, for its target, model and worlds; the one that was before is retired.
    """
    from megatune_planner.exporters.base import exporter
    from megatune_planner.reviewing import REVIEWED
    from megatune_planner.reviewing import export_plan
    from megatune_planner.reviewing import not_approved

    chosen = exporter(to)
    found, _ = find_plan(plan, db)
    checked = chosen.check_runtime()
    with database_session(db) if db.exists() else nullcontext() as session:
        exported = export_plan(session, found, chosen, by_of(by), unreviewed=unreviewed, out=out)
    paths = [out / path for path in exported.files]
    if as_json:
        state = None if exported.before is None else exported.before.value
        print_json(
            {
                "plan": found.digest,
                "exporter": chosen.name,
                "files": [str(path) for path in paths],
                "runtime": checked,
                "state": state,
                "recorded": exported.id is not None,
                "replaced": exported.replaced,
            }
        )
    for path in () if as_json else paths:
        typer.echo(path)
    if checked and not as_json:
        typer.echo(checked, err=True)
    if exported.before not in REVIEWED:
        typer.echo(f"warning: {not_approved(exported.before)}: try it, do not serve with it", err=True)
    elif exported.replaced is not None and not as_json:
        typer.echo(f"it takes the place of {exported.replaced}, which is retired", err=True)
    warn_unverified(found, db)
    if exported.id is None:
        typer.echo(f"this export was not written down: {db} does not have the plan", err=True)


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
                **({"routing": shape.routing} if shape.routing != "none" else {}),
                **({"mix": shape.mix.model_dump(mode="json")} if shape.mix else {}),
                "bands": len(shape.bands),
                "configs": len({band.decision.config for band in shape.bands if band.decision.kind == "config"}),
                "saved_share": saved_share(shape),
            }
            for operator in content.operators
            for shape in operator.shapes
        ],
    }


def _print(plan: Plan) -> None:
    from megatune_planner.rendering import render_plan

    print_rich(render_plan(plan))


def _print_depths(plan: Plan, db: Location) -> None:
    """How deep to prefetch, where the database still has what the plan was made from."""
    from megatune_planner.depths import OPERATOR
    from megatune_planner.depths import depth_curves_of
    from megatune_planner.depths import depth_text

    if not db.exists() or all(operator.name != OPERATOR for operator in plan.content.operators):
        return
    with database_session(db) as session:
        lines = [depth_text(curve) for curve in depth_curves_of(session, plan)]
    for line in ("", "Depths of prefetch, as the database has them", *lines) if lines else ():
        typer.echo(line)
