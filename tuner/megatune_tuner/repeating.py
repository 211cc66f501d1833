"""Running a campaign again with other seeds, each in a database of its own.

A repeat that saw the rows of the first search would repeat nothing: its configs would be known, and its incumbents
told. The databases lie in one folder, by seed, and stay: what was measured is never lost, and a repeat that was stopped
goes on. What the repeats say of the campaign's plan is for those to judge who plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatune_kernels.errors import NothingMeasured
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.execution import run_file
from megatune_tuner.progress import Progress
from megatune_tuner.summary import Summary

MOST_SEED = 2**31


@dataclass(frozen=True)
class Repeated:
    """A run of a campaign with one seed."""

    seed: int
    database: Path
    summary: Summary | None
    """None where no config worked."""


def seeds_of(campaign: Campaign, repeats: int) -> list[int]:
    """The campaign's own seed and those of its repeats, each another."""
    return [(campaign.sampler.seed + number) % MOST_SEED for number in range(repeats + 1)]


def with_seed(campaign: Campaign, seed: int) -> Campaign:
    """The same campaign with another seed: in its text too, so that what a database keeps of it can be resumed."""
    text = campaign.text
    line = f"seed = {seed}"
    header = re.search(r"^\[\s*sampler\s*\][^\n]*$", text, re.MULTILINE)
    if header is not None:
        rest = text[header.end() :]
        body = re.split(r"^\s*\[", rest, maxsplit=1, flags=re.MULTILINE)[0]
        without = re.sub(r"^[ \t]*seed[ \t]*=[^\n]*\n?", "", body, flags=re.MULTILINE)
        text = f"{text[: header.end()]}\n{line}{without}{rest[len(body) :]}"
    elif "sampler" not in campaign.model_fields_set:
        text = f"{text.rstrip()}\n\n[sampler]\n{line}\n"
    else:  # an inline table or dotted keys: the text keeps the seed that it has
        return campaign.model_copy(update={"sampler": campaign.sampler.model_copy(update={"seed": seed})})
    return parse_campaign(text, campaign.source)


def run_repeats(
    campaign: Campaign,
    folder: Path,
    repeats: int,
    *,
    gpu: int = 0,
    progress: Callable[[], Progress] = Progress,
) -> list[Repeated]:
    """Run a campaign again as often, or go on with it; ends early where it is interrupted, which the last one says.

    :param folder: of the databases; made where it is missing.
    :param progress: makes what shows each run's.
    :raises MegatuneError: as ``run_file``.
    """
    found = []
    for seed in seeds_of(campaign, repeats)[1:]:
        database = folder / f"{campaign.name}.seed-{seed}.db"
        try:
            summary = run_file(with_seed(campaign, seed), database, progress=progress(), gpu=gpu)
        except NothingMeasured:
            summary = None
        found.append(Repeated(seed, database, summary))
        if summary is not None and summary.interrupted:
            break
    return found
