"""What an exchange carries: rows for lanes, and reports on their way to the driver.

The problem: the lanes of all levels report to the driver, but an epoch is one Spark job, whose last
stage alone answers the driver; a job of its own for every level would cost more than an epoch.  So
reports travel with the exchange, as a channel beside the rows: this module alone knows that both
are bytes in one stream.  Each report is sent to its lane's own place, so there is one of every lane
however often Spark runs a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["parted", "report_parcel"]

_REPORT = 0xFF  # no payload of rows begins with it: see `godwit.engine.lane.wire`


def report_parcel(report: bytes) -> bytes:
    """Make of a report something that an exchange carries."""
    return bytes([_REPORT]) + report


def parted(parcels: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Part what an exchange brought into payloads of rows, and reports."""
    rows: list[bytes] = []
    reports: list[bytes] = []
    for parcel in parcels:
        if parcel[0] == _REPORT:
            reports.append(parcel[1:])
        else:
            rows.append(parcel)
    return rows, reports
