from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, StateDescription
from godwit.checkpoint.framing import encode_record, load_record
from godwit.checkpoint.records import (
    BlockRef,
    CommitRecord,
    FlowIdentity,
    Manifest,
    OutputRef,
    SegmentRef,
    commit_path,
    manifest_path,
)
from godwit.checkpoint.storage import CheckpointStorage
from godwit.ops.verification import verify
from godwit.plan.staging import WrittenFile, WrittenFiles, encode_files

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = FlowIdentity(name="flow", num_key_groups=4)
FLOW = FlowVersion(
    operators={
        "op": OperatorVersion(
            kind="compute",
            keys=(("k", "string"),),
            states={"state": StateDescription(columns=(), codec="arrow", type={})},
        )
    }
)
ROWS = pa.record_batch({"hash": pa.array([1, 5, 2], pa.int64()), "k": ["a", "b", "c"]})


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return CommitLog.create_or_open(
        CheckpointStorage.open(tmp_path),
        IDENTITY,
        "r",
        flow=FLOW,
        retain_epochs=3,
        manifest_interval=2,
    )


def write(log: CommitLog, batch: pa.RecordBatch | bytes = ROWS) -> BlockRef:
    epoch = log.latest_epoch + 1
    with BlockWriter(log.storage, epoch=epoch, name="a", inline_limit_bytes=0) as writer:
        writer.add(batch if isinstance(batch, bytes) else encode_batch(batch))
        return writer.close()[0]


def segment(log: CommitLog, batch: pa.RecordBatch | bytes = ROWS) -> SegmentRef:
    return segment_ref(
        epoch=log.latest_epoch + 1, block=write(log, batch), key_groups=(1, 2), row_ends=(2, 3)
    )


def commit(log: CommitLog, *segments: SegmentRef, **fields: tuple[object, ...]) -> None:
    record = CommitRecord(epoch=log.latest_epoch + 1, run_id="", segments=segments)
    log.commit(msgspec.structs.replace(record, **fields))


def problems(log: CommitLog) -> list[str]:
    return [f"{finding.file}: {finding.problem}" for finding in verify(log.storage).findings]


def test_a_whole_checkpoint_has_no_findings(log: CommitLog) -> None:
    for _ in range(6):
        commit(log, segment(log))
    report = verify(log.storage)
    assert report.ok
    assert report.epochs == (3, 5)
    assert report.blocks == 6
    assert report.checked_bytes > 6 * 100


def test_an_empty_checkpoint_has_no_findings_and_a_missing_one_has(
    log: CommitLog, tmp_path: Path
) -> None:
    assert verify(log.storage).ok
    assert verify(log.storage).epochs is None
    (finding,) = verify(CheckpointStorage.open(tmp_path / "nowhere")).findings
    assert finding.file == "identity.rec"


def test_rows_in_the_wrong_key_group_are_found(log: CommitLog) -> None:
    wrong = msgspec.structs.replace(segment(log), row_ends=(1, 3))
    commit(log, wrong)
    (problem,) = problems(log)
    assert wrong.block.file in problem
    assert "the first in row 1: it is stored in 2 but belongs to 1" in problem


def test_rows_that_nobody_is_told_about_are_found(log: CommitLog) -> None:
    commit(log, msgspec.structs.replace(segment(log), row_ends=(1, 2)))
    (problem,) = problems(log)
    assert "has 3 rows, not 2" in problem


def test_a_snapshot_with_rows_of_another_key_group_or_too_few_is_found(log: CommitLog) -> None:
    commit(log, segment(log))
    snapshot = snapshot_ref(rows=7, block=write(log))
    commit(log, snapshots=(snapshot,))
    few, wrong = sorted(problems(log))
    assert "has 1 rows in the wrong key group" in few + wrong
    assert "has 3 rows, not 7" in few + wrong


def test_output_with_another_number_of_rows_is_found(log: CommitLog) -> None:
    commit(log, outputs=(OutputRef(sink="s", flow=0, lane=0, rows=2, block=write(log)),))
    (problem,) = problems(log)
    assert "The output for 's' at 0 has 3 rows, not 2" in problem


def test_a_block_that_is_no_batch_is_found(log: CommitLog) -> None:
    commit(log, segment(log, b"not arrow"))
    (problem,) = problems(log)
    assert "is not a valid Arrow record batch" in problem


