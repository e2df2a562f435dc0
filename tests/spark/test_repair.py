"""A query whose log of Spark's was damaged continues after a repair: no row lost, none twice."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, drain, rows_of, totals

import godwit as gw
from godwit.cli.main import main
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError, GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(
        spark=spark, directory=tmp_path / "in", columns="k string, v long", files_per_epoch=2
    )


def lose(log: Path, *paths: str) -> None:
    for path in paths:
        entry = log / path
        entry.unlink()
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


def lose_with_the_files(log: Path) -> None:
    lose(log, "offsets/2", "commits/2", "sources/0/2")


def lose_the_offsets(log: Path) -> None:
    lose(log, "offsets/2", "commits/2")


def lose_two(log: Path) -> None:
    lose_with_the_files(log)
    lose(log, "offsets/1", "commits/1", "sources/0/1")


def tear(log: Path) -> None:
    for path in ("offsets/2", "sources/0/2", "commits/2"):
        (log / path).write_bytes((log / path).read_bytes()[:5])


@pytest.mark.parametrize(
    ("damage", "tried"),
    [(lose_with_the_files, True), (lose_the_offsets, False), (lose_two, False), (tear, True)],
)
def test_a_repaired_query_goes_on_with_nothing_lost_and_nothing_twice(
    inbox: Inbox,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    tried: bool,  # whether a start is refused before the repair
) -> None:
    checkpoint = tmp_path / "ck"
    inbox.put([("a", 1)], [("a", 2)], [("a", 4)], [("a", 8)], [("a", 16)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    assert main(["checkpoint", "repair", str(checkpoint)]) == 0, capsys.readouterr().out
    damage(checkpoint / "spark")
    inbox.put([("a", 32)], [("a", 64)], [("a", 128)])
    if tried:
        with pytest.raises(GodwitError) as caught:
            drain(totals(inbox, gw.sinks.memory()), checkpoint)
        if damage is not tear:
            assert isinstance(caught.value, CheckpointMismatchError)
            assert "godwit checkpoint repair" in caught.value.remedy
    assert main(["checkpoint", "repair", str(checkpoint)]) == 1
    assert main(["checkpoint", "repair", str(checkpoint), "--apply"]) == 0, capsys.readouterr().out
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), checkpoint)
    assert rows_of(sink.table()) == [("a", 255)]


def lose_a_summary(log: Path) -> None:
    lose(log, "sources/0/2.compact")


def lose_what_the_source_noted(log: Path) -> None:
    shutil.rmtree(log / "sources")


@pytest.mark.parametrize(
    ("damage", "interval"), [(lose_a_summary, "3"), (lose_what_the_source_noted, "10")]
)
def test_what_a_source_noted_is_made_again_and_no_file_is_read_twice(
    inbox: Inbox,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    interval: str,
) -> None:
    setting = "spark.sql.streaming.fileSource.log.compactInterval"
    inbox.spark.conf.set(setting, interval)
    try:
        checkpoint = tmp_path / "ck"
        inbox.put(*([("a", 2**n)] for n in range(8)))
        drain(totals(inbox, gw.sinks.memory()), checkpoint)
        damage(checkpoint / "spark")
        inbox.put([("a", 2**8)])
        with pytest.raises(CorruptCheckpointError, match="needs sources/0/"):
            totals(inbox, gw.sinks.memory()).start(checkpoint=checkpoint)
        told = main(["checkpoint", "repair", str(checkpoint), "--apply"])
        assert told == 0, capsys.readouterr().out
        sink = gw.sinks.memory()
        drain(totals(inbox, sink), checkpoint)
        assert rows_of(sink.table()) == [("a", 2**9 - 1)]
    finally:
        inbox.spark.conf.unset(setting)
