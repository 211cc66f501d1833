from __future__ import annotations

import math
from datetime import UTC
from datetime import datetime
from typing import Any

import pytest
from db_examples import failed
from db_examples import measured

from megatune_db.records import Regime


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples_us": ()}, "needs samples"),
        ({"median_us": math.nan}, "all positive"),
        ({"low_us": math.inf}, "all positive"),
        ({"high_us": 0.0}, "all positive"),
        ({"low_us": 11.0, "high_us": 10.0}, "above the high end"),
        ({"samples_us": (1.0, math.nan)}, "finite"),
        ({"throttled": (True,)}, "one throttled flag"),
        ({"measured_at": datetime(2026, 8, 1, tzinfo=UTC)}, "without a time zone"),
        ({"measure_s": math.inf}, "finite"),
        ({"compile_s": -1.0}, "not negative"),
    ],
)
def test_an_ok_measurement_is_whole(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measured(0, 0, **{"median_us": 10.0} | fields)


def test_other_statuses_carry_a_reason_and_no_figures() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        failed(0, 0, reason="")
    with pytest.raises(ValueError, match="no figures"):
        failed(0, 0, median_us=1.0)


def test_regimes_are_written_and_read() -> None:
    for regime in (Regime(), Regime("warm", "eager")):
        assert Regime.parse(str(regime)) == regime
    with pytest.raises(ValueError, match="no such regime"):
        Regime.parse("tepid-graph")
