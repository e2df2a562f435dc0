"""Errors of what cannot work: each says what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from tests.spark import full_disk
from tests.spark.full_disk import FullDisk
from tests.spark.streams import Inbox, drain, snapshots_of_small_changelogs

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    ConcurrentRunError,
    CorruptCheckpointError,
    EpochFailedError,
    InvalidFlowError,
    StateEncodingError,
    StorageFullError,
    UserFunctionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "k string, v long, tags array<string>"


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    made = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    made.put(*([(f"k{i}", epoch + i, []) for i in range(40)] for epoch in range(3)))
    return made


def flow_of(
    inbox: Inbox,
    *,
    name: str = "flow",
    num_key_groups: int = 8,
    sink: Any = None,
    **results: Any,
) -> gw.Flow:
    flow = gw.Flow(name, num_key_groups=num_key_groups)
    stream = flow.source("rows", inbox.stream()).key_by("k")
    results = results or {"total": gw.sum("v")}
    flow.sink("out", stream.compute(name="t", **results), sink or gw.sinks.memory())
    return flow


def process_of(inbox: Inbox, function: Callable[..., Any], state: Any = dict) -> gw.Flow:
    flow = gw.Flow("flow", num_key_groups=8)
    stream = flow.source("rows", inbox.stream()).key_by("k")
    output = stream.process(function, state=state, output="k string, n long", name="p")
    flow.sink("out", output, gw.sinks.memory())
    return flow


# -- the flow ------------------------------------------------------------------------------------


def test_a_column_that_is_not_there(inbox: Inbox, tmp_path: Path) -> None:
    with pytest.raises(InvalidFlowError, match=r"'vv'.*source 'rows' does not have.*mean 'v'"):
        flow_of(inbox, total=gw.sum("vv")).start(checkpoint=tmp_path / "ck")
    assert not (tmp_path / "ck").exists()


def test_a_key_of_a_type_that_has_no_hash(inbox: Inbox, tmp_path: Path) -> None:
    flow = gw.Flow("flow")
    stream = flow.source("rows", inbox.stream()).key_by("tags").compute(n=gw.count())
    flow.sink("out", stream, gw.sinks.memory())
    with pytest.raises(InvalidFlowError, match=r"keyed by column 'tags'.*cannot be a key.*explode"):
        flow.start(checkpoint=tmp_path / "ck")


def test_two_operators_of_one_name(inbox: Inbox) -> None:
    flow = gw.Flow("flow")
    keyed = flow.source("rows", inbox.stream()).key_by("k")
    keyed.compute(n=gw.count(), name="same")
    with pytest.raises(InvalidFlowError, match=r"operator.*'same'"):
        keyed.compute(total=gw.sum("v"), name="same")


def test_a_second_query_of_one_name(inbox: Inbox, tmp_path: Path) -> None:
    query = flow_of(inbox).start(checkpoint=tmp_path / "ck")
    with pytest.raises(InvalidFlowError, match=r"'flow' is running.*start\(name='flow-2'\)"):
        flow_of(inbox).start(checkpoint=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    query.processAllAvailable()
    query.stop()


# -- the checkpoint ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Inbox, Path]:
    """Four epochs of rows, and a checkpoint of the first three, with everything in files."""
    directory = tmp_path_factory.mktemp("written")
    made = Inbox(spark=spark, directory=directory / "in", columns=COLUMNS)
    made.put(*([(f"k{i}", epoch + i, []) for i in range(40)] for epoch in range(3)))
    with snapshots_of_small_changelogs():
        drain(flow_of(made), directory / "ck", lanes=gw.Lanes(inline_bytes=0, snapshot_growth=0.01))
    # Rows for every key: every key group has to be loaded.
    made.put([(f"k{i}", 100, []) for i in range(40)])
    return made, directory / "ck"


@pytest.fixture
def copied(written: tuple[Inbox, Path], tmp_path: Path) -> tuple[Inbox, Path]:
    """`written` with a copy of the checkpoint, to break it."""
    shutil.copytree(written[1], tmp_path / "ck")
    return written[0], tmp_path / "ck"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "other"}, "belongs to flow 'flow', not 'other'"),
        ({"num_key_groups": 16}, "it has 8 key groups, not 16"),
        ({"total": gw.max("v")}, "operator 't'.*aggregate was 'sum' and is 'max'"),
    ],
    ids=["another flow", "another number of key groups", "a changed aggregate"],
)
def test_a_checkpoint_that_does_not_fit_the_flow(
    copied: tuple[Inbox, Path], changes: dict[str, Any], told: str
) -> None:
    inbox, checkpoint = copied
    with pytest.raises(CheckpointMismatchError, match=told) as caught:
        flow_of(inbox, **changes).start(checkpoint=checkpoint)
    assert "does not fit" in str(caught.value)
    assert any(way in str(caught.value) for way in ("undo the change", "have the state rewritten"))


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    path.unlink()  # a copy may share its blocks with the original
    path.write_bytes(data)


# What reads them does not ask of which kind they are.
@pytest.mark.parametrize(
    ("kind", "how"),
    [("changelog", "missing"), ("snapshots", "truncated"), ("changelog", "flipped")],
)
def test_a_damaged_file_of_the_state_is_named_and_nothing_is_committed(
    copied: tuple[Inbox, Path], kind: str, how: str
) -> None:
    inbox, checkpoint = copied
    files = sorted(checkpoint.rglob(f"*{kind}-*"))
    assert files
    for path in files:
        damage(path, how)
    told = {"missing": "missing", "truncated": "truncated", "flipped": "checksum"}[how]
    with pytest.raises(CorruptCheckpointError) as caught:
        drain(flow_of(inbox), checkpoint)
    assert told in str(caught.value)
    assert any(path.name in str(caught.value) for path in files)
    assert "Restore" in str(caught.value)
    assert len(list((checkpoint / "commits").iterdir())) == 3


def test_a_damaged_commit_record_is_named_at_the_start(copied: tuple[Inbox, Path]) -> None:
    inbox, checkpoint = copied
    record = max((checkpoint / "commits").iterdir())
    damage(record, "flipped")
    with pytest.raises(CorruptCheckpointError, match=f"{record.name}.*is damaged.*Restore"):
        flow_of(inbox).start(checkpoint=checkpoint)


def test_progress_of_spark_that_does_not_fit_the_checkpoint(
    copied: tuple[Inbox, Path],
) -> None:
    inbox, checkpoint = copied
    shutil.rmtree(checkpoint / "spark")
    with pytest.raises(CheckpointMismatchError, match=r"Spark's .* micro-batch 0.* up to 2"):
        drain(flow_of(inbox), checkpoint)


def test_spark_that_is_ahead_of_the_checkpoint(copied: tuple[Inbox, Path]) -> None:
    inbox, checkpoint = copied
    for path in checkpoint.iterdir():
        if path.name != "spark":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(
        CheckpointError, match=r"contains the checkpoint of a Spark query .*not of a flow"
    ):
        drain(flow_of(inbox), checkpoint)


def test_a_run_whose_checkpoint_another_run_took_over_commits_nothing_more(
    inbox: Inbox, tmp_path: Path
) -> None:
    sinks = [gw.sinks.memory(), gw.sinks.memory()]
    first = flow_of(inbox, sink=sinks[0]).start(checkpoint=tmp_path / "ck", name="first")
    first.processAllAvailable()
    # As on another machine: Spark itself would refuse a second query of its own here.
    from godwit.checkpoint.commit_log import CommitLog

    log = first._run.log
    CommitLog.create_or_open(log.storage, log.identity, "second")
    inbox.put([("k1", 1000, [])])
    with pytest.raises(ConcurrentRunError, match="run 'second' has taken it over"):
        first.processAllAvailable()
    assert len(list((tmp_path / "ck/commits").iterdir())) == 3


# -- room ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["blocks", "commits"])  # written by a lane, and by the driver
def test_a_full_disk_fails_the_epoch_by_name_and_the_query_goes_on_once_there_is_room(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    checkpoint = tmp_path / "ck"
    sink = gw.sinks.memory()
    drain(flow_of(inbox, sink=sink), checkpoint, lanes=gw.Lanes(inline_bytes=0))
    inbox.put([("k1", 1000, [])])
    # Lanes do not find this module.
    cloudpickle.register_pickle_by_value(full_disk)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(
        CheckpointStorage,
        "open",
        staticmethod(lambda uri, **_: LocalStorage(uri, disk=FullDisk(part, errno.ENOSPC))),
    )
    with pytest.raises(StorageFullError, match=rf"no room left for the checkpoint.*{part}"):
        drain(flow_of(inbox, sink=sink), checkpoint, lanes=gw.Lanes(inline_bytes=0))
    monkeypatch.undo()
    cloudpickle.unregister_pickle_by_value(full_disk)  # type: ignore[no-untyped-call]
    assert len(list((checkpoint / "commits").iterdir())) == 3

    drain(flow_of(inbox, sink=sink), checkpoint, lanes=gw.Lanes(inline_bytes=0))
    held = sink.table().to_pylist()
    assert {row["k"]: row["total"] for row in held}["k1"] == 1 + 2 + 3 + 1000
    assert len(list((checkpoint / "commits").iterdir())) == 4


# -- functions -----------------------------------------------------------------------------------


def test_a_function_that_returns_no_rows_at_all(inbox: Inbox, tmp_path: Path) -> None:
    flow = process_of(inbox, lambda _key, _rows, _state: 17)
    with pytest.raises(UserFunctionError, match="'<lambda>' of operator 'p' returned something"):
        drain(flow, tmp_path / "ck")


def test_a_function_that_returns_rows_of_the_wrong_type(inbox: Inbox, tmp_path: Path) -> None:
    flow = process_of(inbox, lambda key, _rows, _state: [(key[0], "many")])
    with pytest.raises(UserFunctionError, match=r"Operator 'p': .*'many' in column 'n', which is"):
        drain(flow, tmp_path / "ck")


def test_state_that_its_codec_cannot_write(inbox: Inbox, tmp_path: Path) -> None:
    def remember(key: tuple[str], _rows: Any, state: dict[str, Any]) -> Iterable[Any]:
        if key[0] == "k7":
            state["made"] = object()
        return []

    with pytest.raises(StateEncodingError, match=r"cannot write its state of key \('k7',\)") as e:
        drain(process_of(inbox, remember), tmp_path / "ck")
    assert "['made']" in str(e.value)
    assert "a type that state cannot hold" in str(e.value)
    assert not list((tmp_path / "ck/commits").glob("*"))


def test_a_map_that_raises_is_named_with_its_traceback(inbox: Inbox, tmp_path: Path) -> None:
    def second_only(table: pa.Table) -> pa.Table:
        if table.num_rows:
            msg = "nothing but trouble"
            raise RuntimeError(msg)
        return table

    flow = gw.Flow("flow", num_key_groups=8)
    totals = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", n=gw.count())
    flow.sink("out", totals.map(second_only), gw.sinks.memory())
    with pytest.raises(UserFunctionError, match=r"(?s)second_only.*'t'.*nothing but trouble"):
        drain(flow, tmp_path / "ck")


def test_a_function_that_ends_its_process_is_told_without_any_stack_of_spark(
    inbox: Inbox, tmp_path: Path
) -> None:
    flow = process_of(inbox, lambda _key, _rows, _state: os._exit(3))
    with pytest.raises(EpochFailedError, match="a Python process of an executor ended") as caught:
        drain(flow, tmp_path / "ck")
    told = "".join(traceback.format_exception(caught.value))
    assert len(told.splitlines()) < 25
    assert "at org.apache.spark" not in told
    assert "at org.apache.spark" in caught.value.context["details"]


@pytest.mark.parametrize(
    ("sink", "options"),
    [
        (lambda path: gw.sinks.parquet(path / "in/out"), {}),
        (lambda path: gw.sinks.parquet(path / "in"), {}),
        (lambda path: gw.sinks.delta(path / "in/out"), {"recursiveFileLookup": "true"}),
    ],
)
def test_a_sink_in_the_directory_of_a_dataframe_is_refused_before_anything_is_made(
    inbox: Inbox, tmp_path: Path, sink: Callable[[Path], Any], options: dict[str, str]
) -> None:
    reader = inbox.spark.readStream.schema(COLUMNS).options(**options)
    flow = gw.Flow("flow")
    rows = flow.source("rows", reader.json(str(inbox.directory)).where("v > 0"))
    flow.sink("totals", rows.key_by("k").compute(total=gw.sum("v")), sink(tmp_path))
    for act in (flow.explain, lambda: flow.start(checkpoint=str(tmp_path / "ck"))):
        with pytest.raises(InvalidFlowError, match=r"source 'rows'.*: the source would read"):
            act()
    with pytest.raises(InvalidFlowError, match="the source would read"):
        flow.start(checkpoint=str(inbox.directory))
    assert not (tmp_path / "in/out").exists()
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize(
    ("sink", "path", "options"),
    [
        ("parquet", "in/_out", {}),
        ("parquet", "in/out", {"pathGlobFilter": "*.json"}),
        ("parquet", "in/out", {"pathGlobFilter": "{a,b}*"}),
        ("parquet", "beside", {}),
    ],
)
def test_a_sink_whose_files_a_dataframe_does_not_read_is_taken(
    inbox: Inbox, tmp_path: Path, sink: str, path: str, options: dict[str, str]
) -> None:
    reader = inbox.spark.readStream.schema(COLUMNS).options(**options)
    flow = gw.Flow("flow")
    rows = flow.source("rows", reader.json(str(inbox.directory)))
    flow.sink(
        "all", rows.key_by("k").compute(n=gw.count()), getattr(gw.sinks, sink)(tmp_path / path)
    )
    flow.explain()
