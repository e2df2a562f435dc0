"""``godwit.sinks``: every sink by its word, and what happens where a package is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.epoch_rows import context, rows

from godwit import sinks
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_every_word_makes_its_sink() -> None:
    made = {
        "ParquetSink": sinks.parquet("out", partition_by="plane", keep=2),
        "PostgresSink": sinks.postgres("dbname=none", "t", mode="upsert", keys="plane"),
        "DeltaSink": sinks.delta("out", mode="upsert"),
        "IcebergSink": sinks.iceberg("ns.t", catalog={"type": "sql"}, mode="upsert"),
        "ForeachSink": sinks.foreach(print),
        "ForeachTableSink": sinks.foreach_table(print),
        "MemorySink": sinks.memory(),
        "ConsoleSink": sinks.console(limit=5),
        "NoopSink": sinks.noop(),
    }
    assert {name: type(sink).__name__ for name, sink in made.items()} == {n: n for n in made}
    assert all(isinstance(sink, sinks.Sink) for sink in made.values())


def test_all_but_noop_want_rows() -> None:
    assert sinks.memory().wants_rows
    assert not sinks.noop().wants_rows


def test_noop_takes_anything_and_keeps_nothing() -> None:
    sink = sinks.noop()
    sink.open(context())
    sink.deliver(rows(0, ("N1", 1)))
    sink.close()
    assert vars(sink) == {}


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("psycopg", "postgres", "postgres"),
        ("deltalake", "delta", "delta"),
        ("pyiceberg", "iceberg", "iceberg"),
        ("rich", "console", "cli"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str, extra: str
) -> None:
    for loaded in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"godwit.connect.{module}.sink", raising=False)
    make: dict[str, Callable[[], sinks.Sink]] = {
        "postgres": lambda: sinks.postgres("dbname=none", "t"),
        "delta": lambda: sinks.delta("out"),
        "iceberg": lambda: sinks.iceberg("ns.t"),
        "console": sinks.console,
    }
    with pytest.raises(SinkError) as caught:
        make[module]()
    assert package in caught.value.message
    assert caught.value.remedy == f"pip install 'godwit-streams[{extra}]'"


def test_everything_exported_is_there() -> None:
    assert all(hasattr(sinks, name) for name in sinks.__all__)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sinks.parquet(3), "Parquet sink has a path of type int"),  # type: ignore[arg-type]
        (lambda: sinks.parquet(""), "Parquet sink has an empty path"),
        (lambda: sinks.parquet(b"out"), "path of type bytes"),  # type: ignore[arg-type]
        (lambda: sinks.delta(None), "Delta sink has a path of type NoneType"),  # type: ignore[arg-type]
        (lambda: sinks.delta("out", partition_by=3), "partition_by of type int"),  # type: ignore[arg-type]
        (lambda: sinks.parquet("out", partition_by=[1]), "partition_by of type list"),  # type: ignore[list-item]
        (lambda: sinks.delta("out", mode="upsert", keys=1), "keys of type int"),  # type: ignore[arg-type]
        (lambda: sinks.iceberg(3), "table of type int"),  # type: ignore[arg-type]
        (lambda: sinks.iceberg("t", catalog=3), "catalog of type int"),  # type: ignore[arg-type]
        (lambda: sinks.postgres(3, "t"), "connection of type int"),  # type: ignore[arg-type]
        (lambda: sinks.postgres("dbname=none", 3), "table of type int"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_by_name(
    make: Callable[[], sinks.Sink], text: str
) -> None:
    with pytest.raises(SinkError, match=text):
        make()
