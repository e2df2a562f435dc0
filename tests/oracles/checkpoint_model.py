"""A stream with state, twice: as dicts in memory, and through a checkpoint.

The state of a key is a number that every row changes in a way that depends on the order of rows, so
that rows lost, doubled or overtaken show.  Some key groups are suspended for some epochs: their
rows wait in the checkpoint, and are processed, in order, when they resume.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import BlockWriter, encode_batch, read_batch
from godwit.checkpoint.chains import choose_snapshots, rows_of
from godwit.checkpoint.collection import collect_garbage
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import EntryLayout, read_chain
from godwit.checkpoint.evolution import (
    FlowVersion,
    OperatorVersion,
    StateDescription,
    columns_of,
)
from godwit.checkpoint.records import (
    BatchRef,
    CommitRecord,
    FlowIdentity,
    OutputRef,
    SegmentRef,
    SnapshotRef,
    StateId,
)
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.storage import CheckpointStorage

NUM_KEY_GROUPS = 4
OPERATORS = ("books", "totals")
LANES = 2
STATE = "state"
# A key column named like ours, to see that nothing goes by names.
SCHEMA = StateSchema(pa.schema([("hash", pa.string())]), pa.schema([("value", pa.int64())]))
LAYOUT = EntryLayout(name="model", schema=SCHEMA)
IDENTITY = FlowIdentity(name="model", num_key_groups=NUM_KEY_GROUPS)
FLOW = FlowVersion(
    operators={
        name: OperatorVersion(
            kind="process",
            keys=columns_of(SCHEMA.keys),
            states={
                "state": StateDescription(columns=columns_of(SCHEMA.values), codec="arrow", type={})
            },
        )
        for name in OPERATORS
    }
)
WAITING = pa.schema([("key", pa.string()), ("delta", pa.int64())])

Place = tuple[str, int]
Row = tuple[str, int]
PLACES: list[Place] = [(op, g) for op in OPERATORS for g in range(NUM_KEY_GROUPS)]


@dataclass
class Model:
    """State and waiting rows of every key group, as of one epoch."""

    state: dict[Place, dict[str, int]] = field(default_factory=lambda: {p: {} for p in PLACES})
    waiting: dict[Place, list[Row]] = field(default_factory=lambda: {p: [] for p in PLACES})


@dataclass(frozen=True)
class Epoch:
    """Changes of one epoch."""

    rows: dict[Place, list[Row]]
    suspended: frozenset[Place]


def hash_of(key: str) -> int:
    """Hash of a key: some keys share one, and some are negative."""
    key_group, number = map(int, key.split("-"))
    return key_group + NUM_KEY_GROUPS * (number // 2 - 1)


def process(state: dict[str, int], rows: list[Row]) -> None:
    """Process rows in order; a delta of 0 removes the key."""
    for key, delta in rows:
        if delta == 0:
            state.pop(key, None)
        else:
            state[key] = (state.get(key, 0) * 31 + delta) % 1_000_003


def make_history(seed: int, epochs: int) -> list[Epoch]:
    random = Random(seed)
    history = []
    suspended: set[Place] = set()
    for _ in range(epochs):
        rows: dict[Place, list[Row]] = {}
        for place in PLACES:
            if random.random() < 0.6:
                count = random.randint(1, 6)
                rows[place] = [
                    (f"{place[1]}-{random.randint(0, 5)}", random.randint(0, 4))
                    for _ in range(count)
                ]
            suspended ^= {place} if random.random() < 0.2 else set()
        history.append(Epoch(rows=rows, suspended=frozenset(suspended)))
    return history


def models(history: list[Epoch]) -> list[Model]:
    """State after each epoch, from memory alone."""
    found, model = [], Model()
    for epoch in history:
        model = copy.deepcopy(model)
        for place in PLACES:
            rows = epoch.rows.get(place, [])
            if place in epoch.suspended:
                model.waiting[place] += rows
            else:
                process(model.state[place], model.waiting[place] + rows)
                model.waiting[place] = []
        found.append(model)
    return found


def open_log(storage: CheckpointStorage, run_id: str = "run") -> CommitLog:
    return CommitLog.create_or_open(
        storage,
        IDENTITY,
        run_id,
        flow=None if storage.list("commits") else FLOW,
        retain_epochs=2,
        manifest_interval=2,
    )


def run_epoch(log: CommitLog, epoch: Epoch, *, inline_limit_bytes: int) -> None:
    """Carry out the next epoch from what the checkpoint holds, and now and then collect."""
    number = log.latest_epoch + 1
    segments: list[SegmentRef] = []
    snapshots: list[SnapshotRef] = []
    outputs: list[OutputRef] = []
    consumed: dict[str, list[int]] = {}
    for lane in range(LANES):
        with BlockWriter(
            log.storage,
            epoch=number,
            name=f"lane{lane}",
            inline_limit_bytes=inline_limit_bytes,
        ) as writer:
            lane_run = _Lane(log=log, number=number, lane=lane, epoch=epoch, writer=writer)
            for operator in OPERATORS:
                consumed.setdefault(operator, []).extend(lane_run.process(operator))
            lane_run.write_output()
            lane_run.finish(segments, snapshots, outputs)
    log.commit(
        CommitRecord(
            epoch=number,
            run_id="",
            batch=BatchRef(number=number, digest="of no rows", offsets=b"v1\n{}\n-", lines=(0,)),
            segments=tuple(segments),
            snapshots=tuple(snapshots),
            outputs=tuple(outputs),
            consumed=consumed,
            watermarks={"source": number},
        )
    )
    if number % 2:
        collect_garbage(log)


class _Lane:
    def __init__(
        self, *, log: CommitLog, number: int, lane: int, epoch: Epoch, writer: BlockWriter
    ) -> None:
        self.log, self.number, self.lane, self.epoch = log, number, lane, epoch
        self.writer = writer
        self.rows = 0
        self.pending: list[tuple[str, dict[str, object]]] = []

    def process(self, operator: str) -> list[int]:
        mine = range(self.lane, NUM_KEY_GROUPS, LANES)
        changes: dict[int, pa.RecordBatch] = {}
        waits: dict[int, pa.RecordBatch] = {}
        consumed = []
        due = choose_snapshots(
            self.log.chains,
            StateId(operator, STATE),
            mine,
            budget_bytes=2_000,
            segment_overhead_bytes=200,
            min_changelog_bytes=600,
        )
        for key_group in mine:
            place = operator, key_group
            before = read_state(self.log.storage, self.log.chains, place)
            if key_group in due:
                self.write_snapshot(place, before)
            rows = self.epoch.rows.get(place, [])
            self.rows += len(rows)
            if place in self.epoch.suspended:
                if rows:
                    waits[key_group] = pa.RecordBatch.from_pylist(
                        [{"key": k, "delta": d} for k, d in rows], schema=WAITING
                    )
                continue
            waited = read_waiting(self.log.storage, self.log.chains, place)
            if waited:
                consumed.append(key_group)
            after = dict(before)
            process(after, waited + rows)
            touched = sorted({key for key, _ in waited + rows})
            if touched:
                changes[key_group] = state_batch(touched, after)
        self.write_segment(operator, "changes", changes)
        self.write_segment(operator, "waiting", waits)
        return consumed

    def write_segment(self, operator: str, kind: str, batches: dict[int, pa.RecordBatch]) -> None:
        if not batches:
            return
        batch = pa.concat_batches(list(batches.values()))
        if kind == "changes" and not any(batch.column(batch.num_columns - 1).to_pylist()):
            batch = pa.RecordBatch.from_arrays(batch.columns[:-1], names=batch.schema.names[:-1])
        self.add(
            "segment",
            batch,
            operator=operator,
            state=STATE if kind == "changes" else "",
            flow=self.log.flow,
            epoch=self.number,
            lane=self.lane,
            kind=kind,
            key_groups=tuple(batches),
            row_ends=tuple(np.cumsum([b.num_rows for b in batches.values()]).tolist()),
        )

    def write_snapshot(self, place: Place, state: dict[str, int]) -> None:
        batch = state_batch(sorted(state), state)
        batch = pa.RecordBatch.from_arrays(batch.columns[:-1], names=batch.schema.names[:-1])
        self.add(
            "snapshot",
            batch,
            operator=place[0],
            state=STATE,
            flow=self.log.flow,
            key_group=place[1],
            version=self.number - 1,
            rows=len(state),
        )

    def write_output(self) -> None:
        self.add(
            "output",
            pa.record_batch({"n": [self.rows]}),
            sink="out",
            flow=self.log.flow,
            lane=self.lane,
            rows=1,
        )

    def add(self, what: str, batch: pa.RecordBatch, **fields: object) -> None:
        index = self.writer.add(encode_batch(batch))
        self.pending.append((what, {**fields, "block": index}))

    def finish(
        self,
        segments: list[SegmentRef],
        snapshots: list[SnapshotRef],
        outputs: list[OutputRef],
    ) -> None:
        blocks = self.writer.close()
        for what, fields in self.pending:
            index = fields["block"]
            assert isinstance(index, int)
            ready: dict[str, object] = {**fields, "block": blocks[index]}
            if what == "segment":
                segments.append(SegmentRef(**ready))  # type: ignore[arg-type]  # built above
            elif what == "snapshot":
                snapshots.append(SnapshotRef(**ready))  # type: ignore[arg-type]  # built above
            else:
                outputs.append(OutputRef(**ready))  # type: ignore[arg-type]  # built above


def state_batch(keys: list[str], state: dict[str, int]) -> pa.RecordBatch:
    """Build a segment's rows for `keys`; those without state are removed."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([hash_of(key) for key in keys], pa.int64()),
            pa.array(keys, pa.string()),
            pa.array([state.get(key, 0) for key in keys], pa.int64()),
            pa.array([key not in state for key in keys], pa.bool_()),
        ],
        names=["hash", "hash", "value", "removed"],
    )


def read_state(storage: CheckpointStorage, chains: Chains, place: Place) -> dict[str, int]:
    rows = read_chain(storage, chains.chain(StateId(place[0], STATE), place[1]), LAYOUT)
    keys = rows.keys.column(0).to_pylist()
    assert rows.hashes.tolist() == [hash_of(key) for key in keys]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, rows.values.column(0).to_pylist(), strict=True))


def read_waiting(storage: CheckpointStorage, chains: Chains, place: Place) -> list[Row]:
    found: list[Row] = []
    for segment in chains.waiting_rows_of(*place):
        first, end = rows_of(segment, place[1])
        rows = read_batch(storage, segment.block).slice(first, end - first)
        found += zip(*rows.to_pydict().values(), strict=True)
    return found


def assert_equals(storage: CheckpointStorage, chains: Chains, model: Model) -> None:
    """Compare what the checkpoint holds with the model."""
    for place in PLACES:
        assert read_state(storage, chains, place) == model.state[place], place
        assert read_waiting(storage, chains, place) == model.waiting[place], place
