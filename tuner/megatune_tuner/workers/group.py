"""One process of a group: ``python -m megatune_tuner.workers.group FD NICE PAGE WORLD RANKS CLASS CHOICES``.

``RANKS`` are those that this process hosts, with commas; ``CLASS``, as ``module:name``, makes one of them from its
number and the choices, which are JSON. The process knows nothing of campaigns, obeys, and may be killed at any moment.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from megatune_tuner.workers.child import serve
from megatune_tuner.workers.gpu_messages import Final
from megatune_tuner.workers.gpu_messages import Search
from megatune_tuner.workers.group_bench import GroupBench
from megatune_tuner.workers.group_messages import StartGroup
from megatune_tuner.workers.group_messages import Stress
from megatune_tuner.workers.group_page import Page
from megatune_tuner.workers.group_rank import Rank


def main() -> None:
    page_file, world, ranks, name, choices = sys.argv[3:]

    def make(number: int) -> Rank:
        # What a rank is made of may take seconds to import: it is done when the group starts, under its limit.
        module, _, attribute = name.partition(":")
        rank: Rank = getattr(import_module(module), attribute)(number, int(world), **json.loads(choices))
        return rank

    bench = GroupBench(Page(int(page_file), int(world)), [int(rank) for rank in ranks.split(",")], make)

    def answer(message: Any) -> Any:
        match message:
            case StartGroup(describe):
                return bench.start(describe)
            case Search(job):
                return bench.search(job)
            case Final(jobs, seed):
                return bench.final(jobs, seed)
            case Stress(job, replays, seed):
                return bench.stress(job, replays, seed)
        raise TypeError(f"not a message to a group: {message!r}")

    serve(answer)


if __name__ == "__main__":
    main()
