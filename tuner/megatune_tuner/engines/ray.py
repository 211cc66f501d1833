"""Engine ``ray``: workers on the GPUs of a cluster, compilers on its CPU nodes. Ray is imported where it is used.

A worker is an actor in a placement group: as many GPUs as its runner needs, on one node, and in one fabric domain
where nodes say that they have one (the resource ``fabric_domain``, a unit a GPU). Actors lease jobs from the database
like any worker, so that a node which is lost costs what it was measuring and nothing else; they start again elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Collection
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from megatune_db.location import Location
from megatune_kernels.artifact_store import VARIABLE
from megatune_kernels.artifact_store import store_location
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.compiling import Built
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.base import Site
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.search import LEAST_A_TURN

FABRIC = "fabric_domain"
"""Custom resource of nodes whose GPUs all reach one another over a fast fabric: a unit a GPU."""
CONNECT_S = 5.0
"""Within which an address has to answer."""
CARRIED = ("PYTHONPATH", "OPENBLAS_NUM_THREADS")
"""Environment variables that processes on the cluster need as this one has them, from their start."""
HANDED = (VARIABLE, "PGPASSWORD")
"""The same that may hold passwords: Ray's dashboard, lists and logs show the environment that it starts processes in,
and not what they are handed."""
MOST_RESTARTS = 100
"""Of one worker: what ends again and again has a reason that starting it does not mend."""


@dataclass
class _Member:
    """An actor, and what it was asked."""

    group: Any
    actor: Any
    began: Any
    """Of the id under which it works."""
    ended: Any
    """Of the reason why it ends."""
    worker: int | None = None
    restarts: int = 0


class RayEngine(Engine):
    """Workers on a Ray cluster.

    :param address: ``HOST:PORT`` of the cluster; None: the one that runs here, or a new one of this machine alone.
    :param workers: how many; None: as many as fit.
    :raises MegatuneError: when Ray is not installed, or the address does not answer.
    """

    def __init__(
        self, campaign: Campaign, database: Location, *, address: str | None = None, workers: int | None = None
    ) -> None:
        if find_spec("ray") is None:
            raise MegatuneError("Ray is not installed: pip install 'megatune[ray]'")
        self._campaign = campaign
        self._database = database
        self._mine = _connect(address)
        self._gpus = {"replay": 0, "group": campaign.world}.get(campaign.runner.kind, 1)
        self._members: list[_Member] = []
        try:
            if database.is_file and len(_nodes()) > 1 and len({node["NodeManagerAddress"] for node in _nodes()}) > 1:
                raise MegatuneError(
                    f"{database} is a file of this machine, and the cluster has others: use postgresql://USER@HOST/DATABASE"
                )
            self._workers = workers or _room(self._gpus)
            if not self._workers:
                raise MegatuneError(
                    f"no node of the Ray cluster has {self._gpus} GPUs for a worker: ray status shows what there is"
                )
        except BaseException:
            self.close()
            raise
        self.ahead = 2 * LEAST_A_TURN * self._workers

    def launch(self) -> None:
        self._members = [self._member(0) for _ in range(self._workers)]

    def builder(self, bench: Bench) -> Builder:
        return RayBuilder(architecture_of(bench.target.hardware))

    def start(self, site: Site) -> None:
        """Nothing: the actors look for the campaign themselves."""

    def check(self) -> Collection[int]:
        import ray
        from ray.exceptions import RayError
        from ray.exceptions import RayTaskError

        gone = []
        for place, member in enumerate(self._members):
            if member.worker is None:
                with contextlib.suppress(RayError):
                    if ray.wait([member.began], timeout=0)[0]:
                        member.worker = ray.get(member.began)
            if not ray.wait([member.ended], timeout=0)[0]:
                continue
            try:
                ray.get(member.ended)
            except RayTaskError as error:
                # What the worker raised is no matter of the node: it would be raised there again.
                raise error.as_instanceof_cause() from None
            except RayError:
                if member.restarts >= MOST_RESTARTS:
                    raise MegatuneError("a worker on the Ray cluster ends as often as it is started") from None
            if member.worker is not None:
                gone.append(member.worker)
            self._members[place] = self._member(member.restarts + 1, member)
        return gone

    def stop(self) -> None:
        import ray
        from ray.exceptions import RayError

        for member in self._members:
            with contextlib.suppress(RayError):
                member.actor.stop.remote()
        with contextlib.suppress(RayError):
            ray.wait([member.ended for member in self._members], num_returns=len(self._members), timeout=60.0)

    def close(self) -> None:
        import ray
        from ray.util import remove_placement_group

        members, self._members = self._members, []
        for member in members:
            with contextlib.suppress(Exception):
                ray.kill(member.actor)
                remove_placement_group(member.group)
        if self._mine:
            self._mine = False
            ray.shutdown()

    def _member(self, restarts: int, before: _Member | None = None) -> _Member:
        import ray
        from ray.util import placement_group
        from ray.util import remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if before is not None:
            with contextlib.suppress(Exception):
                ray.kill(before.actor)
            remove_placement_group(before.group)
        bundle: dict[str, float] = {"CPU": 1}
        if self._gpus:
            bundle["GPU"] = self._gpus
        if self._gpus > 1 and any(FABRIC in node["Resources"] for node in _nodes()):
            bundle[FABRIC] = self._gpus
        group = placement_group([bundle], strategy="STRICT_PACK")
        actor: Any = (
            ray.remote(_Actor)
            .options(
                num_cpus=1,
                num_gpus=self._gpus,
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
                runtime_env={"env_vars": _of_here(CARRIED)},
            )
            .remote(self._database.environment(), _of_here(HANDED), self._campaign.name, self._campaign.source)
        )
        return _Member(group, actor, actor.began.remote(), actor.work.remote(), restarts=restarts)


class _Actor:
    """A worker in a process of Ray's."""

    def __init__(self, environment: dict[str, str], handed: dict[str, str], campaign: str, source: str) -> None:
        from megatune_tuner.stopping import Stop

        os.environ.update(handed)
        self._environment = environment
        self._campaign = campaign
        self._source = source
        self._stop = Stop()
        self._registered = threading.Event()
        self._worker = 0

    def work(self) -> str:
        """Work until there is a reason to end; what it says is seen where the campaign runs."""
        from megatune_tuner.serving import serve

        def registered(worker: int) -> None:
            self._worker = worker
            self._registered.set()

        (where,) = self._environment.values()
        return serve(
            where,
            name=self._campaign,
            source=self._source,
            stop=self._stop,
            say=lambda text: print(f"{socket.gethostname()}: {text}", flush=True),
            registered=registered,
        )

    def began(self) -> int:
        """The id under which it works."""
        self._registered.wait()
        return self._worker

    def stop(self) -> None:
        self._stop.request()


