"""Backups that are started, and targets that were restored: no row is lost, and none is doubled.

Commits, sinks and targets are real; what lanes would stage is written here.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import SCHEMA

import godwit as gw
from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import CommitRecord, FlowIdentity, OutputRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks
from godwit.model.errors import SinkError
from godwit.ops.copying import copy_checkpoint
from godwit.plan.compiled import SinkOutput

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.plan.compiled import CompiledFlow
    from godwit.sinks.sink import Sink

LAST = 7


def flow(sink: Sink, *, complete: bool = False) -> CompiledFlow:
    out = SinkOutput(
        name="out", operator="totals", maps=(), schema=SCHEMA, keys=("plane",), sink=sink
    )
    operator = SimpleNamespace(complete=complete)
    return cast(
        "CompiledFlow",
        SimpleNamespace(name="flow", outputs=(out,), operator=lambda _name: operator),
    )


def run(
    checkpoint: Path,
    sink: Sink,
    until: int,
    *,
    deliver: bool = True,
    complete: bool = False,
    **options: Any,
) -> list[str]:
    """Start on a checkpoint and commit an epoch of one row after the other."""
    storage = CheckpointStorage.open(checkpoint)
    query_id = "" if storage.list("") else uuid4().hex
    identity = FlowIdentity(name="flow", num_key_groups=4, query_id=query_id)
    log = CommitLog.create_or_open(storage, identity, uuid4().hex[:12])
    running = flow(sink, complete=complete)
    with closing(OpenSinks(running, log, cast("Any", None), renamed={}, **options)) as sinks:
        if log.latest is not None:
            sinks.deliver(log.latest, again=True)
        while log.latest_epoch < until:
            epoch = log.latest_epoch + 1
            row = pa.record_batch({"plane": [f"N{epoch}"], "total": [epoch]}, schema=SCHEMA)
            writer = BlockWriter(storage, epoch=epoch, name="lane0")
            writer.add(encode_batch(row))
            (block,) = writer.close()
            record = log.commit(
                CommitRecord(
                    epoch=epoch,
                    run_id="",
                    sinks=sinks.records(),
                    outputs=(OutputRef(sink="out", flow=0, lane=0, rows=1, block=block),),
                )
            )
            if deliver or epoch < until:
                sinks.deliver(record)
        return list(sinks.describe_changes())


class Parquet:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "out"

    def sink(self) -> Sink:
        return gw.sinks.parquet(self.path)

    def rows(self) -> list[int]:
        return sorted(pq.read_table(self.path).column("total").to_pylist())

    def copy(self, name: str) -> None:
        shutil.copytree(self.path, self.path.with_name(name))

    def restore(self, name: str) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self.path.with_name(name), self.path)


class Postgres:
    """A table whose rows say which epoch they are of."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def sink(self) -> Sink:
        return gw.sinks.postgres(self.dsn, "target", epoch_column="epoch")

    def query(self, *statements: str) -> list[Any]:
        with psycopg.Connection.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[int]:
        found = self.query("SELECT total FROM target WHERE epoch = total ORDER BY total")
        return [row[0] for row in found]

    def copy(self, name: str) -> None:
        for table in ("target", "godwit_epochs"):
            self.query(f"CREATE TABLE {name}_{table} AS TABLE {table}")

    def restore(self, name: str) -> None:
        for table in ("target", "godwit_epochs"):
            self.query(f"TRUNCATE {table}", f"INSERT INTO {table} SELECT * FROM {name}_{table}")


class Delta:
    """A table of Delta Lake."""

    def __init__(self, directory: Path) -> None:
        self.path, self.versions = directory / "out", dict[str, int]()

    def sink(self) -> Sink:
        return gw.sinks.delta(self.path)

    def rows(self) -> list[int]:
        table = deltalake.DeltaTable(self.path).to_pyarrow_table()
        return sorted(table.column("total").to_pylist())

    def copy(self, name: str) -> None:
        self.versions[name] = deltalake.DeltaTable(self.path).version()

    def restore(self, name: str) -> None:
        deltalake.DeltaTable(self.path).restore(self.versions[name])


KINDS = [
    pytest.param("delta", id="delta"),
    pytest.param("parquet", id="parquet"),
    pytest.param("postgres", id="postgres", marks=pytest.mark.postgres),
]


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgres":
        return Postgres(request.getfixturevalue("postgres"))
    return Delta(tmp_path) if request.param == "delta" else Parquet(tmp_path)


def backup(tmp_path: Path, how: str) -> Path:
    if how == "copied by hand":
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    else:
        copy_checkpoint(
            CheckpointStorage.open(tmp_path / "checkpoint"),
            CheckpointStorage.open(tmp_path / "backup"),
            same_query=True,
        )
    return tmp_path / "backup"


@pytest.mark.parametrize("how", ["copied by hand", "checkpoint copy --same-query"])
def test_a_backup_is_started_once_its_targets_are_rolled_back(
    tmp_path: Path, target: Any, how: str
) -> None:
    run(tmp_path / "checkpoint", target.sink(), 2)
    old = backup(tmp_path, how)
    run(tmp_path / "checkpoint", target.sink(), LAST)
    with pytest.raises(SinkError, match="'out' does not continue from this checkpoint"):
        run(old, target.sink(), LAST)
    assert target.rows() == list(range(LAST + 1))
    (told,) = run(old, target.sink(), 3, on_divergence="roll_back")
    assert "rolled back to epoch 2" in told
    assert target.rows() == [0, 1, 2, 3]
    assert run(old, target.sink(), LAST) == []
    assert target.rows() == list(range(LAST + 1))
    with pytest.raises(SinkError, match="of another history"):
        run(tmp_path / "checkpoint", target.sink(), LAST + 1)


def test_the_last_epoch_of_a_backup_is_delivered_if_it_was_not(tmp_path: Path, target: Any) -> None:
    run(tmp_path / "checkpoint", target.sink(), 2, deliver=False)
    old = backup(tmp_path, "copied by hand")
    run(tmp_path / "checkpoint", target.sink(), LAST)
    run(old, target.sink(), LAST, on_divergence={"out": "roll_back"})
    assert target.rows() == list(range(LAST + 1))


def test_a_target_that_was_restored_lacks_epochs_which_is_said(tmp_path: Path, target: Any) -> None:
    run(tmp_path / "checkpoint", target.sink(), 2)
    target.copy("old")
    run(tmp_path / "checkpoint", target.sink(), 5)
    target.restore("old")
    with pytest.raises(SinkError, match="epochs up to 2, and epochs up to 4 were delivered"):
        run(tmp_path / "checkpoint", target.sink(), LAST)
    (told,) = run(tmp_path / "checkpoint", target.sink(), LAST, on_divergence="new_writer")
    assert "new writer after epoch 4" in told
    assert target.rows() == [0, 1, 2, 5, 6, 7]
    assert run(tmp_path / "checkpoint", target.sink(), LAST) == []


def test_checkpoint_and_target_may_be_restored_together(tmp_path: Path, target: Any) -> None:
    run(tmp_path / "checkpoint", target.sink(), 2)
    target.copy("old")
    old = backup(tmp_path, "copied by hand")
    run(tmp_path / "checkpoint", target.sink(), LAST)
    target.restore("old")
    assert run(old, target.sink(), LAST) == []
    assert target.rows() == list(range(LAST + 1))
