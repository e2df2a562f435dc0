"""Checkpoints and targets that are copied, restored and started in any order.

The oracle: a start that is accepted leaves the target with exactly the rows of the checkpoint's own
epochs, whatever happened to the two before.  Commits, sinks and directories are real.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

import godwit as gw
from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import CommitRecord, FlowIdentity, OutputRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks
from godwit.model.errors import SinkError
from godwit.ops.copying import copy_checkpoint
from godwit.plan.compiled import SinkOutput

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow
    from godwit.sinks.continuity import Way
    from godwit.sinks.sink import Sink

ROWS = pa.schema([("row", pa.int64())])
EPOCHS = st.lists(st.booleans(), max_size=3)  # whether an epoch has rows
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 9), EPOCHS, st.booleans()),
        st.tuples(st.just("run"), st.integers(0, 9), EPOCHS, st.booleans()),
        st.tuples(st.just("copy checkpoint"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("copy target")),
        st.tuples(st.just("restore target"), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=12,
)


class BackedUpQuery:
    """Checkpoints of one query, their target, and what must be in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.histories: list[list[list[int]]] = [[]]  # checkpoint → epoch → rows
        self.saved: list[Path] = []
        self._rows = count()

    def checkpoint(self, number: int) -> Path:
        return self.root / f"checkpoint{number}"

    @property
    def target(self) -> Path:
        return self.root / "target"

    def rows(self) -> list[int]:
        if not list(self.target.glob("epoch=*")):
            return []
        return sorted(pq.read_table(self.target).column("row").to_pylist())

    def run(self, number: int, epochs: list[bool], *, dies: bool) -> None:
        number %= len(self.histories)
        ways: tuple[Way, ...] = ("refuse", "roll_back")
        for way in ways:
            try:
                self._start(number, epochs, way, dies=dies)
            except SinkError as error:
                event(f"{way}: {error.context.get('divergence')}")
                continue
            event(f"{way}: accepted")
            expected = [row for rows in self.histories[number] for row in rows]
            if dies:  # the last epoch is committed and perhaps not delivered
                last = self.histories[number][-1] if self.histories[number] else []
                assert self.rows() in (expected, expected[: len(expected) - len(last)])
            else:
                assert self.rows() == expected
            return

    def _start(self, number: int, epochs: list[bool], way: Way, *, dies: bool) -> None:
        storage = CheckpointStorage.open(self.checkpoint(number))
        query_id = "" if storage.list("") else uuid4().hex
        identity = FlowIdentity(name="flow", num_key_groups=4, query_id=query_id)
        log = CommitLog.create_or_open(storage, identity, uuid4().hex[:12])
        flow = _flow(gw.sinks.parquet(self.target))
        opened = OpenSinks(flow, log, cast("Any", None), renamed={}, on_divergence=way)
        with closing(opened) as sinks:
            if log.latest is not None:
                sinks.deliver(log.latest, again=True)
            for at, has_rows in enumerate(epochs):
                rows = [next(self._rows)] if has_rows else []
                record = self._commit(log, sinks, rows)
                self.histories[number].append(rows)
                if not (dies and at == len(epochs) - 1):
                    sinks.deliver(record)

    def _commit(self, log: CommitLog, sinks: OpenSinks, rows: list[int]) -> CommitRecord:
        epoch = log.latest_epoch + 1
        outputs: tuple[OutputRef, ...] = ()
        if rows:
            writer = BlockWriter(log.storage, epoch=epoch, name="lane0")
            writer.add(encode_batch(pa.record_batch({"row": rows}, schema=ROWS)))
            (block,) = writer.close()
            outputs = (OutputRef(sink="out", flow=log.flow, lane=0, rows=len(rows), block=block),)
        return log.commit(
            CommitRecord(epoch=epoch, run_id="", sinks=sinks.records(), outputs=outputs)
        )

    def copy_checkpoint(self, number: int, *, by_hand: bool) -> None:
        number %= len(self.histories)
        if not self.checkpoint(number).exists():
            return
        copy = self.checkpoint(len(self.histories))
        if by_hand:
            shutil.copytree(self.checkpoint(number), copy)
        else:
            storages = (CheckpointStorage.open(path) for path in (self.checkpoint(number), copy))
            copy_checkpoint(*storages, same_query=True)
        self.histories.append([*self.histories[number]])

    def copy_target(self) -> None:
        if self.rows():
            self.saved.append(self.root / f"saved{len(self.saved)}")
            shutil.copytree(self.target, self.saved[-1])

    def restore_target(self, number: int) -> None:
        if self.saved:
            shutil.rmtree(self.target)
            shutil.copytree(self.saved[number % len(self.saved)], self.target)


def _flow(sink: Sink) -> CompiledFlow:
    out = SinkOutput(name="out", operator="o", maps=(), schema=ROWS, keys=(), sink=sink)
    operator = SimpleNamespace(complete=False)
    return cast(
        "CompiledFlow",
        SimpleNamespace(name="flow", outputs=(out,), operator=lambda _name: operator),
    )


@settings(derandomize=True, deadline=None, max_examples=rounds(4, 15), database=None)
@given(STEPS)
def test_a_start_that_is_accepted_leaves_the_rows_of_its_own_epochs(
    steps: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = BackedUpQuery(Path(directory))
        for kind, *given_ in steps:
            if kind == "run":
                number, epochs, dies = given_
                world.run(number, epochs, dies=dies)
            elif kind == "copy checkpoint":
                world.copy_checkpoint(given_[0], by_hand=given_[1])
            elif kind == "copy target":
                world.copy_target()
            else:
                world.restore_target(given_[0])
