"""The plan in one process of the engine: its document, whether it holds here, and how a group of tables changes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from . import serving
from .agreement import Alone
from .agreement import Meeting
from .tables import KINDS
from .tables import Differs
from .tables import Table

CONFIG_KEY = "megatune_plan"
"""In vLLM's ``--additional-config``: the digest of the plan that is meant to serve."""

DIGEST_FILE = "overlay.sha256"
"""Of ``overlay.json``: the plan's own digest says nothing of it."""

STATUS_FOLDER = "MEGATUNE_PLAN_STATUS"
"""Environment variable: a folder for what ``status`` answers, a file a process, as it is after every change of it. That
is while models are built and graphs captured: a graph that is replayed asks nothing."""

# A child of vLLM's own logger, so that it is printed as vLLM's lines are.
logger = logging.getLogger("vllm.megatune_plan")


class Overlay:
    """What the wheel holds, and what has become of it in this process."""

    def __init__(self, folder: Path) -> None:
        """:raises OSError, ValueError, KeyError: when the wheel was not written whole."""
        text = (folder / "overlay.json").read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        if (folder / DIGEST_FILE).read_text(encoding="ascii").strip() != digest:
            raise ValueError("overlay.json was changed after its digest was taken: export the plan again")
        self.document: dict[str, Any] = json.loads(text)
        self.version = digest[:16]
        """Of the document: another exporter may make another one of the same plan."""
        self.plan = folder / "plan.json"
        self.digest: str = self.document["plan"]["digest"]
        self.tables: list[Table] = [KINDS[entry["kind"]](entry) for entry in self.document["tables"]]
        self.outcome: dict[str, str] = {}
        """By group, what was changed, or why nothing was."""
        self.counts: Counter[str] = Counter()
        """Lookups that the plan decided (``hit …``), and those that it says nothing of (``miss …``)."""
        self.missing = ""
        """Which rank did not come when a group of tables was agreed on; it is not waited for again."""
        self._writes = True

    def say(self, what: str, *, warning: bool = False) -> None:
        # What torch raises has many lines.
        line = " ".join(what.split())
        logger.log(logging.WARNING if warning else logging.INFO, "megatune plan %s: %s", self.digest, line)

    def settle(self, name: str, outcome: str, *, warning: bool = False) -> None:
        """Say in one line what became of a group of tables, or of all."""
        self.outcome[name] = outcome
        self.say(f"{name}: {outcome}", warning=warning)
        self._write_status()

    def count(self, known: str, what: str) -> None:
        """Count a lookup. Never raises: it is on the engine's way."""
        self.counts[f"{known} {what}"] += 1
        self._write_status()

    def status(self) -> dict[str, Any]:
        return {"plan": self.digest, "outcome": dict(self.outcome), "counts": dict(self.counts)}

    def _write_status(self) -> None:
        folder = os.environ.get(STATUS_FOLDER)
        if not folder or not self._writes:
            return
        try:
            file = Path(folder, f"{self.digest}-{os.uname().nodename}-{os.getpid()}.json")
            whole = file.with_suffix(".tmp")
            whole.write_text(json.dumps(self.status()), encoding="utf-8")
            whole.replace(file)
        except Exception as error:  # noqa: BLE001  (whatever a folder's name or another thread does to it)
            self._writes = False
            self.say(f"no status is written: {type(error).__name__}: {error}", warning=True)

    def reader(self, ranks: Sequence[str]) -> Any:
        """The plan's own reader, which has compared the gate with what serves here.

        :param ranks: the whereabouts of all ranks.
        :raises Differs: when the plan does not hold here.
        :raises Exception: whatever keeps the engine from telling what serves, or the reader from reading.
        """
        config = serving.current_config()
        asked = serving.additional_config(config).get(CONFIG_KEY)
        if asked is not None and asked != self.digest:
            raise Differs(f"--additional-config asks for the plan {asked}")
        links, several_machines = serving.links(ranks)
        reader = import_module(f"{__package__}.reader").load(
            self.plan,
            target=serving.target(links),
            deployment=serving.deployment(config, several_machines=several_machines),
            key=serving.trusted_key(),
        )
        if reader.digest != self.digest:
            raise Differs(f"the wheel holds tables of {self.digest} and the plan {reader.digest}: export it again")
        if reader.reason:
            raise Differs(reader.reason)
        return reader


class Group:
    """Tables that change as a whole or not at all, on all ranks alike, when the first function that reads them is
    called."""

    name: str

    def __init__(self, overlay: Overlay, tables: Sequence[Table]) -> None:
        self.overlay = overlay
        self.tables = tables
        self.applied = False

    @property
    def settled(self) -> bool:
        return self.name in self.overlay.outcome

    def refuse(self, why: object) -> None:
        self.overlay.settle(self.name, f"changed nothing: {_line(why)}", warning=True)

    def prepare(self) -> str:
        """Choose the tables that matter here, and say what else ranks have to agree on.

        :raises Differs: when none does.
        """
        return ""

    def apply(self) -> None:
        """Change every table, or put all of them back and say why. Never raises."""
        if self.settled:
            return
        changed: list[str] = []
        found = statement = ""
        meeting: Meeting | Alone = Alone()
        try:
            meeting = serving.meeting(self.name)
            meeting.wait_s = serving.wait_s(serving.current_config())
            if self.overlay.missing:
                raise Differs(self.overlay.missing)
            also = self.prepare()
            reader = self.overlay.reader(meeting.gather(serving.whereabouts()))
            for table in self.tables:
                table.check(reader)
            changed = [table.change() for table in self.tables]
            statement = (
                f"plan {self.overlay.digest} in overlay {self.overlay.version}, answers {reader.agreement}{also}"
            )
        except Exception as error:  # noqa: BLE001  (nothing of ours may stop the engine)
            found = _line(error)
        try:
            found = meeting.agree(statement, found)
        except Exception as error:  # noqa: BLE001
            found = f"the ranks cannot be asked: {error}"
        self.overlay.missing = self.overlay.missing or meeting.missing
        if found:
            self._restore()
            self.refuse(Differs(found))
            return
        self.applied = True
        self.overlay.settle(self.name, "; ".join(changed) or "no table, only steps that are stock")
        if meeting.doubt:
            self.overlay.say(
                f"{self.name}: every rank had made its change when the store failed ({meeting.doubt}): restart the "
                "engine if it waits for ever",
                warning=True,
            )

    def _restore(self) -> None:
        for table in self.tables:
            try:
                table.restore()
            except Exception as error:  # noqa: BLE001
                self.overlay.say(f"{table.place} cannot be put back: {error}", warning=True)


def _line(why: object) -> str:
    return str(why) if isinstance(why, Differs) else f"{type(why).__name__}: {why}"
