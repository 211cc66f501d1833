"""The process that compiles: ``python -m megatune_tuner.workers.compiler FD NICE STORE ARCH``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.workers.child import serve

LONGEST_REASON = 300


def main() -> None:
    store = ArtifactStore(Path(sys.argv[3]))
    arch = architecture(sys.argv[4])

    def compile_one(job: tuple[Operator, Workload, Config]) -> tuple[Artifact | None, str, float]:
        started = time.monotonic()
        try:
            artifact = store.get_or_compile(*job, arch)
        except Exception as error:  # noqa: BLE001 - whatever a config does to the compiler is its result
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
            return None, reason, time.monotonic() - started
        return artifact, "", time.monotonic() - started

    serve(compile_one)


if __name__ == "__main__":
    main()
