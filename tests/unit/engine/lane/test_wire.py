"""Facts about what crosses an exchange, and about counting it at the sender."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lane_flows import flow_of, rows_of, summed, sums
from tests.support.manual_run import ManualRun

from godwit.columns.hashing import hash_keys
from godwit.engine.lane import wire
from godwit.engine.lane.wire import Header, Shipment, ship, split_by_place, unpack_rows
from godwit.library import aggregates as gw
from godwit.model.key_groups import key_groups_of
from godwit.store.compiled import LOADER

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

NUM_KEY_GROUPS = 16


@pytest.mark.parametrize("num_places", [2, 5, 300])
def test_each_lane_gets_its_rows_in_their_order(num_places: int) -> None:
    places = np.random.default_rng(1).integers(0, num_places, 5000).astype(np.int32)
    rows = pa.record_batch({"row": np.arange(5000)})
    split = {place: part.column(0).to_pylist() for place, part in split_by_place(rows, places)}
    assert split == {p: np.flatnonzero(places == p).tolist() for p in np.unique(places).tolist()}


def test_machine_code_orders_many_rows_that_a_lane_combines_by_key_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LOADER, "mode", "now")
    operator, places = sums(), np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 3
    shipment = Shipment(index=0, level=1, operator=operator, places=places)
    names = [f"key-{key:08d}" for key in np.random.default_rng(3).permutation(70_000)]
    columns = pa.record_batch({"k": names, "v": np.arange(70_000)})
    key_groups = key_groups_of(hash_keys(columns.select(["k"])), NUM_KEY_GROUPS)
    for place, payload in ship(shipment, columns, (0, 0, 0)):
        (own,) = np.nonzero(places[key_groups] == place)
        expected = columns.take(pa.array(own[np.argsort(key_groups[own], kind="stable")]))
        assert unpack_rows(payload, columns.schema).equals(expected)


def test_results_do_not_depend_on_the_order_of_key_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fractions(keyed: KeyedStream) -> Stream:
        return keyed.compute(total=gw.sum("v / 7"), last=gw.last("v"))  # of doubles: order counts

    rows, results = rows_of(np.random.default_rng(5), 30_000, 20_000), []
    monkeypatch.setattr(LOADER, "mode", "now")
    for ordered_rows in (0, 100_000):
        monkeypatch.setattr(wire, "_ORDERED_ROWS", ordered_rows)
        flow = flow_of(fractions, NUM_KEY_GROUPS)
        run = ManualRun(flow, tmp_path / str(ordered_rows), {"a": 2, "b": 1})
        for _ in range(2):
            run.play({0: rows})
        results.append((run.held(), run.output()))
    assert results[0] == results[1]
    assert len(results[0][0]) > 1000


@pytest.mark.parametrize("keys", [5, 100_000], ids=["repeating", "distinct"])
def test_every_row_goes_to_the_place_of_its_key_group(keys: int) -> None:
    operator, places = sums(), np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 3
    shipment = Shipment(index=4, level=2, operator=operator, places=places)
    (columns, _) = rows_of(np.random.default_rng(0), 4000, keys)
    tally, rows, found = np.zeros((2, NUM_KEY_GROUPS)), 0, np.zeros(NUM_KEY_GROUPS, np.int64)
    total_bytes = 0
    for place, payload in ship(shipment, columns, (0, 7, 1), tally):
        header = Header.of(payload)
        assert (header.level, header.operator, header.origin) == (2, 4, (0, 7, 1, 0))
        schema = operator.waiting_schema if header.is_partial else columns.schema
        batch = unpack_rows(payload, schema)
        groups = key_groups_of(hash_keys(batch.select(["k"])), NUM_KEY_GROUPS)
        assert (places[groups] == place).all()
        found += np.bincount(groups, minlength=NUM_KEY_GROUPS)
        rows += header.rows
        total_bytes += len(payload)
        assert not tally.any()  # counted when all is sent
    assert rows == columns.num_rows
    assert tally[0].tolist() == found.tolist()
    assert tally[1].sum() == pytest.approx(total_bytes)


def test_lanes_report_what_they_sent_on_and_how_much_of_it_crossed_executors(
    tmp_path: Path,
) -> None:
    def two(keyed: KeyedStream) -> Stream:
        second = summed(keyed).key_by("n")
        return second.compute(name="second", keys=gw.count(), highest=gw.max("total"))

    flow = flow_of(two, NUM_KEY_GROUPS)
    for executors, crosses in (({"a": 2}, False), ({"a": 1, "b": 1}, True)):
        run = ManualRun(flow, tmp_path / "-".join(executors), executors)
        _, reports = run.play({0: rows_of(np.random.default_rng(0), 2000, 500)})
        assert sorted((r.level, r.place) for r in reports) == [(1, 0), (1, 1), (2, 0), (2, 1)]
        sent = [load for report in reports if report.level == 1 for load in report.passed_on]
        assert all(load.exchanged for load in sent)
        assert {load.operator for load in sent} == {"second"}
        arrived = sum(
            sum(done.load.rows)
            for report in reports
            if report.level == 2
            for done in report.operators
        )
        assert sum(load.sent[1].sum() for load in sent) == arrived
        crossed = sum(load.crossed_bytes for load in sent)
        assert (crossed > 0) == crosses
        assert crossed < sum(load.sent[2].sum() for load in sent)
        assert all(report.passed_on == [] for report in reports if report.level == 2)
