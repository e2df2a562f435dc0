"""One suite for every sink whose target keeps epochs: what their contract promises, by the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows

from godwit.model.errors import SinkError
from godwit.sinks.continuity import Position, Way, continue_delivery
from godwit.sinks.parquet_sink import ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.sinks.sink import Sink, SinkContext

deltalake = pytest.importorskip("deltalake", reason="one of the targets")
pytest.importorskip("pyiceberg", reason="one of the targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of target in a directory: how a sink on it is made, and how its rows are read."""

    name: str
    make: Callable[[Path], Sink]
    read: Callable[[Path], list[tuple[Any, ...]]]


def iceberg_catalog(path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}


def _delta(path: Path) -> Sink:
    from godwit.sinks.delta_sink import DeltaSink

    return DeltaSink(path)


def _delta_rows(path: Path) -> list[tuple[Any, ...]]:
    table = deltalake.DeltaTable(path)
    return _pairs(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def _iceberg(path: Path) -> Sink:
    from godwit.sinks.iceberg_sink import IcebergSink

    path.mkdir(exist_ok=True)
    return IcebergSink("delays.by_plane", catalog=iceberg_catalog(path))


def _iceberg_rows(path: Path) -> list[tuple[Any, ...]]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", **iceberg_catalog(path))
    table = catalog.load_table("delays.by_plane").scan().to_arrow()
    catalog.close()
    return _pairs(table)


def _parquet_rows(path: Path) -> list[tuple[Any, ...]]:
    epochs = sorted(path.glob("epoch=*"), key=lambda directory: int(directory.name[6:]))
    files = [file for epoch in epochs for file in epoch.glob("*.parquet")]
    return [pair for file in files for pair in _pairs(pq.ParquetFile(file).read())]


def _pairs(table: Any) -> list[tuple[Any, ...]]:
    import pyarrow as pa

    found = pa.table(table)
    return list(zip(*(found.column(n).to_pylist() for n in ("plane", "total")), strict=True))


TARGETS = [
    Target(name="parquet", make=ParquetSink, read=_parquet_rows),
    Target(name="delta", make=_delta, read=_delta_rows),
    Target(name="iceberg", make=_iceberg, read=_iceberg_rows),
]
EPOCHS = [rows(n, ("N1", n), (None, n + 10)) for n in range(4)]


@pytest.fixture(params=TARGETS, ids=lambda target: str(target.name))
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def opened(target: Target, path: Path, ctx: SinkContext | None = None) -> Sink:
    sink = target.make(path)
    sink.open(ctx or context())
    return sink


def delivered(target: Target, path: Path, *epochs: EpochRows) -> Sink:
    sink = opened(target, path)
    for epoch in epochs:
        sink.deliver(epoch)
    return sink


def there(target: Target, path: Path) -> list[tuple[Any, ...]]:
    return sorted(target.read(path), key=lambda row: (row[1], row[0] or ""))


def expected(*epochs: int) -> list[tuple[Any, ...]]:
    pairs = [pair for n in epochs for pair in (("N1", n), (None, n + 10))]
    return sorted(pairs, key=lambda row: (row[1], row[0] or ""))


def go_on(sink: Sink, committed: Committed, way: Way = "refuse", before: int = -1) -> str | None:
    position = Position(before=before, stays=True, copied=False)
    return continue_delivery(sink, "by_plane", committed, position, way)


def test_epochs_are_there_once_however_often_they_come(target: Target, tmp_path: Path) -> None:
    sink = delivered(target, tmp_path, *EPOCHS[:3], EPOCHS[2], EPOCHS[0])
    opened(target, tmp_path).deliver(EPOCHS[2])
    assert there(target, tmp_path) == expected(0, 1, 2)
    assert sink.last_delivered() in {point(2), None}  # as of its opening, or as of now
    assert opened(target, tmp_path).last_delivered() == point(2)


def test_a_start_after_a_crash_goes_on_where_the_target_is(target: Target, tmp_path: Path) -> None:
    delivered(target, tmp_path, EPOCHS[0])
    again = opened(target, tmp_path)
    assert go_on(again, Committed(latest_epoch=1), before=0) is None
    for epoch in EPOCHS[1:3]:
        again.deliver(epoch)
    assert there(target, tmp_path) == expected(0, 1, 2)


def test_epochs_without_rows_leave_no_trace(target: Target, tmp_path: Path) -> None:
    delivered(target, tmp_path, EPOCHS[0], rows(1), EPOCHS[2])
    assert there(target, tmp_path) == expected(0, 2)


def test_a_whole_result_replaces_the_one_before(target: Target, tmp_path: Path) -> None:
    sink = opened(target, tmp_path, context(complete=True))
    for epoch in [*EPOCHS[:2], EPOCHS[1]]:
        sink.deliver(epoch)
    pairs = there(target, tmp_path)
    assert pairs == expected(0, 1) if target.name == "parquet" else pairs == expected(1)


def test_a_renamed_sink_goes_on_where_it_wrote(target: Target, tmp_path: Path) -> None:
    delivered(target, tmp_path, EPOCHS[0])
    renamed = opened(target, tmp_path, context(name="planes", writer="by_plane"))
    for epoch in EPOCHS[:2]:
        renamed.deliver(epoch)
    assert there(target, tmp_path) == expected(0, 1)


def test_epochs_that_the_checkpoint_lacks_are_refused_and_taken_back(
    target: Target, tmp_path: Path
) -> None:
    delivered(target, tmp_path, *EPOCHS)
    sink = opened(target, tmp_path)
    with pytest.raises(SinkError, match="epochs up to 3, and the checkpoint ends with epoch 1"):
        go_on(sink, Committed(latest_epoch=1))
    assert "rolled back to epoch 1" in str(go_on(sink, Committed(latest_epoch=1), "roll_back"))
    assert there(target, tmp_path) == expected(0, 1)
    sink.deliver(EPOCHS[2])
    assert there(target, tmp_path) == expected(0, 1, 2)
    assert opened(target, tmp_path).last_delivered() == point(2)


def test_epochs_of_another_history_are_taken_back_and_made_anew(
    target: Target, tmp_path: Path
) -> None:
    delivered(target, tmp_path, *(replace(epoch, history="fork") for epoch in EPOCHS))
    sink = opened(target, tmp_path)
    committed = Committed(latest_epoch=2, parted={"fork": 1})
    with pytest.raises(SinkError, match="epochs up to 3 of another history"):
        go_on(sink, committed)
    go_on(sink, committed, "roll_back")
    sink.deliver(EPOCHS[2])
    assert there(target, tmp_path) == expected(0, 1, 2)


def test_a_target_that_would_lack_epochs_is_not_rolled_back(target: Target, tmp_path: Path) -> None:
    delivered(target, tmp_path, *(replace(epoch, history="fork") for epoch in EPOCHS[:3]))
    sink = opened(target, tmp_path)
    with pytest.raises(SinkError, match="epochs up to 1 were delivered to it and do not come"):
        sink.roll_back(Committed(latest_epoch=2), 1)
    assert there(target, tmp_path) == expected(0, 1, 2)


def test_of_which_nothing_is_shared_nothing_stays(target: Target, tmp_path: Path) -> None:
    delivered(target, tmp_path, *(replace(epoch, history="fork") for epoch in EPOCHS[:2]))
    sink = opened(target, tmp_path)
    go_on(sink, Committed(latest_epoch=0), "roll_back")
    assert there(target, tmp_path) == []
    sink.deliver(EPOCHS[0])
    assert there(target, tmp_path) == expected(0)


def test_an_error_at_any_batch_leaves_the_target_as_it_was(target: Target, tmp_path: Path) -> None:
    def fail(batch: int) -> None:
        if batch:
            raise SinkError("The checkpoint is broken.", remedy="Mend it.")

    sink = delivered(target, tmp_path, EPOCHS[0])
    with pytest.raises(SinkError, match="checkpoint is broken"):
        sink.deliver(replace(EPOCHS[1], batch_rows=1, on_batch=fail))
    assert there(target, tmp_path) == expected(0)
    sink.deliver(EPOCHS[1])
    assert there(target, tmp_path) == expected(0, 1)
