"""The command ``serve-plan``: from a service level to a plan and its serving configuration, or to what binds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_db.location import Location
from megatune_kernels.errors import MegatuneError
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import ByOption
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import by_of
from megatune_planner.command_words import database_session
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import print_json
from megatune_planner.warning_words import warn_unverified

if TYPE_CHECKING:
    from megatune_planner.serving.bounds import Bounds
    from megatune_planner.serving.choosing import Option
    from megatune_planner.serving.traffic import Traffic


def serve_plan(
    plan: Annotated[
        list[str], typer.Argument(metavar="PLAN...", help="Plans to choose from: files, names or digests.")
    ],
    rate: Annotated[float, typer.Option(help="Tokens a second that every user gets.")],
    concurrency: Annotated[int, typer.Option(help="Users at once.")],
    context: Annotated[int, typer.Option(help="Tokens of a user's prompt and answer together.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Directory for the configuration; made when missing.")],
    head_room: Annotated[float, typer.Option(help="Share of the GPU's memory that stays free.")] = 0.1,
    traffic: Annotated[
        Path | None, typer.Option(help="How many tokens steps have: TOML, CSV, or the text of vLLM's /metrics.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model; by default the one that the plan holds for.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks; by default those that the plan holds for.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Hosts that the ranks are on, as many on each.")] = 1,
    given: Annotated[
        Path | None, typer.Option(help="TOML of what was measured besides: parts of a step, or steps of stock.")
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    unreviewed: Annotated[
        bool, typer.Option("--unreviewed", help="Export a plan that nobody approved; it does not go into service.")
    ] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the plan that meets a service level with the fewest ranks, and write its configuration of vLLM.

    Where none meets it nothing is written: the nearest feasible plan and the binding limit are printed, and the exit
    code is 3.
    """
    from megatune_planner.exporters.vllm_config import ServedVllmConfig
    from megatune_planner.reviewing import REVIEWED
    from megatune_planner.reviewing import export_plan
    from megatune_planner.reviewing import not_approved
    from megatune_planner.serving.choosing import LevelNotMet
    from megatune_planner.serving.choosing import choose
    from megatune_planner.serving.choosing import nearest
    from megatune_planner.serving.configuration import Level
    from megatune_planner.serving.given import read_given
    from megatune_planner.serving.traffic import read_traffic

    level = Level(rate, concurrency, context, head_room)
    profile = None if traffic is None else read_traffic(traffic)
    found = _options(plan, model, level, ranks, nodes, None if given is None else read_given(given), db)
    try:
        chosen = choose(found, profile)
    except LevelNotMet as error:
        if as_json:
            near = nearest(found)
            print_json(
                {
                    "met": False,
                    "reason": str(error),
                    "options": [_summary(each, profile) for each in found],
                    "nearest": None if near is None else _summary(near, profile),
                }
            )
        raise
    exporter = ServedVllmConfig(chosen.served(profile))
    checked = exporter.check_runtime()
    with database_session(db) if db.exists() else nullcontext() as session:
        exported = export_plan(session, chosen.plan, exporter, by_of(by), unreviewed=unreviewed, out=out)
    files = [str(out / name) for name in exported.files]
    warn_unverified(chosen.plan, db)
    if as_json:
        print_json({"met": True, "chosen": _summary(chosen, profile), "files": files, "runtime": checked})
        return
    for line in _lines(chosen, profile):
        typer.echo(line)
    for name in files:
        typer.echo(f"written to {name}")
    typer.echo(checked, err=True)
    if exported.before not in REVIEWED:
        typer.echo(f"warning: {not_approved(exported.before)}: try it, do not serve with it", err=True)


def _options(
    plans: list[str], model: str | None, level: Any, ranks: int | None, nodes: int, given: Any, db: Location
) -> list[Option]:
    from megatune_kernels.models import model as find_model
    from megatune_planner.serving.choosing import options

    found: list[Option] = []
    for name in plans:
        plan, _ = find_plan(name, db)
        of = model or plan.content.gate.model
        if of is None:
            raise MegatuneError(f"{name} holds for every model that has its shapes: say which is served with --model")
        found += options(plan, find_model(of), level, ranks, given, nodes)
    return found


