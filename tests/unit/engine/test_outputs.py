"""Input of sinks in an epoch: rows, files of theirs, and leftovers of another run."""

from __future__ import annotations

import shutil
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import SCHEMA, Committed

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.records import BlockRef, CommitRecord, FlowIdentity, OutputRef, SinkRecord
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.model.errors import SinkError
from godwit.plan.compiled import SinkOutput
from godwit.plan.staging import (
    REJECTED,
    DivertedRows,
    Rejections,
    WrittenFile,
    WrittenFiles,
    encode_files,
)
from godwit.sinks.carried_files import carry_files
from godwit.sinks.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import EpochOutput, SinkContext

ROWS = pa.record_batch({"plane": ["N1", "N2", "N3"], "total": [1, -2, -3]}, schema=SCHEMA)


def not_negative(rows: pa.RecordBatch) -> Rejections | None:
    totals = rows.column("total").fill_null(0).to_numpy(zero_copy_only=False)
    found = np.flatnonzero(totals < 0)
    return Rejections(rows=found, reasons=["it is negative"] * len(found)) if len(found) else None


class Kept(Sink):
    """Remembers what it was given."""

    def __init__(self, target: str | None = None, rejects: Sink | None = None) -> None:
        self._target, self._rejects = target, rejects
        self.rows: list[dict[str, Any]] = []
        self.files: list[str] = []
        self.given: list[int] = []
        self.complete: list[bool | None] = []

    @property
    def target(self) -> str | None:
        return self._target

    @property
    def rejects(self) -> Sink | None:
        return self._rejects

    def row_check(self) -> RowCheck | None:
        return not_negative

    def open(self, context: SinkContext) -> None:
        self.context = context

    def deliver(self, output: EpochOutput) -> None:
        if output.epoch in self.given:
            return
        rows = [row for batch in output.batches() for row in batch.to_pylist()]
        self.rows += rows
        self.files += [file.path for file in output.files()]
        self.given.append(output.epoch)
        self.complete.append(output.complete)


def flow(sink: Kept) -> CompiledFlow:
    out = SinkOutput(
        name="out", operator="totals", maps=(), schema=SCHEMA, keys=("plane",), sink=sink
    )
    outputs = [out]
    if sink.rejects is not None:
        rejects = SinkOutput(
            name="out_rejects",
            operator="totals",
            maps=(),
            schema=REJECTED,
            keys=(),
            sink=sink.rejects,
            rejects_of="out",
        )
        outputs.append(rejects)
    return cast(
        "CompiledFlow",
        SimpleNamespace(
            name="flow",
            outputs=tuple(outputs),
            operator=lambda _name: SimpleNamespace(complete=False),
        ),
    )


def opened(
    flow: CompiledFlow,
    storage: CheckpointStorage,
    *,
    query_id: str = "query-1",
    latest: CommitRecord | None = None,
    **options: Any,
) -> OpenSinks:
    epochs = Committed(latest_epoch=-1 if latest is None else latest.epoch)
    identity = FlowIdentity(name="flow", num_key_groups=8, query_id=query_id)
    log = SimpleNamespace(
        storage=storage,
        latest=latest,
        identity=identity,
        latest_epoch=epochs.latest_epoch,
        retained_epochs=epochs.retained_epochs,
        point=epochs.point,
        relation=epochs.relation,
        last_shared_epoch=epochs.last_shared_epoch,
    )
    return OpenSinks(flow, cast("Any", log), cast("Any", None), renamed={}, **options)


def given(
    directory: Path,
    sink: Kept,
    blocks: Sequence[tuple[Any, str, int]],
    *,
    again: bool,
    kind: str = "",
) -> None:
    storage = CheckpointStorage.open(str(directory / "checkpoint"))
    writer = BlockWriter(storage, epoch=3, name="lane0")
    for data, _, _ in blocks:
        writer.add(data)
    refs = tuple(
        OutputRef(sink="out", flow=0, lane=0, rows=rows, block=block, kind=cast("Any", kind))
        for (_, kind, rows), block in zip(blocks, writer.close(), strict=True)
    )
    outputs = flow(sink).outputs
    to = {output.name: SinkRecord(writer=output.name, kind=kind) for output in outputs}
    record = CommitRecord(epoch=3, run_id="r", outputs=refs, sinks=to)
    with closing(opened(flow(sink), storage, latest=record if again else None)) as sinks:
        sinks.deliver(record, again=again)


def staged(rows: pa.RecordBatch = ROWS) -> tuple[Any, str, int]:
    return encode_batch(rows), "rows", rows.num_rows


