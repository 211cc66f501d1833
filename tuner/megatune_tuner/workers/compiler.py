"""The process that compiles: ``python -m megatune_tuner.workers.compiler FD NICE ARCH``.

The store is what ``MEGATUNE_ARTIFACTS`` names: arguments would show everybody on the machine what a URL signs in with.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from megatune_db.records import Status
from megatune_kernels.artifact_store import StoreError
from megatune_kernels.artifact_store import open_store
from megatune_kernels.artifact_store import store_location
from megatune_kernels.audit import FailedAudit
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import Unknown
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.workers.child import serve

LONGEST_REASON = 300
LEAST_FREE_BYTES = 16 << 20
"""Room that a compile may need on a disk, with a margin."""


def _need_room(*folders: Path) -> None:
    """:raises MegatuneError: when a disk is full, which is no fault of the config whose compile failed."""
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < LEAST_FREE_BYTES:
            raise MegatuneError(f"{folder} has {free >> 10} KiB free, too little to compile: make room and run again")


def main() -> None:
    location = store_location()
    arch = architecture(sys.argv[3])

    def compile_one(job: tuple[Operator, Workload, Config]) -> tuple[Artifact | None, Status, str, float]:
        started = time.monotonic()
        store = open_store(location)
        try:
            artifact = store.get_or_compile(*job, arch)
        except OSError as error:
            raise MegatuneError(f"cannot keep artifacts in {store.root}: {error}") from error
        except StoreError:
            raise
        except Unknown:
            # Of another runtime's kernel: so it would be with every config.
            raise
        except FailedAudit as error:
            # It can be built, and must not run.
            return None, Status.WRONG_RESULT, str(error)[:LONGEST_REASON], time.monotonic() - started
        except Exception as error:  # noqa: BLE001 - whatever a config does to the compiler is its result
            _need_room(store.root, Path(tempfile.gettempdir()))
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
            return None, Status.COMPILE_ERROR, reason, time.monotonic() - started
        return artifact, Status.OK, "", time.monotonic() - started

    serve(compile_one)


if __name__ == "__main__":
    main()
