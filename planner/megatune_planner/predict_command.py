"""The command ``predict``: what the latency model says of a world that was not measured."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DEFAULT_REGIME
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import RegimeOption
from megatune_planner.command_words import print_json
from megatune_planner.command_words import provenances_of
from megatune_planner.command_words import regime_of

if TYPE_CHECKING:
    from megatune_planner.predictions import PredictedCrossover
    from megatune_planner.predictions import PredictedLatency
    from megatune_planner.predictions import Report


def predict(
    db: DatabaseOption = DEFAULT_DATABASE,
    world: Annotated[
        list[int] | None, typer.Option(min=2, help="Ranks to predict for; by default those that were measured.")
    ] = None,
    width: Annotated[
        list[int] | None, typer.Option(min=1, help="Elements of a row; by default every measured width.")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="By default the powers of two that were measured from and to.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Digest of the target; several where they are one machine at several worlds."),
    ] = None,
    regime: RegimeOption = DEFAULT_REGIME,
    provenance: Annotated[str, typer.Option(help="Of the cells that the model is fitted to.")] = "measured",
    as_json: JsonOption = False,
) -> None:
    """Fit the latency model of a reduction, print its error where the truth is known, and predict with an interval."""
    from megatune_db.session import open_database
    from megatune_planner.drafting import find_target
    from megatune_planner.predictions import report

    with open_database(db, read_only=True) as database, database.session() as session:
        found = report(
            session,
            targets=target or [find_target(session, None).digest],
            regime=regime_of(regime),
            provenance=provenances_of([provenance])[0],
            worlds=world or (),
            widths=width or (),
            tokens=tokens or (),
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: Report) -> Iterator[str]:
    yield f"fitted to {found.fitted_to} cells of target {', '.join(found.targets)}, regime {found.regime}"
    for model in found.models:
        speed = "bytes that cost nothing" if model.link_gbps is None else f"{model.link_gbps:.0f} GB/s"
        token = f", {1000 * model.token_us:.2g} ns a token" if model.token_us else ""
        yield (
            f"  {model.variant}: {model.hops} x {model.hop_us:.2f} µs a hop, {speed}{token}; error of {model.cells} "
            f"measured cells, each predicted without it: median {model.median_error:.1%}, largest "
            f"{model.largest_error:.1%}"
        )
    for (world, width), latencies in _by_place(found.latencies).items():
        yield f"predicted: world {world}, width {width}, µs a launch with 95 % intervals"
        for each in latencies:
            yield (
                f"  {each.variant:<16}{each.tokens:>6} tokens  {each.median_us:8.2f}  "
                f"{each.low_us:8.2f} to {each.high_us:.2f}"
            )
        for crossover in found.crossovers:
            if (crossover.world, crossover.width) == (world, width):
                yield f"  {_crossover(crossover)}"


def _by_place(latencies: Sequence[PredictedLatency]) -> dict[tuple[int, int], list[PredictedLatency]]:
    found: dict[tuple[int, int], list[PredictedLatency]] = {}
    for each in latencies:
        found.setdefault((each.world, each.width), []).append(each)
    return found


def _crossover(found: PredictedCrossover) -> str:
    names = f"{found.below} and {found.above}"
    span = f"{found.tokens_lo} to {found.tokens_hi} tokens"
    if found.kind == "never":
        where = "wherever it can be told" if found.undecided else f"at {span}"
        text = f"no certain crossover of {names}" + (f": {found.faster} is faster {where}" if found.faster else "")
    else:
        ends = " to ".join(f"{end / 2**20:.3g}" for end in (found.traffic_lo_bytes, found.traffic_hi_bytes))
        text = f"predicted crossover of {names}: {span} ({ends} MiB of one-shot traffic)"
    if found.undecided:
        ranges = ", ".join(f"{each.tokens_lo}-{each.tokens_hi}" for each in found.undecided)
        text += f"; either may be faster at {ranges}"
    return text + ("" if found.likeliest_tokens is None else f"; likeliest after {found.likeliest_tokens} tokens")
