from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.oracles.checkpoint_model import (
    assert_equals,
    make_history,
    models,
    open_log,
    run_epoch,
)

from godwit.checkpoint.collection import collect_garbage
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import BatchRef, CommitRecord
from godwit.checkpoint.spark_log import OffsetLayout, Reading, files_read, update_layout
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError
from godwit.ops.copying import copy_checkpoint
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

HISTORY = make_history(3, 12)


def written(directory: Path, epochs: int) -> CommitLog:
    log = open_log(CheckpointStorage.open(directory))
    for epoch in HISTORY[:epochs]:
        run_epoch(log, epoch, inline_limit_bytes=200)
    return log


def write_spark_part(directory: Path, *, last: int, committed: int) -> None:
    spark = directory / "spark"
    for kind, upto in (("offsets", last), ("commits", committed)):
        (spark / kind).mkdir(parents=True)
        for batch in range(upto + 1):
            (spark / kind / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
            (spark / kind / f".{batch}.crc").write_text("sum")
    (spark / "sources" / "0").mkdir(parents=True)
    for batch in range(last + 1):
        (spark / "sources" / "0" / str(batch)).write_text(f"v1\n{batch}")
    (spark / "metadata").write_text(json.dumps({"id": "11111111-2222-3333-4444-555555555555"}))


def test_a_copy_holds_what_the_original_held_and_goes_on_by_itself(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 9)
    copied = copy_checkpoint(log.storage, CheckpointStorage.open(tmp_path / "copy"))
    assert copied.epoch == 8
    fork = open_log(CheckpointStorage.open(tmp_path / "copy"), "fork")
    assert fork.identity.query_id == copied.query_id != log.identity.query_id
    expected = models(HISTORY)
    assert_equals(fork.storage, fork.chains, expected[8])
    for epoch in fork.retained_epochs:
        assert_equals(fork.storage, fork.chains_at(epoch), expected[epoch])
    for later in HISTORY[9:]:
        run_epoch(fork, later, inline_limit_bytes=200)
    assert_equals(fork.storage, fork.chains, expected[-1])
    assert verify(fork.storage).ok
    assert CommitLog.open_read_only(log.storage).latest_epoch == 8


def test_sparks_part_fits_the_last_epoch_and_is_a_query_of_its_own(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 5)
    # An epoch without input follows; the last micro-batch is still that of epoch 4.
    log.commit(CommitRecord(epoch=5, run_id="", before=BatchRef(number=4, digest="x")))
    write_spark_part(tmp_path / "ck", last=6, committed=5)
    copied = copy_checkpoint(log.storage, CheckpointStorage.open(tmp_path / "copy"))
    spark = tmp_path / "copy" / "spark"
    for kind in ("offsets", "commits"):
        assert sorted(path.name for path in (spark / kind).iterdir()) == list("34")
    # What a source noted ahead of that, it is asked for again.
    assert sorted(path.name for path in (spark / "sources" / "0").iterdir()) == list("0123456")
    assert json.loads((spark / "metadata").read_text()) == {"id": str(UUID(copied.query_id))}


def test_a_backup_keeps_the_query(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 2)
    write_spark_part(tmp_path / "ck", last=1, committed=1)
    target = CheckpointStorage.open(tmp_path / "copy")
    copied = copy_checkpoint(log.storage, target, same_query=True)
    assert copied.query_id == log.identity.query_id
    original, kept = ((tmp_path / d / "spark" / "metadata").read_text() for d in ("ck", "copy"))
    assert kept == original


@dataclass
class Offsets:
    """Spark's log of a query of two sources, the second of files, beside which Spark continues."""

    root: Path
    now: int

    def of(self, number: int) -> bytes:
        return f'v1\n{{}}\n{{"0":{number}}}\n{{"logOffset":{number}}}'.encode()

    def write(self) -> None:
        kept = range(max(self.now - 100, 0), self.now + 1)
        spark = self.root / "spark"
        shutil.rmtree(spark, ignore_errors=True)
        for folder in ("offsets", "commits", "sources/1"):
            (spark / folder).mkdir(parents=True)
        for number in kept:
            (spark / "offsets" / str(number)).write_bytes(self.of(number))
            (spark / "commits" / str(number)).write_bytes(b'v1\n{"nextBatchWatermarkMs":0}')
        last = (self.now + 1) // 10 * 10 - 1
        for number in range(max(last, 0), self.now + 1):
            name = f"{number}.compact" if number == last else f"{number}"
            (spark / "sources/1" / name).write_bytes(b"v1\n{}")


def spark_entry(log: CommitLog, number: int, offsets: Offsets) -> None:
    layout = OffsetLayout(readings=((Reading(source="a"),), (Reading(source="b"),)), lines=(0, 1))
    update_layout(log.storage, layout, committed=False)
    batch = BatchRef(number=number, digest="x", offsets=offsets.of(number), lines=(0, 1))
    log.commit(CommitRecord(epoch=log.latest_epoch + 1, run_id="", batch=batch))


@pytest.mark.parametrize("ahead", [0, 55, 250])
def test_a_copy_is_whole_however_far_spark_goes_on_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    log = written(tmp_path / "ck", 2)
    for number in (230, 231):
        spark_entry(log, number, Offsets(tmp_path / "ck", number))
    Offsets(tmp_path / "ck", 231).write()
    source = CheckpointStorage.open(tmp_path / "ck")
    listed = type(source).list

    def list_while_the_query_goes_on(self: CheckpointStorage, directory: str) -> Any:
        found = listed(self, directory)
        if self is source and directory == "spark/sources/1" and ahead:
            monkeypatch.setattr(type(source), "list", listed)
            Offsets(tmp_path / "ck", 231 + ahead).write()
        return found

    monkeypatch.setattr(type(source), "list", list_while_the_query_goes_on)
    copied = copy_checkpoint(source, CheckpointStorage.open(tmp_path / "copy"))
    assert copied.epoch == 3
    spark = tmp_path / "copy" / "spark"
    offsets = {int(p.name): p.read_bytes() for p in (spark / "offsets").iterdir()}
    assert offsets == {n: Offsets(spark, n).of(n) for n in (230, 231)}
    names = [path.name for path in (spark / "sources" / "1").iterdir()]
    assert set(files_read(names, 231)) <= set(names)


def test_a_copy_without_what_the_sources_noted_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 2)
    spark_entry(log, 11, Offsets(tmp_path / "ck", 11))
    Offsets(tmp_path / "ck", 11).write()
    (tmp_path / "ck/spark/sources/1/9.compact").unlink()
    with pytest.raises(CheckpointError, match=r"'spark/sources/1/9\.compact' is not there"):
        copy_checkpoint(log.storage, CheckpointStorage.open(tmp_path / "copy"))
    assert not (tmp_path / "copy" / "identity.rec").exists()


def test_nothing_is_copied_over(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 1)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine.txt").write_text("here")
    with pytest.raises(CheckpointError, match="already exists"):
        copy_checkpoint(log.storage, CheckpointStorage.open(tmp_path / "copy"))


def test_a_collection_beside_it_makes_it_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "ck", 6)
    source = CheckpointStorage.open(tmp_path / "ck")
    read, epochs = type(source).read, iter(HISTORY[6:])

    def read_while_the_query_goes_on(
        self: CheckpointStorage, path: str, offset: int = 0, length: int | None = None
    ) -> pa.Buffer:
        if self is source and path.startswith("blocks/"):
            for epoch in epochs:
                run_epoch(log, epoch, inline_limit_bytes=200)
                collect_garbage(log)
        return read(self, path, offset, length)

    monkeypatch.setattr(type(source), "read", read_while_the_query_goes_on)
    copied = copy_checkpoint(source, CheckpointStorage.open(tmp_path / "copy"))
    assert copied.epoch == len(HISTORY) - 1
    fork = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "copy"))
    assert_equals(fork.storage, fork.chains, models(HISTORY)[-1])
