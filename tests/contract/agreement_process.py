"""One rank that changes a table by the overlay's own rules, over torch's own store: a script that a test starts.

It is told its rank and the port, and for each round which rank's store fails from when on. It prints for each round
whether it kept its change.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from megatune_planner.exporters.vllm_overlay import overlay
from megatune_planner.exporters.vllm_overlay.agreement import Meeting


class Failing:
    """A store whose connection breaks.

    :param when: before its call of that number, counted from 1, or once it was told that step; None: it never does.
    """

    def __init__(self, store: Any, when: int | str | None) -> None:
        self.store, self.when, self.calls, self.broken = store, when, 0, False

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            self.broken = self.broken or self.calls == self.when
            if self.broken:
                raise ConnectionError("the connection is lost")
            answer = getattr(self.store, name)(*arguments)
            self.broken = name == "set" and arguments[0].split("/")[-2] == self.when
            return answer

        return call


class Table:
    """A table whose change can fail."""

    place = "a table"

    def __init__(self, fails: bool) -> None:
        self.value, self.fails = "as shipped", fails

    def check(self, reader: Any) -> None:
        if self.fails:
            raise overlay.Differs("it is another table")

    def change(self) -> str:
        self.value = "of the plan"
        return "changed"

    def restore(self) -> None:
        self.value = "as shipped"


def main() -> None:
    asked = json.loads(sys.stdin.read())
    rank, world = asked["rank"], asked["world"]
    store = import_module("torch.distributed").TCPStore(
        "127.0.0.1", asked["port"], None, False, timedelta(seconds=60), wait_for_workers=False
    )
    serving: Any = import_module("megatune_planner.exporters.vllm_overlay.serving")
    overlay.logger.setLevel(logging.CRITICAL)
    kept = []
    for number, round_ in enumerate(asked["rounds"]):
        mine = rank == 1
        broken = Failing(store, round_["breaks"] if mine else None)
        table: Any = Table(fails=mine and round_["breaks"] == "table")
        owner: Any = SimpleNamespace(
            digest="a plan",
            version="1",
            outcome={},
            missing="",
            say=lambda *_, **__: None,
            settle=lambda *_, **__: None,
            reader=lambda ranks: REPLY,
        )
        group = overlay.Group(owner, [table])
        group.name = f"round {number}"
        meeting = Meeting(broken, group.name, range(world), rank)
        serving.meeting = lambda name, held=meeting: held
        serving.current_config = lambda: None
        serving.wait_s = lambda config, held=round_["wait_s"]: held
        serving.whereabouts = lambda: f"rank {rank}"
        group.apply()
        kept.append({"kept": table.value == "of the plan", "applied": group.applied})
        # Nobody begins the next round while another still waits in this one.
        store.set(f"over/{number}/{rank}", "yes")
        store.wait([f"over/{number}/{each}" for each in range(world)])
    print(json.dumps(kept))


REPLY = SimpleNamespace(agreement="alike")

main()
