"""Campaigns on a Ray cluster of several nodes on this machine, one of which is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import PLUGINS
from chaos import Chaos
from chaos import outcome
from toy import Toy
from typer.testing import CliRunner

from megatune_db.queries import campaign as campaign_row
from megatune_db.queries import workers
from megatune_db.records import CampaignState
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.artifact_store import open_store
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import architecture
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.commands import app
from megatune_tuner.engines.ray import RayBuilder
from megatune_tuner.execution import run_on_workers

ray = pytest.importorskip("ray")

# Ray leaves sockets and files of its processes to the interpreter's end.
pytestmark = pytest.mark.filterwarnings("ignore")

NODES = 2


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    """Nodes of one CPU each beside a head without any, on the loopback."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", PLUGINS)
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **size})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_lost_node_costs_what_it_measured(cluster: object, tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, str(tmp_path / "toy.db"), cells=4, trials=24, seed=0, slow_s=0.0)
    expected = chaos.undisturbed()
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(NODES)]  # type: ignore[attr-defined]
    path = tmp_path / "toy.db"
    open_database(path).close()
    lost = []

    def lose() -> None:
        while True:
            with open_database(path) as database, database.session() as session:
                row = campaign_row(session, "toy")
                there = workers(session)
            if row is not None and sum(row.trials.values()) > 20 and len(there) == NODES:
                cluster.remove_node(nodes[0], allow_graceful=False)  # type: ignore[attr-defined]
                lost.append(nodes[0])
                return
            time.sleep(0.05)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    summary = run_on_workers(
        load_campaign(chaos.file),
        path,
        ray=True,
        address=cluster.address,  # type: ignore[attr-defined]
        workers=NODES,
    )
    thread.join(30)
    assert lost
    assert summary.state is CampaignState.FINISHED
    # What was lost could be compiling as well: the cluster that is left does it.
    ray.init(address=cluster.address, logging_level="ERROR")  # type: ignore[attr-defined]
    (cell, *_) = load_campaign(chaos.file).workloads()
    config = next(iter(Toy().space(cell, architecture("sm_90a")).variants[0].configs()))
    built = RayBuilder(architecture("sm_90a")).submit(Toy(), cell, config).result(timeout=200)
    assert (built.status, built.reason) == (Status.OK, "")
    assert built.artifact is not None
    assert open_store(str(tmp_path / "artifacts")).get(built.artifact.key) == built.artifact
    with open_database(path) as database:
        assert outcome(database) == expected
        with database.session() as session:
            assert len(workers(session)) >= NODES


def test_an_address_that_does_not_answer(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, str(tmp_path / "toy.db"), cells=1, trials=4, seed=0, slow_s=0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for wrong, said in ((address, f"no Ray cluster answers at {address}"), ("somewhere", "give HOST:PORT")):
        command = ["run", str(chaos.file), "--db", str(tmp_path / "toy.db"), "--engine", "ray", "--address", wrong]
        with pytest.raises(MegatuneError, match=said):
            CliRunner().invoke(app, command, catch_exceptions=False)
    assert not ray.is_initialized()
