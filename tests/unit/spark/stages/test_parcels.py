"""An exchange carries rows and reports, and never takes the one for the other."""

from __future__ import annotations

import numpy as np
from tests.support.lane_flows import rows_of, sums

from godwit.engine.lane.wire import Shipment, ship
from godwit.spark.stages.stages import separate_reports, wrap_report


def test_rows_and_reports_are_told_apart_whatever_is_in_them() -> None:
    shipment = Shipment(index=255, level=255, operator=sums(), places=np.zeros(4, np.int32))
    rows = [
        payload
        for batch in rows_of(np.random.default_rng(0), 300, 50)
        for _, payload in ship(shipment, batch, (0, 2**32 - 1, 0))
    ]
    reports = [b"", b"\xff" * 40, rows[0]]
    mixed = [wrap_report(reports[0]), rows[0], wrap_report(reports[1]), *rows[1:]]
    assert separate_reports([*mixed, wrap_report(reports[2])]) == (rows, reports)