def test_columns_that_change_within_a_chain_are_found(log: CommitLog) -> None:
    commit(log, segment(log))
    commit(log, segment(log, ROWS.append_column("removed", pa.array([True] * 3))))
    assert problems(log) == []
    commit(log, segment(log, ROWS.append_column("v", pa.array([1] * 3))))
    (problem,) = problems(log)
    assert "has columns or types that differ from flow version 0" in problem


def test_a_missing_record_is_found_and_the_rest_is_still_checked(
    log: CommitLog, tmp_path: Path
) -> None:
    for _ in range(6):
        commit(log, segment(log))
    (tmp_path / commit_path(4)).unlink()
    block = log.record(5).segments[0].block
    (tmp_path / block.file).unlink()
    report = verify(log.storage)
    assert [finding.file for finding in report.findings] == [block.file, commit_path(4)]
    assert report.epochs == (3, 5)


def test_a_manifest_that_contradicts_the_records_is_found(log: CommitLog, tmp_path: Path) -> None:
    for _ in range(6):
        commit(log, segment(log))
    manifest = load_record(log.storage, manifest_path(3), Manifest)
    (of_state,) = manifest.states
    fewer = msgspec.structs.replace(of_state, segments=of_state.segments[:-1])
    wrong = msgspec.structs.replace(manifest, states=(fewer,))
    (tmp_path / manifest_path(3)).write_bytes(encode_record(wrong))
    # Retained from here on, epochs start from the manifest before that one.
    (tmp_path / commit_path(5)).write_bytes(
        encode_record(msgspec.structs.replace(log.record(5), retained_from=1))
    )
    (problem,) = problems(log)
    assert problem.startswith(manifest_path(3))
    assert "contradicts the records" in problem


def test_a_record_filed_under_another_epoch_is_found(log: CommitLog, tmp_path: Path) -> None:
    for _ in range(2):
        commit(log, segment(log))
    (tmp_path / commit_path(1)).write_bytes((tmp_path / commit_path(0)).read_bytes())
    assert any("it is of epoch 0" in problem for problem in problems(log))


def test_a_record_that_contradicts_the_one_before_is_found(log: CommitLog, tmp_path: Path) -> None:
    commit(log, segment(log))
    record = log.record(0)
    doubled = msgspec.structs.replace(record, segments=record.segments * 2)
    (tmp_path / commit_path(0)).write_bytes(encode_record(doubled))
    assert any("two segments change key group 1" in problem for problem in problems(log))


def test_damage_everywhere_is_reported_and_not_raised(log: CommitLog, tmp_path: Path) -> None:
    for _ in range(6):
        commit(log, segment(log))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(b"garbage")
    found = {finding.file for finding in verify(log.storage).findings}
    records = {str(p.relative_to(tmp_path)) for p in files if p.suffix == ".rec"}
    assert found == records


@pytest.mark.parametrize(
    ("rows", "data", "found"),
    [
        (5, None, ""),
        (6, None, "has 5 rows, not 6"),
        (5, b"\xc1", "does not describe files of a sink"),
    ],
)
def test_the_files_of_a_sinks_target_are_those_that_the_output_counts(
    log: CommitLog, rows: int, data: bytes | None, found: str
) -> None:
    files = tuple(
        WrittenFile(path=name, delivered=name, rows=n, size_bytes=9)
        for name, n in (("a", 2), ("b", 3))
    )
    block = write(log, data or encode_files(WrittenFiles(target="out", files=files)))
    output = OutputRef(sink="out", flow=0, lane=0, rows=rows, block=block, kind="files")
    commit(log, outputs=(output,))
    findings = verify(log.storage).findings
    assert [found in finding.problem for finding in findings] == ([True] if found else [])


def test_records_that_are_all_gone_are_missed(log: CommitLog) -> None:
    for directory in ("commits", "manifests"):
        for path in log.storage.list(directory):
            log.storage.delete(path)
    assert verify(log.storage).ok, "as after a start that ended before its first epoch"
    log.storage.write_atomic("spark/commits/0", b"v1")
    (finding,) = verify(log.storage).findings
    assert (finding.file, finding.problem) == (
        "commits",
        "There is no record, although Spark has recorded completed micro-batches.",
    )