def _summary(option: Option, traffic: Traffic | None) -> dict[str, Any]:
    step, memory = option.step, option.memory
    return {
        "plan": option.plan.digest,
        "name": option.plan.content.name,
        "model": option.model.name,
        "ranks": option.layout.tensor,
        "context_ranks": option.layout.context_ranks,
        "nodes": option.layout.nodes,
        "concurrency": option.layout.sequences,
        "rate": option.level.rate,
        "limit": option.limit,
        "reason": option.reason,
        "memory": {
            "provenance": "predicted",
            "unit": "bytes",
            "budget": memory.budget_bytes,
            "gpu": memory.gpu_bytes,
            "total": _ends(memory.bytes_),
            "parts": [
                {"name": each.name, "kind": each.kind, "how": each.how, "bytes": _ends(each.bytes_)}
                for each in memory.holdings
            ],
        },
        "step": {
            "provenance": step.provenance,
            "unit": "us",
            "tokens": step.tokens,
            "floor": step.floor_us,
            "plan": _ends(step.plan_us),
            "stock": _ends(step.stock_us),
            "gain": _ends(step.gain),
            "rate_a_user": _ends(step.rate),
            "rate_in_all": _ends(None if step.rate is None else step.rate * option.layout.sequences),
            "expected": _ends(option.expected_us(traffic)),
            "parts": [
                {
                    "name": each.name,
                    "launches": each.launches,
                    "provenance": each.provenance,
                    "how": each.how,
                    "plan": _ends(each.plan_us),
                    "stock": _ends(each.stock_us),
                }
                for each in step.parts
            ],
        },
        "traffic": None
        if traffic is None
        else {"source": traffic.source, "steps": traffic.steps, "beyond": traffic.beyond}
        | {"share_up_to_concurrency": traffic.share_up_to(option.level.concurrency)},
    }


def _ends(bounds: Bounds | None) -> dict[str, float] | None:
    return None if bounds is None else {"low": bounds.low, "high": bounds.high}


def _lines(option: Option, traffic: Traffic | None) -> Iterator[str]:
    from megatune_planner.serving.memory import GIB
    from megatune_planner.serving.memory import NOT_COUNTED
    from megatune_planner.serving.step import INCLUDED

    memory, step, layout = option.memory, option.step, option.layout
    yield f"{option.reason}: {layout.sequences} sequences of {option.level.context} tokens"
    yield f"memory of a rank, GiB, predicted: {_span(memory.bytes_, GIB)} of {memory.budget_bytes / GIB:.1f}"
    for kind in ("weights", "state", "cache", "workspace", "graphs"):
        yield f"  {kind:<10} {_span(memory.of(kind), GIB)}"
    yield f"  not counted: {'; '.join(NOT_COUNTED)}"
    yield f"a step of {step.tokens} tokens, µs; {INCLUDED}"
    for part in step.parts:
        us = "-" if part.plan_us is None else _span(part.plan_us)
        against = "" if part.stock_us in (None, part.plan_us) else f", stock {_span(part.stock_us)}"
        yield f"  {part.name:<22} {us}{against}  {part.provenance}: {part.how}"
    for name, found in (("plan", step.plan_us), ("stock", step.stock_us)):
        if found is not None:
            yield f"  {name:<22} {_span(found)}  {step.provenance}"
    if step.rate is not None:
        everybody = step.rate * layout.sequences
        yield f"tokens a second, predicted: {_span(step.rate)} a user, {_span(everybody)} in all"
    if traffic is not None:
        share = traffic.share_up_to(option.level.concurrency)
        yield f"traffic: {share:.1%} of {traffic.steps + traffic.beyond:g} steps have no more tokens ({traffic.source})"


def _span(bounds: Bounds | None, unit: float = 1) -> str:
    if bounds is None:
        return "-"
    low, high = bounds.low / unit, bounds.high / unit
    return f"{low:.1f}" if low == high else f"{low:.1f} to {high:.1f}"