def test_rows_that_this_run_staged_are_not_looked_at_again(tmp_path: Path) -> None:
    sink = Kept()
    given(tmp_path, sink, [staged()], again=False)
    assert sink.rows == ROWS.to_pylist()


def test_a_row_that_another_run_staged_and_the_sink_cannot_take_stops_delivery_by_its_key(
    tmp_path: Path,
) -> None:
    sink = Kept()
    with pytest.raises(SinkError, match=r"epoch 3, which is committed.*\"N2\".*it is negative"):
        given(tmp_path, sink, [staged()], again=True)
    assert sink.given == []


class _Deleting(Kept):
    """A sink that takes changes, and knows its epochs."""

    deletes = keeps_epochs = True

    def last_delivered(self) -> None:
        return None


def test_changes_of_an_earlier_flow_are_not_delivered_as_rows(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="emitted the rows as upserts, and this one emits rows"):
        given(tmp_path, _Deleting(), [staged()], again=True, kind="upserts")
    for sink, again in ((_Deleting(), False), (Kept(), True)):
        given(tmp_path, sink, [staged(ROWS.slice(0, 1))], again=again, kind="upserts")
        assert sink.given == [3]


@pytest.mark.parametrize(
    "columns", [["total", "plane"], ["plane", "total", "gone"], ["total"], ["plane"]]
)
def test_rows_with_the_columns_of_an_earlier_flow_are_looked_at_by_name(
    tmp_path: Path, columns: list[str]
) -> None:
    rows = ROWS.append_column("gone", pa.array([1.5] * 3)).select(columns)
    rejects = Kept()
    sink = Kept(rejects=rejects)
    given(tmp_path, sink, [staged(rows)], again=True)
    kept = [row.get("plane", row.get("total")) for row in sink.rows]
    if "total" in columns:
        assert (len(kept), len(rejects.rows)) == (1, 2)
    else:  # new columns are null, and null is not negative
        assert (kept, rejects.rows) == (["N1", "N2", "N3"], [])


def test_rows_that_do_not_fit_the_columns_of_today_are_left_to_the_sink(tmp_path: Path) -> None:
    rows = pa.record_batch({"plane": ["N1"], "total": ["no number"]})
    sink = Kept()
    given(tmp_path, sink, [staged(rows)], again=True)
    assert sink.rows == rows.to_pylist()


def test_with_a_place_for_it_such_a_row_is_set_aside_before_the_epoch_counts(
    tmp_path: Path,
) -> None:
    rejects = Kept()
    sink = Kept(rejects=rejects)
    for _ in range(2):
        given(tmp_path, sink, [staged(), staged(ROWS.slice(1, 1))], again=True)
    assert [row["plane"] for row in sink.rows] == ["N1"]
    assert [row["key"] for row in rejects.rows] == [
        *('{"plane": "N2"}', '{"plane": "N3"}', '{"plane": "N2"}')
    ]
    assert rejects.given == [3]


class Refusing(Kept):
    """Refuses negative totals as a server does, and may die before the others count."""

    dies = False

    def row_check(self) -> RowCheck | None:
        return None

    def deliver(self, output: EpochOutput) -> None:
        if output.epoch in self.given:
            return
        for batch in output.batches():
            found = not_negative(batch)
            assert found is not None
            output.divert(batch, found)
        if self.dies:
            raise ConnectionError("the server is gone")
        self.given.append(output.epoch)


class Relenting(Refusing):
    """Takes in its second attempt what it refused in its first."""

    refused: tuple[str, ...] = ()

    def deliver(self, output: EpochOutput) -> None:
        for batch in output.batches():
            planes = batch.column("plane").to_pylist()
            found = np.flatnonzero([plane in self.refused for plane in planes])
            output.divert(
                batch.take(pa.array(found)),
                Rejections(rows=np.arange(len(found)), reasons=["it is refused"] * len(found)),
            )
        if self.dies:
            raise ConnectionError("the server is gone")
        self.given.append(output.epoch)


@pytest.mark.parametrize("then", [(), ("N3",), ("N2", "N3")])
def test_rows_refused_in_delivery_are_those_of_the_attempt_that_counts(
    tmp_path: Path, then: tuple[str, ...]
) -> None:
    rejects = Kept()
    sink = Relenting(rejects=rejects)
    sink.refused, sink.dies = ("N1", "N2"), True
    with pytest.raises(SinkError, match="the server is gone"):
        given(tmp_path, sink, [staged()], again=False)
    sink.refused, sink.dies = then, False
    given(tmp_path, sink, [staged()], again=True)
    assert [row["key"] for row in rejects.rows] == [f'{{"plane": "{plane}"}}' for plane in then]


