"""Processes are killed at random moments: no finished measurement is lost or taken again, and the plan is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import Chaos
from chaos import outcome

from megatune_db.embedded import EmbeddedServer
from megatune_db.session import open_database


def check(chaos: Chaos, url: str, kills: int, at_least: int) -> None:
    expected = chaos.undisturbed()
    chaos.run(kills)
    print(chaos.counts)
    assert chaos.counts.kills.total() >= at_least
    assert (chaos.counts.lost, chaos.counts.twice) == (0, 0)
    with open_database(url) as database:
        plan, asked = outcome(database)
    assert asked == expected[1]
    assert plan == expected[0]


@pytest.mark.parametrize("seed", [1])
def test_killed_processes_on_a_file(tmp_path: Path, seed: int) -> None:
    url = str(tmp_path / "toy.db")
    check(Chaos(tmp_path, url, cells=4, trials=24, seed=seed, slow_s=0.05), url, 5, 3)


@pytest.mark.parametrize("seed", [2])
def test_killed_processes_and_servers(tmp_path: Path, seed: int, own_server: EmbeddedServer) -> None:
    url = own_server.url()
    check(Chaos(tmp_path, url, cells=4, trials=24, seed=seed, slow_s=0.05, server=own_server), url, 6, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [3])
def test_hundreds_of_kills_on_a_file(tmp_path: Path, seed: int) -> None:
    url = str(tmp_path / "toy.db")
    check(Chaos(tmp_path, url, cells=36, trials=80, seed=seed, slow_s=0.1), url, 200, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [4])
def test_hundreds_of_kills_with_the_server(tmp_path: Path, seed: int, own_server: EmbeddedServer) -> None:
    url = own_server.url()
    check(Chaos(tmp_path, url, cells=36, trials=80, seed=seed, slow_s=0.1, server=own_server), url, 200, 200)
