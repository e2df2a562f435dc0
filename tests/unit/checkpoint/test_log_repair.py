from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from godwit.checkpoint.records import BatchRef, CommitRecord
from godwit.checkpoint.repair import execute_repair, plan_log_repair
from godwit.checkpoint.spark_log import OffsetLayout, Reading, update_layout
from godwit.checkpoint.storage import CheckpointStorage

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
    execute_repair(storage, steps)
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


@pytest.mark.parametrize("torn", [False, True])
def test_a_summary_that_earlier_epochs_count_on_is_made_again(spark_log: Path, torn: bool) -> None:
    whole = everything(spark_log.parent)
    (spark_log / "sources/0/9.compact").unlink()
    if torn:
        put(spark_log / "sources/0/9.compact", b"v1\n{", checksum=False)
    assert repair(spark_log.parent, records()) == [("sources/0/9.compact", "write")]
    assert everything(spark_log.parent) == whole


def test_a_summary_of_what_no_record_carries_is_said_to_be_lost(spark_log: Path) -> None:
    (spark_log / "sources/0/9.compact").unlink()
    for number in range(9):  # Spark has cleared them away
        (spark_log / f"sources/0/{number}").unlink()
    assert repair(spark_log.parent, records()) == [("sources/0/9.compact", "none")]


def test_all_that_sources_noted_comes_back_as_far_as_the_records_reach(tmp_path: Path) -> None:
    spark_log = write_log(tmp_path, 12)
    whole = everything(tmp_path)
    every = [record_of(number) for number in range(13)]
    shutil.rmtree(spark_log / "sources")
    assert repair(tmp_path, every[1:])[-1] == ("sources/0/9.compact", "none")
    assert not (spark_log / "sources/0/9.compact").exists()
    shutil.rmtree(spark_log / "sources")
    repair(tmp_path, every)
    found = everything(tmp_path)
    needed = [path for path in whole if int(Path(path).stem) >= 9]
    assert {path: found[path] for path in needed} == {path: whole[path] for path in needed}


def test_epochs_without_input_carry_on_what_the_last_micro_batch_counts_on(
    spark_log: Path,
) -> None:
    (spark_log / f"offsets/{LAST}").unlink()
    quiet = CommitRecord(epoch=LAST + 1, run_id="r", before=record_of(LAST).batch)
    assert repair(spark_log.parent, [quiet]) == [(f"offsets/{LAST}", "write")]


def test_the_entry_before_the_last_is_needed_whether_a_record_carries_it_or_not(
    spark_log: Path,
) -> None:
    (spark_log / f"offsets/{LAST - 1}").unlink()
    quiet = CommitRecord(epoch=LAST + 1, run_id="r", before=record_of(LAST).batch)
    assert repair(spark_log.parent, [quiet]) == [(f"offsets/{LAST - 1}", "none")]
    assert repair(spark_log.parent, records()) == [(f"offsets/{LAST - 1}", "write")]


def test_every_source_has_its_own_log_however_often_it_is_read(tmp_path: Path) -> None:
    def entry(number: int, lines: tuple[int, ...]) -> bytes:
        offsets = [f'{{"logOffset":{number + 10 * source}}}' for source in lines]
        return "\n".join(["v1", "{}", *offsets]).encode()

    def batch(number: int) -> BatchRef:
        return BatchRef(
            number=number,
            digest="",
            offsets=entry(number, (0, 0, 1)),
            lines=(0, 0, 1),
            sources={
                f"sources/{source}/{n}": b"\n".join([b"v1", line_of(n, f"of-{source}")])
                for source, n in ((0, number), (1, number + 10))
            },
        )

    storage = CheckpointStorage.open(tmp_path)
    spark_log = tmp_path / "spark"
    layout = OffsetLayout(
        readings=((Reading(source="a"),), (Reading(source="b"),)), lines=(0, 1, 1)
    )
    update_layout(storage, layout, committed=True)
    for number in (3, 4):
        put(spark_log / f"offsets/{number}", entry(number, layout.lines))
    for source, last in ((0, 4), (1, 14)):
        for number in range(last + 1):
            name = f"{number}.compact" if number == 9 else f"{number}"
            lines = range(10) if number == 9 else [number]
            content = b"\n".join([b"v1", *(line_of(n, f"of-{source}") for n in lines)])
            put(spark_log / f"sources/{source}/{name}", content)
    committed = [CommitRecord(epoch=n, run_id="r", batch=batch(n)) for n in (3, 4)]
    assert repair(tmp_path, committed) == []
    whole = everything(tmp_path)
    for lost in ("offsets/4", "sources/0/4", "sources/1/14"):
        (spark_log / lost).unlink()
    assert dict(repair(tmp_path, committed)) == dict.fromkeys(
        ("offsets/4", "sources/0/4", "sources/1/14"), "write"
    )
    assert everything(tmp_path) == whole


def test_a_plan_whose_files_were_lost_is_planned_anew(spark_log: Path) -> None:
    whole = everything(spark_log.parent)
    put(spark_log / "offsets/13", offsets_of(13))  # its entry of the source's log is not there
    assert repair(spark_log.parent, records()) == [("offsets/13", "set aside")]
    assert everything(spark_log.parent) == whole


def test_a_layout_that_is_damaged_is_set_aside(tmp_path: Path) -> None:
    write_log(tmp_path, LAST)
    (tmp_path / "offsets.rec").write_bytes(b"torn")
    assert repair(tmp_path, records()) == [("offsets.rec", "set aside")]


def test_what_spark_did_of_epochs_that_were_taken_back_is_done_anew(spark_log: Path) -> None:
    done = dict(repair(spark_log.parent, records(LAST - 1)))
    assert done[f"commits/{LAST}"] == done[f"offsets/{LAST}"] == "set aside"
    assert done[f"sources/0/{LAST}"] == "set aside"


def test_without_a_record_of_a_micro_batch_nothing_says_where_spark_stood(
    spark_log: Path,
) -> None:
    (step,) = plan_log_repair(
        CheckpointStorage.open(spark_log.parent), [CommitRecord(epoch=0, run_id="")]
    )
    assert step.action == "none"
