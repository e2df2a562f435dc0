"""A driver that dies in an epoch, process and all: nothing is lost, doubled or out of order.

Deaths after every other step are played in one process, by `tests.contract`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from tests.chaos.flow import epochs_of, expected_final, is_alive
from tests.chaos.results import insist_on_each_row_once, put, rows_in_order, run_program
from tests.support.long_tests import chosen

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

KILLED = -9
PATIENCE_S = 120.0
DEATHS = chosen(
    {
        "after a commit": ("committed", 0),
        "before a commit": ("staged", 1),
        "in a delivery": ("delivering", 1),
    },
    only_long={"after a commit", "before a commit"},
)


@pytest.mark.postgres
def test_deaths_about_a_commit_in_a_delivery_and_in_an_epoch_of_lanes_that_stay_leave_each_row_once(
    tmp_path: Path, postgres: str
) -> None:
    """Rows come from both kinds of sources, so how they are cut into epochs is not fixed.

    They go to files and, in transactions, to a database: results, and the rows as they came, which
    no operator works on.  Beside the driver's deaths, a lane's process dies in the middle of an
    epoch, once.
    """
    epochs = epochs_of(17, 7)
    acts = {0: "1 die", 6: "1 signal driver"}
    for number, rows in enumerate(epochs):
        odd = [row for row in rows if row[0] % 2]
        odd[-1] = (*odd[-1][:2], acts.get(number, ""))
        put(tmp_path / "in", number, odd)
        put(tmp_path / "own", number, [row for row in rows if not row[0] % 2])
    config = {"directory": str(tmp_path), "dsn": postgres, "mixed": True}
    for death in DEATHS.values():
        assert run_program("driver", {**config, "kill": death}) == KILLED, death
    assert (tmp_path / "acts/die").exists()
    assert not (tmp_path / "acts/signal driver").exists()
    config |= {"kill": None, "resident": True}
    assert run_program("driver", config) == KILLED
    assert (tmp_path / "acts/signal driver").exists()
    insist_on_the_end_of_lanes(tmp_path)
    assert run_program("driver", config) == 0
    insist_on_each_row_once(tmp_path / "out", epochs)
    came = sorted(row[:2] for rows in epochs for row in rows)
    assert sorted(row[:2] for _, row in rows_in_order(tmp_path / "out/raw")) == came
    insist_on_tables(postgres, epochs)


def insist_on_the_end_of_lanes(directory: Path) -> None:
    """Check that lanes which stayed have worked, and end with their driver."""
    lanes = json.loads((directory / "lanes").read_text())
    assert len(lanes) == 2
    assert int((directory / "worked").read_text()) > 0
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_alive, lanes)):
        assert time.monotonic() < deadline, "lanes outlive their driver"
        time.sleep(0.05)


def insist_on_tables(dsn: str, epochs: list[list[tuple[int, int, str]]]) -> None:
    import psycopg

    came = sorted(row[:2] for rows in epochs for row in rows)
    with psycopg.connect(dsn) as connection:
        numbers = connection.execute("SELECT k, number FROM numbers").fetchall()
        raw = connection.execute("SELECT k, number FROM raw").fetchall()
        newest = connection.execute("SELECT k, rows, total FROM newest").fetchall()
    assert sorted(numbers) == came
    assert sorted(raw) == came
    assert {row[0]: row[1:] for row in newest} == expected_final(epochs, "totals")
