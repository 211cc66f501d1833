"""The commands ``diff`` and ``sign``: what changes where one plan replaces another, and who vouches for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_kernels.errors import MegatuneError
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import PlanArgument
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import print_json
from megatune_planner.command_words import print_rich
from megatune_planner.warning_words import warn_unverified

if TYPE_CHECKING:
    from rich.console import RenderableType

    from megatune_planner.differences import PlanDifference
    from megatune_planner.differences import ShapeDifference
    from megatune_planner.step_difference import StepDifference


def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The plan that serves: a file, name or digest.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The plan that is to replace it.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Predict the decode step of this model; by default of the plan's, or of the one it fits best."
        ),
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    as_json: JsonOption = False,
) -> None:
    """Print which bands decide otherwise in another plan, and what that does to measured latencies and to the step."""
    from megatune_planner.differences import difference
    from megatune_planner.step_difference import step_differences

    replaced, replacing = find_plan(before, db)[0], find_plan(after, db)[0]
    found = difference(replaced, replacing)
    steps = step_differences(replaced, replacing, model)
    if as_json:
        print_json(found.model_dump(mode="json") | {"steps": [each.model_dump(mode="json") for each in steps]})
    else:
        for each in (_render(found), *map(_render_steps, steps)):
            print_rich(each)
        if not steps:
            print_rich(_no_steps(found, model))
    warn_unverified(replacing, db)


def sign(
    plan: PlanArgument,
    key: Annotated[Path, typer.Option(dir_okay=False, help="Ed25519 private key, as PEM without a password.")],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File for the signed plan; by default PLAN itself.")
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    as_json: JsonOption = False,
) -> None:
    """Sign a plan, so that a reader that is given the public key takes no other."""
    from megatune_planner.exporters.base import write
    from megatune_planner.signing import sign as sign_plan

    path = out or Path(plan)
    if out is None and not path.exists():
        raise MegatuneError(f"there is no file {plan} to write the signature into: name one with --out")
    try:
        private_key = key.read_bytes()
    except OSError as error:
        raise MegatuneError(f"cannot read the private key {key}: {error.strerror}") from None
    signed = sign_plan(find_plan(plan, db)[0], private_key)
    write({path.name: signed.to_json()}, path.parent)
    assert signed.signature is not None
    if as_json:
        print_json({"plan": signed.digest, "key": signed.signature.key, "file": str(path)})
    else:
        typer.echo(f"{path}: plan {signed.digest} is signed; its public key is {signed.signature.key}")


def _render(found: PlanDifference) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lineage = {
        "same": "the same plan",
        "child": "which replaces it",
        "parent": "which it replaced",
        "unrelated": "which does not say that it replaces it",
    }[found.lineage]
    parts: list[RenderableType] = [Text(f"From {found.before} to {found.after}, {lineage}", style="bold")]
    if not found.comparable:
        parts.append(
            Text("of other targets or regimes: figures of the first plan are not compared with those of the second")
        )
    parts += [Text(f"holds for another {each}") for each in found.gate]
    changed = [each for each in found.shapes if each.changes]
    for each in changed:
        parts += [Text(""), *_shape(each)]
    parts.append(Text(""))
    same = len(found.shapes) - len(changed)
    parts.append(Text(f"{len(changed)} of {same + len(changed)} shapes change"))
    if found.ratio is not None and found.before_us is not None and found.after_us is not None:
        parts.append(
            Text(
                f"one launch of each shape: {_us(found.before_us)} to {_us(found.after_us)} µs; "
                f"{_percent(found.ratio)} (geometric mean of all shapes and measured tokens)",
                style="bold",
            )
        )
    if found.unknown:
        parts.append(Text(f"at {found.unknown} tokens of changed bands one of the two was not measured"))
    return Group(*parts)


def _render_steps(found: StepDifference) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks} ranks"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, show_edge=False)
    for name in ("tokens", "stock µs", "before µs", "after µs", "change µs"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in found.steps:
        table.add_row(
            str(step.tokens),
            *(f"{low:.0f}-{high:.0f}" for low, high in (step.stock_us, step.before_us, step.after_us)),
            f"{step.change_us[0]:+.1f} to {step.change_us[1]:+.1f}",
        )
    return Group(
        Text(""),
        Text(f"A decode step of {found.model} on {ranks}, predicted from {', '.join(found.parts)}", style="bold"),
        table,
        Text(f"left out on all sides, for want of a figure: {', '.join(found.missing) or 'nothing'}"),
    )


def _no_steps(found: PlanDifference, model: str | None) -> RenderableType:
    from rich.text import Text

    if not found.comparable:
        return Text("no step is predicted: figures of two targets or regimes are not compared")
    what = f"{model}'s step" if model else "the step of a model of the catalogue"
    return Text(f"no step is predicted: the plans have no part of {what}")


def _shape(found: ShapeDifference) -> list[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from megatune_planner.rendering import decision_text
    from megatune_planner.routings import at_routing

    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, show_edge=False)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    for name in ("at", "before µs", "after µs", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in found.changes:
        hi = change.tokens_hi
        tokens = f"{change.tokens_lo}+" if hi is None else f"{change.tokens_lo}-{hi}"
        first = (
            str(hi) if hi == change.tokens_lo else tokens,
            decision_text(change.before),
            decision_text(change.after),
        )
        if not change.effects:
            table.add_row(*first, "-", "", "", "")
        for number, effect in enumerate(change.effects):
            known = effect.before_us is not None and effect.after_us is not None
            table.add_row(
                *(("", "", "") if number else first),
                str(effect.tokens),
                _us(effect.before_us),
                _us(effect.after_us),
                _percent(effect.after_us / effect.before_us) if known and effect.before_us and effect.after_us else "?",
            )
    where = "" if found.presence == "both" else f", only {found.presence}"
    kind = f"{found.dtype}, world {found.world}{at_routing(found.routing)}{where}"
    return [Text(f"{found.operator} {found.shape}  {kind}", style="bold"), table]


def _us(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
