"""The archive of Spark's classes belongs to one Java and one Spark, and nothing depends on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from godwit.cli.main import main
from godwit.cluster.spark.platform import class_archive
from godwit.cluster.spark.platform.class_archive import (
    FRUGAL,
    archive_path,
    frugal_options,
    write_archive,
)
from godwit.model.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an environment with a Java and a Spark that do nothing."""
    for file in ("java/bin/java", "java/release", "spark/jars/a.jar", "spark/jars/b.jar"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path


def archived() -> Path:
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_an_archive_is_used_where_there_is_one(here: Path) -> None:
    assert frugal_options() == FRUGAL
    path = archived()
    assert path.is_relative_to(here / "environment")
    assert f"-XX:SharedArchiveFile={path}" in frugal_options().split()


@pytest.mark.parametrize("changed", ["java/release", "spark/jars/b.jar", "spark/jars/c.jar"])
def test_another_java_or_spark_does_not_get_it(here: Path, changed: str) -> None:
    archived()
    (here / changed).write_text("another version")
    assert frugal_options() == FRUGAL


def test_no_archive_is_named_that_spark_would_read_as_two_options(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(here / "my environment"))
    archived()
    assert frugal_options() == FRUGAL


def test_without_java_there_is_nothing_to_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert frugal_options() == FRUGAL
    with pytest.raises(ClusterError, match="no `java`"):
        write_archive()


def test_a_java_that_writes_none_is_told_and_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_train", lambda _path: "no room")
    with pytest.raises(ClusterError, match="no room"):
        write_archive()
    assert not list((here / "environment/share/godwit").iterdir())


def test_a_half_written_archive_does_not_stay(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> str:
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(class_archive, "_train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_archive()
    assert not list((here / "environment/share/godwit").iterdir())


def test_the_command_says_what_it_did(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trains(path: Path) -> str:
        path.write_text("classes")
        return ""

    monkeypatch.setattr(class_archive, "_train", trains)
    told = []
    for arguments in ([], [], ["--remove"]):
        assert main(["archive-classes", *arguments]) == 0
        told.append(capsys.readouterr().out)
    assert "Wrote" in told[0]
    assert "There is one already" in told[1]
    assert "Removed" in told[2]
    assert not list((here / "environment/share/godwit").iterdir())
