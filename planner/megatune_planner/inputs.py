"""What a plan's rules may read. All ranks of a group must decide alike: what differs between them decides nothing.

Ranks wait for one another. Where two of them decide unlike, both wait for ever, so a rule reads nothing but what is the
same on all ranks: by construction (``shared``), or because it was compared when the server started (``agreed``; the
reader's ``agreement`` is the digest to compare). What only one rank knows (``rank``) is named here so that a rule over
it is refused with the reason.
"""

from __future__ import annotations

from typing import Literal

from megatune_planner.schema import Part


class Input(Part):
    """A value that a decision may depend on, or must not."""

    scope: Literal["shared", "agreed", "rank"]
    """``shared``: the same on all ranks; ``agreed``: a rank's own, compared between all of them at start; ``rank``: a
    rank's own, and no rule may read it."""
    fixed: Literal["load", "capture", "step"]
    """From when on it cannot change: the server's start, the capture of a graph, or never. A decision that is taken
    while a graph is captured is replayed with it, whatever a value of ``step`` has become by then."""
    what: str
    """What it is, with its unit."""


INPUTS = {
    "operator": Input(scope="shared", fixed="load", what="name of the operator"),
    "shape": Input(scope="shared", fixed="load", what="dims of the launch, sorted by name"),
    "dtype": Input(scope="shared", fixed="load", what="of the operands"),
    "world": Input(scope="shared", fixed="load", what="ranks that take part in the launch"),
    "routing": Input(scope="shared", fixed="load", what="how tokens are spread over experts, by name"),
    "model": Input(scope="shared", fixed="load", what="name of the model that is served"),
    "execution": Input(scope="shared", fixed="load", what="graph or eager"),
    "features": Input(scope="shared", fixed="load", what="what is switched on in the deployment, by name"),
    "max_context_tokens": Input(scope="shared", fixed="load", what="longest context that the server admits, in tokens"),
    "hardware": Input(scope="agreed", fixed="load", what="architecture, SMs, memory in bytes and PCI device id"),
    "toolchain": Input(scope="agreed", fixed="load", what="versions of driver, CUDA, DSL and torch"),
    "links": Input(scope="agreed", fixed="load", what="how the GPUs of the group reach one another"),
    "workspace_bytes": Input(scope="agreed", fixed="load", what="bytes that a rank holds for its peers to write into"),
    "tokens": Input(scope="shared", fixed="capture", what="rows of the decode step, with its padding"),
    "context_tokens": Input(
        scope="shared",
        fixed="step",
        what="longest context of the step's requests, in tokens; while a graph is captured the longest admitted",
    ),
    "rank": Input(scope="rank", fixed="load", what="number of the rank"),
    "free_memory_bytes": Input(scope="rank", fixed="step", what="free memory of the rank's GPU, in bytes"),
    "sm_clock_mhz": Input(scope="rank", fixed="step", what="clock of the rank's SMs, in MHz"),
    "temperature_celsius": Input(scope="rank", fixed="step", what="of the rank's GPU"),
    "routed_tokens": Input(scope="rank", fixed="step", what="tokens that were routed to the rank's own experts"),
    "elapsed_us": Input(scope="rank", fixed="step", what="time by the rank's own clock, in µs"),
}
"""Every input by name."""


def check_inputs(what: str, names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """:raises ValueError: when ``what`` reads an unknown or a rank's own input, or states others than it reads."""
    for name in names:
        found = INPUTS.get(name)
        if found is None:
            raise ValueError(f"the rule {what} reads {name!r}, which is no input; known are {', '.join(INPUTS)}")
        if found.scope == "rank":
            raise ValueError(
                f"the rule {what} reads {name!r}, which differs between ranks: ranks that decide unlike wait for one "
                "another for ever, so let it read what they share"
            )
    if names != expected:
        raise ValueError(f"the rule {what} reads {', '.join(expected)}, and must state exactly these as its inputs")
