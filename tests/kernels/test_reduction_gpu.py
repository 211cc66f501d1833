"""The reduction kernels between ranks that share one GPU: memory ordering as it is, and ranks in no lasting order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from covering import covering

from megatune_kernels.operator import operator
from megatune_kernels.space import Space
from megatune_kernels.target import architecture

pytestmark = pytest.mark.gpu

REDUCTION = operator("reduction")
# The space is the same for every architecture that there are kernels for.
ARCH = architecture("sm_90a")
SHORT = 1_200
LONG = 100_800
SHAPES = ((512, 3), (1440, 17), (7168, 1), (7168, 16), (3584, 70))
"""Width and tokens: some end within a tile, some take several rounds."""


def stressed(variant: str, world: int, shapes: tuple[tuple[int, int], ...], launches: int, limit_s: float) -> list[Any]:
    """What was found of every job.

    In a process of its own: a hang costs that process, and streams run side by side only where the driver is told
    so before it starts.
    """
    jobs = []
    for width, tokens in shapes:
        workload = REDUCTION.workload({"width": width}, tokens, world=world)
        space = Space((REDUCTION.space(workload, ARCH).by_variant[variant],))
        for config in dict.fromkeys([*space.defaults(), *covering(space, seed=0)]):
            jobs.append({"width": width, "tokens": tokens, "variant": variant, "params": config.params})
    script = Path(__file__).parent / "reduction_stress.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(world), str(launches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
    )
    try:
        output, log = process.communicate(json.dumps(jobs), timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, log = process.communicate()
        pytest.fail(f"hangs: {log.splitlines()[-1:]}")
    assert process.returncode == 0, log[-3000:]
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(jobs)
    return [{**one, "job": job} for one, job in zip(found, jobs, strict=True)]


def holds(found: list[Any], launches: int) -> None:
    ran = [one for one in found if "skipped" not in one]
    assert len(ran) >= len(found) / 2, [one for one in found if "skipped" in one]
    for one in ran:
        assert one["launches"] >= launches
        assert one["counted"] == [one["launches"]]
        assert [rank["wrong"] for rank in one["ranks"]] == [0] * len(one["ranks"]), one


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("variant", REDUCTION.variants)
def test_every_value_of_every_parameter_gives_the_exact_sum_on_every_rank(variant: str, world: int) -> None:
    holds(stressed(variant, world, SHAPES, SHORT, limit_s=540), SHORT)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("variant", REDUCTION.variants)
def test_a_hundred_thousand_launches_with_new_values_and_skew(variant: str, world: int) -> None:
    holds(stressed(variant, world, SHAPES[:2], LONG, limit_s=1700), LONG)