class Overwriting(Kept):
    """Keeps what an epoch brought last, as a function does that overwrites by epoch."""

    def deliver(self, output: EpochOutput) -> None:
        self.rows = [row for batch in output.batches() for row in batch.to_pylist()]
        self.given.append(output.epoch)


def test_a_sink_of_rejected_rows_gets_an_epoch_once_with_all_of_them(tmp_path: Path) -> None:
    rejects = Overwriting()
    given(tmp_path, Refusing(rejects=rejects), [staged()], again=False)
    assert rejects.given == [3]
    assert [row["key"] for row in rejects.rows] == ['{"plane": "N2"}', '{"plane": "N3"}']


def test_rows_refused_in_delivery_come_again_though_the_target_has_the_others(
    tmp_path: Path,
) -> None:
    rejects = Overwriting()
    sink = Refusing(rejects=rejects)
    for _ in range(2):  # the second time, the sink has the epoch and refuses nothing
        given(tmp_path, sink, [staged()], again=True)
        assert [row["key"] for row in rejects.rows] == ['{"plane": "N2"}', '{"plane": "N3"}']


def test_a_sink_of_rejected_rows_waits_for_a_delivery_that_succeeds(tmp_path: Path) -> None:
    rejects = Kept()  # takes each epoch once
    sink = Refusing(rejects=rejects)
    sink.dies = True
    with pytest.raises(SinkError, match="the server is gone"):
        given(tmp_path, sink, [staged(ROWS.slice(1, 1))], again=False)
    assert rejects.given == []
    sink.dies = False
    given(tmp_path, sink, [staged()], again=True)
    assert [row["key"] for row in rejects.rows] == ['{"plane": "N2"}', '{"plane": "N3"}']


class Forgiving(Refusing):
    """Has a record of its epochs, and takes whatever it refused before."""

    @property
    def keeps_epochs(self) -> bool:
        return True

    def deliver(self, output: EpochOutput) -> None:
        if self.dies:
            super().deliver(output)
        else:
            Kept.deliver(self, output)


def test_rows_that_were_refused_before_a_crash_and_are_taken_after_it_are_not_rejected(
    tmp_path: Path,
) -> None:
    rejects = Kept()
    sink = Forgiving(rejects=rejects)
    sink.dies = True
    with pytest.raises(SinkError, match="the server is gone"):
        given(tmp_path, sink, [staged()], again=False)
    sink.dies = False
    given(tmp_path, sink, [staged()], again=True)
    assert sink.rows == ROWS.to_pylist()
    assert rejects.rows == []


def test_refused_rows_of_epochs_that_cannot_come_again_are_let_go(tmp_path: Path) -> None:
    kept = DivertedRows(CheckpointStorage.open(str(tmp_path)))
    rows = pa.Table.from_batches([ROWS])
    for epoch in (3, 4):
        kept.store("a sink/of mine", epoch, [rows, rows])
    again = DivertedRows(CheckpointStorage.open(str(tmp_path)))
    again.delete_before(4)
    assert again.read("a sink/of mine", 3) == ()
    assert [batch.num_rows for batch in again.read("a sink/of mine", 4)] == [6]
    assert len(list((tmp_path / "diverted").iterdir())) == 1


def test_one_object_serves_one_running_query(tmp_path: Path) -> None:
    sink, storage = Kept(), CheckpointStorage.open(str(tmp_path))
    first = opened(flow(sink), storage)
    with pytest.raises(SinkError, match="'out' serves another running query"):
        opened(flow(sink), storage, query_id="query-2")
    assert sink.context.query_id == "query-1"
    first.close()
    opened(flow(sink), storage, query_id="query-2").close()
    assert sink.context.query_id == "query-2"


WHOLE = SinkRecord(writer="out", complete=True)
CHANGED = SinkRecord(writer="out")


@pytest.mark.parametrize(
    ("former", "got"),
    [({"out": CHANGED}, [None]), ({"out": WHOLE}, [True]), ({"other": WHOLE}, [])],
)
def test_the_last_epoch_is_delivered_as_what_it_was_and_to_no_sink_that_was_not_there(
    tmp_path: Path, former: dict[str, SinkRecord], got: list[bool | None]
) -> None:
    record = CommitRecord(epoch=3, run_id="r", sinks=former)
    storage = CheckpointStorage.open(str(tmp_path))
    sink = Kept()
    with closing(opened(flow(sink), storage, latest=record)) as sinks:
        sinks.deliver(record, again=True)
    assert sink.complete == got


