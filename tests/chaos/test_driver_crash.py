"""A driver that dies in an epoch, process and all: nothing is lost, doubled or out of order.

Deaths after every other step are played in one process, by `tests.contract`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.chaos.flow import epochs_of, expected_epochs, expected_final
from tests.chaos.results import insist_on_each_row_once, put, run_program, sink_epochs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

KILLED = -9


def finished(directory: Path, epochs: int) -> None:
    """Check everything in the Parquet sinks."""
    expected = expected_epochs(epochs_of(17, epochs))
    for sink, rows in expected.items():
        found = sink_epochs(directory / "out" / sink)
        assert found == dict(enumerate(rows)), sink
    assert len(list((directory / "ck/commits").glob("*"))) == epochs


def test_deaths_before_a_commit_and_in_a_delivery_leave_each_row_once(tmp_path: Path) -> None:
    """Rows come from both kinds of sources, so how they are cut into epochs is not fixed."""
    epochs = epochs_of(17, 4)
    for number, rows in enumerate(epochs):
        put(tmp_path / "in", number, [row for row in rows if row[0] % 2])
        put(tmp_path / "own", number, [row for row in rows if not row[0] % 2])
    config = {"directory": str(tmp_path), "dsn": None, "mixed": True}
    for death in [("staged", 1), ("delivering", 1)]:
        assert run_program("driver", {**config, "kill": death}) == KILLED, death
    assert run_program("driver", {**config, "kill": None}) == 0
    insist_on_each_row_once(tmp_path / "out", epochs)


@pytest.mark.postgres
def test_deaths_after_a_commit_and_within_a_transaction_leave_each_row_once(
    tmp_path: Path, postgres: str
) -> None:
    import psycopg

    deaths = [("committed", 0), ("delivering", 1)]
    epochs = epochs_of(17, len(deaths) + 2)
    for number, rows in enumerate(epochs):
        # Beside the driver's deaths, a lane's process dies in the middle of an epoch, once.
        put(tmp_path / "in", number, [*rows[:-1], (*rows[-1][:2], "1 die" if number == 2 else "")])
    config = {"directory": str(tmp_path), "dsn": postgres}
    for death in deaths:
        assert run_program("driver", {**config, "kill": death}) == KILLED, death
    assert run_program("driver", {**config, "kill": None}) == 0
    assert (tmp_path / "acts/die").exists()
    finished(tmp_path, len(epochs))
    with psycopg.connect(postgres) as connection:
        numbers = connection.execute("SELECT k, number FROM numbers").fetchall()
        newest = connection.execute("SELECT k, rows, total FROM newest").fetchall()
    assert sorted(numbers) == sorted((k, number) for rows in epochs for k, number, _ in rows)
    assert {row[0]: row[1:] for row in newest} == expected_final(epochs, "totals")
