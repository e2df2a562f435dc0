from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.oracles.checkpoint_model import (
    assert_equals,
    make_history,
    models,
    open_log,
    run_epoch,
)

from godwit.model.errors import CheckpointError
from godwit.state.collection import collect
from godwit.state.commit_log import CommitLog
from godwit.state.copying import copy_checkpoint
from godwit.state.records import BatchRef, CommitRecord
from godwit.state.storage import CheckpointStorage
from godwit.state.verification import verify

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
            (spark / kind / str(batch)).write_text(f"{kind} {batch}")
            (spark / kind / f".{batch}.crc").write_text("sum")
    (spark / "sources" / "0").mkdir(parents=True)
    for batch in range(last + 1):
        (spark / "sources" / "0" / str(batch)).write_text(f"files {batch}")
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
        assert sorted(path.name for path in (spark / kind).iterdir()) == list("01234")
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


def test_nothing_is_copied_over(tmp_path: Path) -> None:
    log = written(tmp_path / "ck", 1)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine.txt").write_text("here")
    with pytest.raises(CheckpointError, match="something at"):
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
                collect(log)
        return read(self, path, offset, length)

    monkeypatch.setattr(type(source), "read", read_while_the_query_goes_on)
    copied = copy_checkpoint(source, CheckpointStorage.open(tmp_path / "copy"))
    assert copied.epoch == len(HISTORY) - 1
    fork = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "copy"))
    assert_equals(fork.storage, fork.chains, models(HISTORY)[-1])
