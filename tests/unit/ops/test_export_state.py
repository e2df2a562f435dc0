"""`godwit export-state` writes a table for every state, with which another flow can begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import godwit as gw
from godwit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def flow_of() -> gw.Flow:
    """Return a flow of two operators, one of them with named states."""
    flow = gw.Flow("exported", num_key_groups=4)
    rows = flow.source("s", gw.testing.stream("k string, v long"))
    totals = rows.key_by("k").compute(name="totals", total=gw.sum("v"), mean=gw.mean("v"))

    def note(key: tuple[Any, ...], arrived: Any, states: Any) -> None:
        """Remember the last value, and count values."""
        for row in arrived:
            states.last.value = row.v
            states.seen[row.v] = True

    noted = rows.key_by("k").process(
        note,
        name="noted",
        state={"last": gw.ValueState(int), "seen": gw.MapState(int, bool)},
        output="k string",
    )
    flow.sink("totals", totals, gw.sinks.noop())
    flow.sink("noted", noted, gw.sinks.noop())
    return flow


def test_every_state_is_a_table_that_another_flow_can_begin_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"k": f"k{n % 5}", "v": n} for n in range(30)]
    checkpoint, directory = tmp_path / "ck", tmp_path / "out"
    run = gw.testing.run(flow_of(), {"s": rows}, checkpoint=checkpoint)
    assert main(["export-state", str(checkpoint), str(directory)]) == 0
    names = ["noted-last.parquet", "noted-seen.parquet", "totals.parquet"]
    assert sorted(file.name for file in directory.iterdir()) == names
    assert "totals/state: 5 rows" in capsys.readouterr().out
    table = pq.read_table(directory / "totals.parquet")
    assert table.sort_by("k").equals(run.state("totals").sort_by("k"))
    begun = gw.testing.run(
        flow_of(),
        {"s": [{"k": "k1", "v": 1}]},
        initial={"totals": str(directory / "totals.parquet")},
    )
    (row,) = begun.rows("totals").to_pylist()
    assert row["total"] == sum(range(1, 30, 5)) + 1


def test_mistakes_of_an_export_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gw.testing.run(flow_of(), {"s": [{"k": "a", "v": 1}]}, checkpoint=tmp_path / "ck")
    path, out = str(tmp_path / "ck"), str(tmp_path / "out")
    assert main(["export-state", path, out, "--operator", "total"]) == 2
    assert "Did you mean 'totals'?" in capsys.readouterr().err
    assert main(["export-state", path, out, "--operator", "totals"]) == 0
    assert main(["export-state", path, out, "--operator", "totals"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["export-state", str(tmp_path / "none"), out]) == 2
