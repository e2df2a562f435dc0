"""Facts about what arrives at a lane and what waits there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from tests.support.lane_flows import INPUTS, KEYS, sums

from godwit.checkpoint.entries import WaitingLayout
from godwit.checkpoint.storage import CheckpointStorage
from godwit.columns.hashing import hash_keys
from godwit.engine.lane.files import LaneFiles
from godwit.engine.lane.messages import LaneReport
from godwit.engine.lane.packing import pack, raw_schema
from godwit.engine.lane.rows import (
    LaneRows,
    buffer_suspended_rows,
    prepend_waiting_rows,
    unpack_payloads,
)
from godwit.engine.lane.wire import Header, Shipment, ship
from godwit.library import aggregates as gw
from godwit.library.compute import ComputeOperator
from godwit.library.process import ProcessOperator

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.operators.operator import KeyedOperator

NUM_KEY_GROUPS = 8


def listing() -> ProcessOperator:
    """An operator that cannot be merged."""
    return ProcessOperator(
        name="listing",
        keys=KEYS,
        inputs=INPUTS,
        function=lambda key, rows, state: None,
        state_type=list,
        output=None,
    )


def arrived(operator: KeyedOperator, *batches: pa.RecordBatch) -> list[tuple[Header, bytes]]:
    """Payloads as the exchange would bring them, in order of origin."""
    places = np.zeros(NUM_KEY_GROUPS, np.int32)
    shipment = Shipment(index=0, level=1, operator=operator, places=places)
    payloads = [
        payload
        for partition, batch in enumerate(batches)
        for _, payload in ship(shipment, batch, (0, partition, 0))
    ]
    return sorted(((Header.of(p), p) for p in payloads), key=lambda pair: pair[0].origin)


def batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True)
    return pa.record_batch({"k": pa.array(keys), "v": pa.array(values, pa.int64())})


def test_rows_come_in_the_order_of_their_origin_with_their_hashes() -> None:
    operator = listing()
    payloads = arrived(operator, batch(("a", 1), ("b", 2)), batch(("a", 3)))
    rows = unpack_payloads(operator, NUM_KEY_GROUPS, payloads, partial=False)
    assert rows.batch.column("v").to_pylist() == [1, 2, 3]
    assert rows.hashes.tolist() == hash_keys(rows.entries.keys).tolist()
    assert not rows.partial


def test_partial_states_are_combined_payload_by_payload() -> None:
    operator = sums()
    payloads = arrived(operator, batch(("a", 1), ("a", 2), ("b", 5)), batch(("a", 10)))
    rows = unpack_payloads(operator, NUM_KEY_GROUPS, payloads, partial=True)
    assert rows.partial
    found = list(
        zip(rows.entries.keys.column(0).to_pylist(), rows.batch.column(2).to_pylist(), strict=True)
    )
    assert sorted(found) == [("a", 3), ("a", 10), ("b", 5)]
    assert rows.hashes.tolist() == hash_keys(rows.entries.keys).tolist()
    assert rows.pre_aggregated() is rows


def test_no_payloads_are_no_rows() -> None:
    rows = unpack_payloads(sums(), NUM_KEY_GROUPS, [], partial=True)
    assert (rows.batch.num_rows, rows.partial) == (0, True)


def files_in(root: Path) -> LaneFiles:
    return LaneFiles(
        storage=CheckpointStorage.open(str(root)),
        epoch=3,
        flow=0,
        name="test",
        inline_bytes=1 << 20,
        compression=None,
    )


def test_rows_that_wait_come_back_first_in_order(tmp_path: Path) -> None:
    operator, storage = listing(), CheckpointStorage.open(str(tmp_path))
    layout = WaitingLayout(operator=operator.name, schema=operator.waiting_schema)
    keys = [f"key {i}" for i in range(20)]
    segments = []
    everything = np.ones(NUM_KEY_GROUPS, np.bool_)
    for epoch in range(2):
        files, report = files_in(tmp_path), LaneReport(level=1, place=epoch, executor="a")
        payloads = arrived(
            operator, batch(*[(key, 10 * epoch + n) for n in (0, 1) for key in keys])
        )
        rows = unpack_payloads(operator, NUM_KEY_GROUPS, payloads, partial=False)
        assert buffer_suspended_rows(rows, everything, files).batch.num_rows == 0
        files.close(report)
        segments += report.segments
    now = unpack_payloads(
        operator, NUM_KEY_GROUPS, arrived(operator, batch(("key 3", 99))), partial=False
    )
    of_three = int(now.key_groups[0])
    three = np.array([of_three])
    back = prepend_waiting_rows(now, three, segments[::-1], layout, storage, since={})
    assert set(back.key_groups.tolist()) == {of_three}
    mine = np.flatnonzero(np.array(back.entries.keys.column(0).to_pylist()) == "key 3")
    assert back.batch.column("v").take(pa.array(mine)).to_pylist() == [0, 1, 10, 11, 99]
    assert back.hashes.tolist() == hash_keys(back.entries.keys).tolist()


def test_what_waits_of_an_operator_that_aggregates_is_partial_states(tmp_path: Path) -> None:
    operator = sums()
    rows = unpack_payloads(
        operator,
        NUM_KEY_GROUPS,
        arrived(operator, *[batch(*[(f"key {i}", 1) for i in range(20)]) for _ in range(3)]),
        partial=False,
    )
    waits = np.arange(NUM_KEY_GROUPS) % 2 == 0
    files, report = files_in(tmp_path), LaneReport(level=1, place=0, executor="a")
    left = buffer_suspended_rows(rows, waits, files)
    files.close(report)
    (segment,) = report.segments
    assert all(g % 2 == 0 for g in segment.key_groups)
    assert (left.key_groups % 2 == 1).all()
    assert left.partial
    assert buffer_suspended_rows(left, waits, files) is left


def test_a_sum_that_does_not_fit_before_the_exchange_is_sent_in_parts() -> None:
    summing = ComputeOperator(
        name="sums", keys=KEYS, inputs=INPUTS, aggregates={"total": gw.sum("v")}
    )
    rows = pa.record_batch(
        {"k": pa.array(["a", "b", "b"]), "v": pa.array([1, 2**63 - 1, 1])},
        schema=raw_schema(summing),
    )
    ((are_partial, packed, key_groups),), _ = pack(summing, rows, NUM_KEY_GROUPS, 0)
    raw = LaneRows.of(summing, NUM_KEY_GROUPS, rows, partial=False)
    combined = raw.pre_aggregated()
    assert are_partial
    assert combined.partial
    for batch in (packed, combined.batch):
        found = sorted(tuple(row.values()) for row in batch.to_pylist())
        assert found == [("a", 1), ("b", 1), ("b", 2**63 - 1)]
    assert key_groups.tolist() == combined.key_groups.tolist()
