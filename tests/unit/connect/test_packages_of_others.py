"""A package of others adds a source and a sink by its metadata; without metadata, an error says so.

The package is the example in ``examples/sqlite``. It is not installed by pip: a directory on the
path has its metadata, as pip would write them.
"""

from __future__ import annotations

import sqlite3
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from examples.sqlite import godwit_sqlite
from tests.unit.ops.test_target_check import with_lane_file

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.model import plugins
from godwit.model.errors import SinkError, SourceError
from godwit.ops.targets import check_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

PROJECT = Path(__file__).parents[3] / "examples/sqlite"


def forget() -> None:
    """Forget the entry points that were looked up."""
    for function in (plugins._entry_points_by_name, plugins.load):
        function.cache_clear()


@pytest.fixture
def clean() -> Iterator[None]:
    """Look up entry points in the test, and again after it."""
    forget()
    yield
    forget()


def install(project: Path, directory: Path) -> None:
    """Write the metadata of a project's distribution into a directory."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = directory / f"{table['name'].replace('-', '_')}-{table['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {table['name']}\nVersion: {table['version']}\n"
    )
    lines = []
    for group, entries in table["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> Any:
    """Install the example; return the module of sinks, of whose names type checkers know few."""
    install(PROJECT, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(PROJECT)
    return gw


class Run(LocalRun):
    """A run in this process that delivers to the flow's sinks."""

    def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:
        self.opened = OpenSinks(flow, self.log, cast("Any", None), renamed={})
        return staged_sinks(flow)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        self.opened.deliver(record, again=again)

    def sink_records(self) -> dict[str, SinkRecord]:
        return self.opened.records()


def count_words(gw: Any, path: Path) -> None:
    """Run a flow from a table of a database to another, up to the last row."""
    flow = gw.Flow("words", num_key_groups=4)
    words = flow.source("words", gw.sources.sqlite(str(path), "words", schema="word string, n int"))
    counts = words.key_by("word").compute(total=gw.sum("n"))
    flow.sink("counts", counts, gw.sinks.sqlite(str(path), "counts"))
    run = Run(
        flow.compiled(),
        CheckpointStorage.open(str(path.parent / "checkpoint")),
        executors={"a": 2},
        settings=Lanes(local_dir=str(path.parent / "local")),
    )
    run.sources.open()
    while run.read_epoch() is not None:
        pass
    run.loop.finish_delivery()
    run.sources.close()
    run.opened.close()


def rows_of(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement).fetchall()


def add(path: Path, *rows: tuple[str, int]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS words (word TEXT, n INTEGER)")
        database.executemany("INSERT INTO words VALUES (?, ?)", rows)


def test_its_source_and_sink_are_called_as_those_of_this_project(
    package: Any, tmp_path: Path
) -> None:
    path = tmp_path / "words.db"
    add(path, ("a", 1), ("b", 2), ("a", 3))
    count_words(package, path)
    first = sorted(rows_of(path, "SELECT word, total FROM counts"))
    add(path, ("b", 5))
    count_words(package, path)
    second = sorted(rows_of(path, "SELECT word, total FROM counts"))
    assert {"sqlite", "delta", "kafka"} <= {*dir(package.sinks)}
    assert "sqlite" in dir(package.sources)
    assert first == [("a", 4), ("b", 2)]
    assert second == [("a", 4), ("b", 2), ("b", 7)]


def test_it_is_suggested_for_a_name_like_it(package: Any) -> None:
    with pytest.raises(AttributeError, match="Did you mean 'sqlite'"):
        _ = package.sinks.sqlit
    with pytest.raises(AttributeError, match=r"There are 'arrow', 'csv', .*'sqlite'"):
        _ = package.sources.nothing_like_it
    with pytest.raises(AttributeError, match=r"Use gw\.sources\.sqlite or gw\.sinks\.sqlite"):
        _ = package.sqlite
    with pytest.raises(AttributeError, match=r"Use gw\.sources\.kafka or gw\.sinks\.kafka"):
        _ = package.kafka
    with pytest.raises(AttributeError, match=r"Use gw\.formats\.avro"):
        _ = package.avro


def test_its_errors_are_those_of_sources_and_sinks(package: Any, tmp_path: Path) -> None:
    path = tmp_path / "absent/words.db"
    source = package.sources.sqlite(str(path), "words", schema="word string")
    with pytest.raises(SourceError, match="cannot be read: unable to open"):
        source.latest(0)
    with pytest.raises(SinkError, match="rejects=3 is not a sink"):
        package.sinks.sqlite(str(path), "words", rejects=3)


def test_its_source_keeps_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    add(path, *((f"w{n % 7}", n) for n in range(60)))
    source = godwit_sqlite.from_table(str(path), "words", schema="word string, n long")
    gw.testing.check_source(source, add=lambda: add(path, ("later", 1), ("later", 2)))


TARGETS = """
def last_point(target, query_id, writer):
    return None

def broken(target, query_id, writer):
    raise ValueError(target)
"""


@pytest.mark.parametrize(
    ("function", "unseen"), [("last_point", ""), ("broken", ": ValueError"), ("absent", ": Plugin")]
)
def test_its_targets_are_compared_with_a_checkpoint_without_the_flow(
    function: str,
    unseen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clean: None,
) -> None:
    target = tmp_path / "out"
    storage = with_lane_file(tmp_path / "ck", str(target))
    (target / "_lake").mkdir(parents=True)
    assert check_targets(storage).unseen == (f"out ({target})",), "known to no package"
    info = tmp_path / "site/lake-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: lake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[godwit.targets]\n_lake = lake:{function}\n")
    (tmp_path / "site/lake.py").write_text(TARGETS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "lake", raising=False)
    forget()
    (seen,) = check_targets(storage).unseen or ("",)
    assert seen.startswith(f"out ({target}{unseen}" if unseen else "")
    assert bool(seen) == bool(unseen)


@pytest.mark.parametrize(
    ("room", "name"), [("sinks", "delta"), ("sources", "kafka"), ("formats", "avro")]
)
def test_without_metadata_of_this_project_the_error_says_so(
    room: str, name: str, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    module = getattr(gw, room)
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=f"{name}.*whose metadata are not installed") as caught:
        getattr(module, name)
    assert "pip install godwit-streams" in str(caught.value)
    assert module.__all__, "calls of the core do not depend on metadata"
    with pytest.raises(AttributeError, match=r"^module .* has no attribute '__wrapped__'$"):
        _ = module.__wrapped__


def test_names_of_other_systems_are_answered_without_metadata_too(
    clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(AttributeError, match=r"Use gw\.sinks\.foreach"):
        _ = gw.sinks.snowflake  # type: ignore[attr-defined]