class RayBuilder:
    """Compiles on the cluster's CPU nodes, or where none are, on any; ``measuring.Builder``."""

    def __init__(self, arch: Architecture) -> None:
        import ray

        nodes = _nodes()
        on = [node for node in nodes if not node["Resources"].get("GPU")] or nodes
        self._nodes = [node["NodeID"] for node in on]
        self.processes = max(1, int(sum(node["Resources"].get("CPU", 0) for node in on)))
        self._arch = arch.name
        self._compile = ray.remote(_compile)
        self._next = 0

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._next = (self._next + 1) % len(self._nodes)
        asked = self._compile.options(
            num_cpus=1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._nodes[self._next], soft=True),
            runtime_env={"env_vars": _of_here(CARRIED)},
        ).remote(operator.name, workload, config, self._arch, _of_here((VARIABLE,)))
        future: Future[Built] = asked.future()
        return future


_POOLS: dict[tuple[str, str], Any] = {}


def _compile(name: str, workload: Workload, config: Config, arch: str, handed: dict[str, str]) -> Built:
    """Build into the store that coordinator, compilers and workers share; the process is kept for the next."""
    from megatune_kernels.operator import operator
    from megatune_kernels.target import architecture
    from megatune_tuner.compiling import CompilePool

    os.environ.update(handed)
    key = (store_location(), arch)
    if key not in _POOLS:
        _POOLS[key] = CompilePool(store_location(), architecture(arch), processes=1)
    built: Built = _POOLS[key].submit(operator(name), workload, config).result()
    return built


def _of_here(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _room(gpus: int) -> int:
    """How many workers fit; without GPUs, one a CPU."""
    if not gpus:
        return max(1, int(sum(node["Resources"].get("CPU", 0) for node in _nodes())))
    return sum(int(node["Resources"].get("GPU", 0)) // gpus for node in _nodes())


def _connect(address: str | None) -> bool:
    """Connect to the cluster, unless this process is; whether it did."""
    import ray

    if ray.is_initialized():
        return False
    if address not in (None, "auto", "local"):
        assert address is not None
        _reach(address)
    quiet: dict[str, Any] = {"include_dashboard": False} if address in (None, "local") else {}
    try:
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MegatuneError(f"no Ray cluster answers at {address or 'this machine'}: {_first_line(error)}") from None
    return True


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise MegatuneError(f"{address} is no address of a Ray cluster: give HOST:PORT, as ray start prints it")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise MegatuneError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check that it runs, with ray status"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
