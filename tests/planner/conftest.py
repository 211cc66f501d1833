from __future__ import annotations

import pytest
from plan_examples import example_plan

from megatune_planner.plan import Plan


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of the example's measurements."""
    return example_plan(tmp_path_factory.mktemp("plan"))
