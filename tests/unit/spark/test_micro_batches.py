"""Micro-batches are known by the offsets and files of every source, however often it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import BatchRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError, CheckpointMismatchError
from godwit.spark.batch_rows import MicroBatches

if TYPE_CHECKING:
    from collections.abc import Sequence


def put(root: Path, number: int, ends: Sequence[int], lines: Sequence[int]) -> None:
    """Write an entry of offsets, and the entry of files that each source's offset counts on."""
    (root / "spark/offsets").mkdir(parents=True, exist_ok=True)
    text = "\n".join(["v1", "{}", *(f'{{"logOffset":{ends[source]}}}' for source in lines)])
    (root / f"spark/offsets/{number}").write_text(text)
    for source, end in enumerate(ends):
        put_files(root, source, end, "first")


def put_files(root: Path, source: int, entry: int, name: str, suffix: str = "") -> None:
    directory = root / f"spark/sources/{source}"
    directory.mkdir(parents=True, exist_ok=True)
    file = {"path": f"file:/{source}/{name}-{entry}", "timestamp": 1, "batchId": entry}
    (directory / f"{entry}{suffix}").write_text(f"v1\n{json.dumps(file)}")


def batches(root: Path, *lines: int) -> MicroBatches:
    return MicroBatches(CheckpointStorage.open(root), lines)


def identified(root: Path, *lines: int, number: int = 1) -> BatchRef:
    last = BatchRef(number=number - 1, digest="")
    found = batches(root, *lines).identify(number, last)
    assert found is not None
    return found


def test_the_record_holds_the_entries_of_every_source(tmp_path: Path) -> None:
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 0, 0, 1, 1))
    found = identified(tmp_path, 0, 0, 0, 1, 1)
    assert found.lines == (0, 0, 0, 1, 1)
    assert sorted(found.sources) == ["sources/0/4", "sources/1/9"]
    assert {p: (tmp_path / "spark" / p).read_bytes() for p in found.sources} == found.sources


@pytest.mark.parametrize("source", [0, 1])
def test_other_files_of_any_source_are_another_micro_batch(tmp_path: Path, source: int) -> None:
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 0, 1))
    found = identified(tmp_path, 0, 0, 1)
    assert batches(tmp_path, 0, 0, 1).identify(1, found) is None
    put_files(tmp_path, source, (4, 9)[source], "other")
    with pytest.raises(CheckpointMismatchError, match="planned micro-batch 1 again"):
        batches(tmp_path, 0, 0, 1).identify(1, found)


def test_a_replay_is_known_when_operators_read_the_sources_otherwise(tmp_path: Path) -> None:
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 0, 1))
    found = identified(tmp_path, 0, 0, 1)
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 1))
    assert batches(tmp_path, 0, 1).identify(1, found) is None


def test_a_record_whose_digest_is_of_lines_is_known_by_its_offsets(tmp_path: Path) -> None:
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 0, 1))
    offsets = (tmp_path / "spark/offsets/1").read_bytes()
    former = BatchRef(number=1, digest="of lines", offsets=offsets)
    assert batches(tmp_path, 0, 0, 1).identify(1, former) is None
    put(tmp_path, 1, (4, 10), (0, 0, 1))
    with pytest.raises(CheckpointMismatchError, match="planned micro-batch 1 again"):
        batches(tmp_path, 0, 0, 1).identify(1, former)


def test_entries_of_all_sources_are_forced_also_where_they_were_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, ends in enumerate([(3, 8), (4, 9)]):
        put(tmp_path, number, ends, (0, 0, 1))
    (tmp_path / "spark/sources/1/9").unlink()
    put_files(tmp_path, 1, 9, "first", ".compact")
    found = identified(tmp_path, 0, 0, 1)
    assert b"first-9" in found.sources["sources/1/9"]
    forced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda at: forced.add(Path(f"/proc/self/fd/{at}").readlink()))
    batches(tmp_path, 0, 0, 1).force_log(found)
    for path in ("offsets/1", "sources/0/4", "sources/0", "sources/1/9.compact", "sources/1"):
        assert tmp_path / "spark" / path in forced


def test_a_source_whose_log_begins_anew_is_refused(tmp_path: Path) -> None:
    for number, ends in enumerate([(3, 8), (0, 9)]):
        put(tmp_path, number, ends, (0, 1))
    with pytest.raises(CheckpointMismatchError, match="has lost what source 0 had read"):
        identified(tmp_path, 0, 1)


def test_lines_that_are_not_those_of_the_plan_are_refused(tmp_path: Path) -> None:
    put(tmp_path, 1, (4, 9), (0, 1))
    with pytest.raises(CheckpointError, match="2 offsets of micro-batch 1, where its plan reads"):
        identified(tmp_path, 0, 1, 1)


def test_a_checkpoint_that_was_played_without_spark_is_refused_by_name(tmp_path: Path) -> None:
    flow = gw.Flow("market", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream("symbol string, price double"))
    totals = orders.key_by("symbol").compute(name="totals", total=gw.sum("price"))
    flow.sink("totals", totals, gw.sinks.noop())
    gw.testing.run(flow, {"orders": [{"symbol": "A", "price": 1.0}]}, checkpoint=tmp_path)
    log = CommitLog.open_read_only(CheckpointStorage.open(tmp_path))
    assert log.latest is not None
    with pytest.raises(CheckpointMismatchError, match=r"played by gw\.testing"):
        batches(tmp_path, 0).check_last(log.latest.last_batch)
    batches(tmp_path, 0).check_last(None)
    batches(tmp_path, 0).check_last(BatchRef(number=0, digest="ab"))
