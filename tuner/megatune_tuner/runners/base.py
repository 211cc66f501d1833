"""The contract of a runner: what turns a config into a measurement."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.canonical import digest
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target


@dataclass(frozen=True)
class Request:
    """One thing to measure. ``artifact`` is None for what a library launches, and for runners that need none."""

    workload: Workload
    config: Config
    regime: Regime
    artifact: Artifact | None = None
    compile_s: float = 0.0
    parts: tuple[Artifact, ...] = ()
    """Of a chain, the artifacts of ``Operator.parts``; ``artifact`` is None then."""
    runs: Config | None = None
    """What is launched in the config's name (``Operator.stands_for``); None: the config itself."""

    @property
    def artifact_key(self) -> str:
        """What a measurement keeps: the key of the artifact, of several the digest of their keys, empty for none."""
        if self.parts:
            return digest([artifact.key for artifact in self.parts])
        return self.artifact.key if self.artifact is not None else ""


class Runner(ABC):
    """Measures configs on one target.

    **Never raises for a bad config.** Whatever a config does to the device comes back as a measurement with a status
    and a reason; the runner is usable afterwards. ``MegatuneError`` is raised only where no config could be measured
    (no GPU, a recording that cannot be read).

    **Time.** Samples are microseconds a launch on the runner's own clock; they are never compared across runners.

    **Threads.** One caller at a time.
    """

    provenance: Provenance
    needs_artifacts: bool

    @property
    @abstractmethod
    def target(self) -> Target:
        """What is measured on; constant over the runner's life."""

    @property
    def facts(self) -> dict[str, float]:
        """Figures of the target beside the measurements, their units in their names; recordings keep them."""
        return {}

    @abstractmethod
    def measure(self, request: Request) -> Measurement:
        """Verify, time, verify again (stage ``search``)."""

    @abstractmethod
    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        """Time all requests, of one workload and regime, interleaved in random order (stage ``final``, one session).

        One measurement a request, in their order. The ok ones have equally many samples, paired by index.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the device; calling again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