def test_rows_that_nobody_is_there_for_any_more_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    block = BlockRef(file="blocks/000000000003-a.blk", offset=0, length=0, checksum=0)
    record = CommitRecord(
        epoch=3,
        run_id="r",
        outputs=(OutputRef(sink="gone", flow=0, lane=0, rows=24, block=block),),
        sinks={"gone": CHANGED, "out": CHANGED},
    )
    storage = CheckpointStorage.open(str(tmp_path))
    with closing(opened(flow(Kept()), storage, latest=record)) as sinks:
        (told,) = sinks.describe_changes()
    assert told.startswith("sink gone is gone; 24 rows that the last epoch has for it")
    assert "Sink 'gone' is gone; 24 rows" in caplog.text


def test_files_go_to_the_sink_they_were_written_for_and_others_get_their_rows(
    tmp_path: Path,
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    pq.write_table(pa.table({"total": [7, 8]}), target / "a.parquet")
    file = WrittenFile(
        path="a.parquet", delivered="b.parquet", rows=2, size_bytes=1, partition={"plane": "N9"}
    )
    files = encode_files(WrittenFiles(target=str(target), files=(file,)))
    own, other = Kept(target=str(target)), Kept()
    for sink in (own, other):
        given(tmp_path, sink, [(files, "files", 2), staged(ROWS.slice(0, 1))], again=True)
    assert own.files == ["a.parquet"]
    assert own.rows == [{"plane": "N1", "total": 1}]
    assert other.files == []
    assert other.rows == [
        *({"plane": "N9", "total": 7}, {"plane": "N9", "total": 8}, {"plane": "N1", "total": 1})
    ]


def test_a_copy_delivers_what_another_querys_lanes_wrote_though_it_is_gone(tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    target.mkdir()
    for name, totals in (("a.parquet", [7, 8]), ("delivered.parquet", [9])):
        pq.write_table(pa.table({"total": totals}), target / name)
    written = [
        WrittenFile(
            path=path, delivered=delivered, rows=rows, size_bytes=1, partition={"plane": "N9"}
        )
        for path, delivered, rows in (("a.parquet", "x", 2), ("y", "delivered.parquet", 1))
    ]
    block = encode_files(WrittenFiles(target=str(target), files=tuple(written)))
    storage = CheckpointStorage.open(str(tmp_path / "checkpoint"))
    writer = BlockWriter(storage, epoch=3, name="copied")
    writer.add(block)
    (ref,) = writer.close()
    outputs = [OutputRef(sink="out", flow=0, lane=0, rows=3, block=ref, kind="files")]
    nothing = CheckpointStorage.open(tmp_path / "nothing")
    assert list(carry_files(storage, outputs, source=nothing)) == []
    shutil.rmtree(target)
    (left,) = carry_files(storage, outputs, source=nothing)
    assert left.startswith(f"3 rows for sink 'out', in files at {target}: ")
    # A copy of the copy takes what that one carries.
    assert list(carry_files(storage, outputs, source=storage)) == []

    sink = Kept()
    given(tmp_path, sink, [(block, "files", 3)], again=True)
    assert [row["total"] for row in sink.rows] == [7, 8, 9]
    given(tmp_path, Kept(), [staged()], again=False)
    assert list((tmp_path / "checkpoint/carried").iterdir()) == []
    with pytest.raises(SinkError, match="does not exist"):
        given(tmp_path, Kept(), [(block, "files", 3)], again=True)


def test_files_written_with_other_credentials_are_the_sinks_own(tmp_path: Path) -> None:
    file = WrittenFile(path="a", delivered="b", rows=2, size_bytes=1, partition={})
    written = WrittenFiles(target="s3://***@bucket/out?region=eu", files=(file,))
    sink = Kept(target="s3://bucket/out")
    given(tmp_path, sink, [(encode_files(written), "files", 2)], again=True)
    assert (sink.files, sink.rows) == (["a"], [])


def test_lanes_are_told_where_rejected_rows_go(tmp_path: Path) -> None:
    (plain,) = staged_sinks(flow(Kept()))
    (placed,) = staged_sinks(flow(Kept(rejects=Kept())))
    assert (plain.rejects, placed.rejects) == (None, "out_rejects")
    assert plain.check is not_negative
    assert plain.writer is None
