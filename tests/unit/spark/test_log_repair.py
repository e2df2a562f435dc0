from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import pytest

from godwit.spark.log_repair import plan_log_repair
from godwit.state.records import BatchRef, CommitRecord
from godwit.state.repair import carry_out
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

LAST = 12


def offsets_of(number: int, entry: int | None = None) -> bytes:
    settings = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_000 + number})
    return f'v1\n{settings}\n{{"logOffset":{number if entry is None else entry}}}\n-'.encode()


def line_of(number: int, name: str = "part") -> bytes:
    return json.dumps(
        {"path": f"file:///in/{name}-{number}.parquet", "timestamp": number, "batchId": number}
    ).encode()


def source_of(number: int) -> tuple[str, bytes]:
    """Path and content of an entry of the file source's log; every tenth sums up all before."""
    if (number + 1) % 10:
        return f"sources/0/{number}", b"\n".join([b"v1", line_of(number)])
    lines = [line_of(n) for n in range(number + 1)]
    return f"sources/0/{number}.compact", b"\n".join([b"v1", *lines])


def record_of(number: int) -> CommitRecord:
    batch = BatchRef(
        number=number,
        digest="",
        offsets=offsets_of(number),
        sources={f"sources/0/{number}": b"\n".join([b"v1", line_of(number)])},
    )
    return CommitRecord(epoch=number, run_id="r", batch=batch)


def records(last: int = LAST) -> list[CommitRecord]:
    return [record_of(n) for n in range(max(0, last - 5), last + 1)]


@pytest.fixture
def spark_log(tmp_path: Path) -> Path:
    """Spark's log of a query that has carried out micro-batches 0 to `LAST`."""
    return write_log(tmp_path, LAST)


def write_log(root: Path, last: int) -> Path:
    for number in range(last + 1):
        path, content = source_of(number)
        put(root / "spark" / path, content)
        put(root / "spark/offsets" / str(number), offsets_of(number))
        put(root / "spark/commits" / str(number), b'v1\n{"nextBatchWatermarkMs":0}')
    return root / "spark"


def put(path: Path, content: bytes, *, checksum: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if checksum:
        parts = [content[i : i + 512] for i in range(0, len(content), 512)]
        sums = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)


def repair(root: Path, committed: list[CommitRecord]) -> list[tuple[str, str]]:
    storage = CheckpointStorage.open(root)
    steps = plan_log_repair(storage, committed)
    carry_out(storage, steps)
    if all(step.action != "none" for step in steps):
        assert plan_log_repair(storage, committed) == ()
    return [(step.path.removeprefix("spark/"), step.action) for step in steps]


def everything(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.name.endswith(".crc") and "set-aside" not in p.parts
    }


def test_a_log_that_agrees_with_the_records_is_left_alone(spark_log: Path) -> None:
    assert repair(spark_log.parent, records()) == []


def test_a_plan_above_the_last_commit_is_left_to_spark(spark_log: Path) -> None:
    put(spark_log / "offsets/13", offsets_of(13))
    put(spark_log / "sources/0/13", source_of(13)[1])
    assert repair(spark_log.parent, records()) == []


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("torn", [False, True])
def test_entries_that_are_lost_or_torn_come_back_as_they_were(
    spark_log: Path, lost: int, torn: bool
) -> None:
    whole = everything(spark_log.parent)
    for number in range(LAST + 1 - lost, LAST + 1):
        for path in (f"offsets/{number}", source_of(number)[0], f"commits/{number}"):
            (spark_log / path).unlink()
            if torn and not path.startswith("commits"):
                (spark_log / path).write_bytes(b"" if number == LAST else b"v1\n{")
    done = repair(spark_log.parent, records())
    assert {action for _, action in done} == {"write"}
    found = everything(spark_log.parent)
    assert {k: v for k, v in whole.items() if "commits" not in k} == {
        k: v for k, v in found.items() if "commits" not in k
    }


def test_a_file_that_fails_its_checksum_is_torn(spark_log: Path) -> None:
    (spark_log / f"offsets/.{LAST}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + b"none")
    assert repair(spark_log.parent, records()) == [(f"offsets/{LAST}", "write")]
    assert not (spark_log / f"offsets/.{LAST}.crc").exists()


def test_a_micro_batch_that_was_planned_anew_becomes_what_was_committed(spark_log: Path) -> None:
    whole = everything(spark_log.parent)
    put(spark_log / f"sources/0/{LAST}", b"\n".join([b"v1", line_of(LAST, "other")]))
    put(spark_log / "sources/0/13", b"\n".join([b"v1", line_of(13)]))
    put(spark_log / f"offsets/{LAST}", offsets_of(LAST, 13))
    put(spark_log / "offsets/13", offsets_of(13))
    done = dict(repair(spark_log.parent, records()))
    assert done == {
        f"offsets/{LAST}": "write",
        f"sources/0/{LAST}": "write",
        "offsets/13": "set aside",
        "sources/0/13": "set aside",
    }
    assert everything(spark_log.parent) == whole
    assert (spark_log.parent / "set-aside/spark/offsets/13").exists()


def test_a_torn_plan_above_the_last_commit_is_planned_anew(spark_log: Path) -> None:
    whole = everything(spark_log.parent)
    put(spark_log / "sources/0/13", source_of(13)[1])
    put(spark_log / "offsets/13", b"", checksum=False)
    done = dict(repair(spark_log.parent, records()))
    assert done == {"offsets/13": "set aside", "sources/0/13": "set aside"}
    assert everything(spark_log.parent) == whole


def test_an_entry_that_sums_up_earlier_ones_is_made_of_them_again(tmp_path: Path) -> None:
    spark_log = write_log(tmp_path, 19)
    whole = everything(tmp_path)
    (spark_log / "sources/0/19.compact").unlink()
    (spark_log / "offsets/19").unlink()
    assert dict(repair(tmp_path, records(19))) == {
        "offsets/19": "write",
        "sources/0/19.compact": "write",
    }
    assert everything(tmp_path) == whole


def test_what_a_summary_above_the_last_commit_holds_of_earlier_entries_stays(
    tmp_path: Path,
) -> None:
    spark_log = write_log(tmp_path, 18)
    put(spark_log / "sources/0/19.compact", source_of(19)[1])
    put(spark_log / "offsets/19", b"", checksum=False)
    for number in range(10, 19):  # Spark has cleared away what the summary holds
        (spark_log / f"sources/0/{number}").unlink()
    done = dict(repair(tmp_path, records(18)))
    assert done == {"offsets/19": "set aside", "sources/0/19.compact": "write"}
    lines = (spark_log / "sources/0/19.compact").read_bytes().splitlines()
    assert lines == [b"v1", *(line_of(n) for n in range(19))]


def test_what_the_record_does_not_carry_is_said_to_be_lost(spark_log: Path) -> None:
    (spark_log / f"offsets/{LAST}").unlink()
    poor = CommitRecord(epoch=LAST, run_id="r", batch=BatchRef(number=LAST, digest="x"))
    assert repair(spark_log.parent, [poor]) == [(f"offsets/{LAST}", "none")]


def test_a_torn_note_of_completion_is_set_aside(spark_log: Path) -> None:
    put(spark_log / f"commits/{LAST}", b"", checksum=False)
    assert repair(spark_log.parent, records()) == [(f"commits/{LAST}", "set aside")]
