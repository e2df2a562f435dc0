"""The oracle of adopted queries: Spark itself, batch by batch, over the same files.

`compare` runs one query twice: by ``df.writeStream``, and by ``gw.write_stream(df)``.  Every batch
reads one file, and what ``foreachBatch`` gets is compared as a multiset of rows, with types.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import StructType
from tests.adopted.agreed import agreed, comparison, remember
from tests.adopted.any_order import assert_possible, without_last, without_order
from tests.adopted.lanes_here import lanes_here
from tests.support.alike import alike

import godwit as gw
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
Batches = dict[int, list[tuple[Any, ...]]]
"""Number of a batch → its rows, sorted; batches without rows are left out."""
RAW_FILES = "org.apache.hadoop.fs.RawLocalFileSystem"
PROCESSORS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # RocksDB's files are copied by this one alone.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Settings of Spark for a query with a `StatefulProcessor`."""
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # Compiling a query takes longer than these run.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "100",
    # With more groups than that, aggregates sort rows, and lists have them in another order.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # The default one starts a process (readlink) for every look at a file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}

_TOO_SLOW = ("failed to connect back", "CANNOT_OPEN_SOCKET")
"""Parts of Spark's errors for Python workers that do not start within 10 s."""


@dataclass
class Stream:
    """Input of a query: batches of rows, each of which becomes a file."""

    schema: str
    batches: Sequence[Sequence[tuple[Any, ...]]]
    files: str = field(default="")  # directory of the files
    file_format: str = "parquet"  # or "json", of values that JSON has


@dataclass
class Outcome:
    """What a query gave: its batches, and the columns of these."""

    batches: Batches
    schema: StructType | None


@contextmanager
def written(spark: SparkSession, streams: dict[str, Stream]) -> Iterator[dict[str, DataFrame]]:
    """Write the batches of streams to files, and yield them as streaming DataFrames, by name."""
    directory = tempfile.mkdtemp(prefix="native-")
    frames = {}
    try:
        for name, stream in streams.items():
            stream.files = f"{directory}/{name}"
            Path(stream.files).mkdir()
            write(stream, stream.batches)
            reader = spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1)
            if stream.file_format == "json":
                reader = reader.option("mode", "FAILFAST")
            frames[name] = reader.format(stream.file_format).load(stream.files)
        yield frames
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def write(stream: Stream, batches: Sequence[Sequence[tuple[Any, ...]]]) -> None:
    """Add a file for every batch to the directory of a stream; later ones are newer."""
    columns_of_spark: Any = StructType.fromDDL(stream.schema)
    schema = arrow_schema_of(columns_of_spark, zone="UTC")
    first = len(list(Path(stream.files).iterdir()))
    for number, rows in enumerate(batches, first):
        columns = [
            pa.array([row[index] for row in rows], column.type)
            for index, column in enumerate(schema)
        ]
        target = f"{stream.files}/{number:06d}.{stream.file_format}"
        table = pa.Table.from_arrays(columns, schema=schema)
        if stream.file_format == "json":
            lines = [json.dumps(row, default=str) for row in table.to_pylist()]
            Path(f"{stream.files}.part").write_text("\n".join(lines))
        else:
            pq.write_table(table, f"{stream.files}.part")
        moment = 1_700_000_000 + number
        os.utime(f"{stream.files}.part", (moment, moment))
        Path(f"{stream.files}.part").rename(target)


def run(
    writer: Any, *, mode: str, checkpoint: str, after: Callable[[Any], None] | None = None
) -> Outcome:
    """Run a query over all its files; return what its batches had.

    `writer`: ``df.writeStream`` or ``gw.write_stream(df)``. `after`: called with the query while it
    runs.
    """
    outcome = Outcome(batches={}, schema=None)

    def collect(rows: DataFrame, batch: int) -> None:
        """Remember the rows of a batch."""
        outcome.schema = rows.schema
        collected = rows.collect()
        if collected:
            outcome.batches[batch] = plain_rows(collected)

    query = (
        writer.outputMode(mode)
        .queryName(f"{Path(checkpoint).parent.name}-{Path(checkpoint).name}")
        .foreachBatch(collect)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if after is not None:
            after(query)
        query.awaitTermination()
        error = query.exception()
        if error is not None:
            raise error
    finally:
        query.stop()
    return outcome


def run_live(
    writer: Any, stream: Stream, *, mode: str, checkpoint: str, then: Callable[[Any], None]
) -> Batches:
    """Run a query while its files arrive, one by one, each after the last one is processed.

    `then`: called with the query after each file but the last. The query restarts halfway.
    """
    batches: Batches = {}

    def collect(rows: DataFrame, batch: int) -> None:
        """Remember the rows of a batch."""
        collected = rows.collect()
        if collected:
            batches[batch] = plain_rows(collected)

    shutil.rmtree(stream.files, ignore_errors=True)
    Path(stream.files).mkdir()
    writer = (
        writer.outputMode(mode)
        .queryName(Path(checkpoint).name.replace(" ", "-"))
        .foreachBatch(collect)
        .option("checkpointLocation", checkpoint)
    )
    half = len(stream.batches) // 2
    for part in (stream.batches[:half], stream.batches[half:]):
        query = writer.start()
        try:
            for rows in part:
                write(stream, [rows])
                query.processAllAvailable()
                then(query)
        finally:
            query.stop()
    return batches


def compare(
    spark: SparkSession,
    build: Callable[..., DataFrame],
    streams: dict[str, Stream],
    *,
    mode: str,
    parts: int = 1,
    after: Callable[[Any], None] | None = None,
) -> Batches:
    """Run a query natively and adopted; assert that both gave the same batches; return these.

    `build`: called with the streaming DataFrames, by name. `parts`: number of runs that the batches
    are divided among; each but the first restarts both queries. `after`: called with the adopted
    query, while it runs.
    """
    case = Case(build=build, streams=streams, mode=mode, parts=parts, after=after)
    with settings(spark):
        return compared(spark, case, getattr(build, "__name__", ""))


Run: TypeAlias = "Callable[[DataFrame, Case, str], Outcome]"
"""Function that runs the query of a case with a checkpoint."""


@dataclass(kw_only=True)
class Case:
    """A query to run natively and adopted; see `compare`."""

    build: Callable[..., DataFrame]
    streams: dict[str, Stream]
    mode: str
    parts: int = 1
    after: Callable[[Any], None] | None = None
    every_value: Callable[..., DataFrame] | None = None  # see `tests.adopted.any_order`
    own_sources: bool = False  # instead of Spark's scans
    settings: dict[str, str] = field(default_factory=dict)  # of Spark; with a session of its own


def compare_all(spark: SparkSession, cases: dict[str, Case], *, at_once: int = 4) -> dict[str, str]:
    """Run several cases at once; return name → why it failed, of those that did.

    Queries mostly wait for logs and schedulers, so several take little longer than one does.
    Their lanes are in this process; those of `compare` are in Spark's jobs.
    """
    lanes = nullcontext() if "GODWIT_LONG" in os.environ else lanes_here()
    with lanes, settings(spark), ThreadPoolExecutor(at_once) as pool:
        texts = pool.map(partial(failure_of, spark), cases, cases.values())
        results = dict(zip(cases, texts, strict=True))
    return {name: text for name, text in results.items() if text}


def failure_of(spark: SparkSession, name: str, case: Case) -> str:
    """Run a case natively and adopted; return its error as text, empty if it has none."""
    session = session_with(spark, case.settings) if case.settings else spark
    try:
        compared(session, case, name)
    except Exception as error:  # noqa: BLE001  the test gets its text
        return f"{type(error).__name__}: {error}"
    return ""


class RefusedBySparkError(Exception):
    """Spark's analysis refuses a query."""


class FailedInSparkError(Exception):
    """Spark takes a query and fails while it runs, so there is nothing to compare with."""


def compared(
    spark: SparkSession,
    case: Case,
    name: str,
    *,
    natively: Callable[[], Outcome] | None = None,
    adopted: Run | None = None,
) -> Batches:
    """Run a query adopted, and natively unless this was done before; return the same batches.

    `adopted`: how. `natively`: returns what the query gives natively, in any case; it is called
    after `adopted`. Both run by ``foreachBatch`` by default.
    """
    ours: Outcome | Exception
    try:
        ours, digested = _outcome(spark, case, adopted or run_adopted, digest=natively is None)
    except (RefusedBySparkError, AssertionError):
        raise
    except Exception as error:  # noqa: BLE001  Spark may refuse the query, too
        ours, digested = error, ""
    if isinstance(ours, Outcome):
        result = (ours.batches, _types(ours.schema))
        if natively is None and agreed(digested, result):
            return ours.batches
    try:
        native = in_time(natively or (lambda: _outcome(spark, case, run_natively)[0]))
    except StreamingQueryException as error:
        own = f"fails, too: {ours!r}" if isinstance(ours, Exception) else "does not fail"
        raise FailedInSparkError(f"the adopted query {own}; Spark: {error}") from error
    if isinstance(ours, Exception):
        raise ours
    if native.schema is not None and ours.schema is not None:
        assert _types(ours.schema) == _types(native.schema)
    try:
        assert_same(ours.batches, native.batches)
    except AssertionError:
        if case.every_value is None:
            raise
        _assert_same_in_any_order(spark, case, ours.batches, native.batches)
    if natively is None:
        remember(digested, result, name)
    return ours.batches


def in_time(run_natively: Callable[[], _T]) -> _T:
    """Run a query natively; again, if a busy machine did not start a worker of Spark's in time."""
    for _ in range(3):
        try:
            return run_natively()
        except StreamingQueryException as error:
            if not any(text in str(error) for text in _TOO_SLOW):
                raise
    return run_natively()


def run_natively(query: DataFrame, case: Case, checkpoint: str) -> Outcome:
    """Run a query natively; raise `RefusedBySparkError` if Spark refuses it."""
    try:
        return run(query.writeStream, mode=case.mode, checkpoint=checkpoint)
    except AnalysisException as error:
        raise RefusedBySparkError(str(error)) from error


def run_adopted(query: DataFrame, case: Case, checkpoint: str) -> Outcome:
    """Run a query adopted."""
    writer = gw.write_stream(query)
    writer = writer.own_sources() if case.own_sources else writer
    return run(writer, mode=case.mode, checkpoint=checkpoint, after=case.after)


def _outcome(
    spark: SparkSession, case: Case, start: Run, *, digest: bool = False
) -> tuple[Outcome, str]:
    """Run a query over the parts of its input; return what it gave, and its `comparison`.

    `digest`: the latter is asked for.
    """
    cut = {
        name: [len(stream.batches) * part // case.parts for part in range(case.parts + 1)]
        for name, stream in case.streams.items()
    }
    first = {
        name: replace(stream, batches=stream.batches[: cut[name][1]])
        for name, stream in case.streams.items()
    }
    whole = Outcome(batches={}, schema=None)
    with written(spark, first) as frames, tempfile.TemporaryDirectory() as checkpoints:
        try:
            query = case.build(**frames)
        except AnalysisException as error:
            raise RefusedBySparkError(str(error)) from error
        inputs = [(name, s.schema, s.batches) for name, s in case.streams.items()]
        digested = comparison(query, case.build, case.mode, cut, inputs) if digest else ""
        for part in range(case.parts):
            if part:
                for name, stream in case.streams.items():
                    rows = stream.batches[cut[name][part] : cut[name][part + 1]]
                    write(first[name], rows)
            outcome = start(query, case, f"{checkpoints}/{start.__name__}")
            twice = whole.batches.keys() & outcome.batches.keys()
            assert not twice, f"the function got batches again after a restart: {sorted(twice)}"
            whole = Outcome(whole.batches | outcome.batches, outcome.schema or whole.schema)
    return whole, digested


def _assert_same_in_any_order(
    spark: SparkSession, case: Case, ours: Batches, theirs: Batches
) -> None:
    """Assert that two runs differ only by an order that Spark leaves open."""
    assert case.every_value is not None
    whole = replace(case, build=case.every_value)
    every = _outcome(spark, whole, run_adopted)[0].batches
    native = _outcome(spark, whole, run_natively)[0].batches
    assert_same(without_order(every), without_order(native))
    assert_same(without_last(ours), without_last(theirs))
    assert_possible(ours, every)


def assert_same(adopted: Batches, native: Batches) -> None:
    """Assert that two runs gave the same rows in the same batches."""
    for batch in sorted({*adopted, *native}):
        ours, theirs = adopted.get(batch, []), native.get(batch, [])
        same = len(ours) == len(theirs) and all(map(alike, ours, theirs))
        assert same, (
            f"batch {batch}: {_first_difference(ours, theirs)}"
            f"\nonly adopted: {_without(ours, theirs)}"
            f"\nonly native:  {_without(theirs, ours)}\nadopted: {adopted}\nnative:  {native}"
        )


@contextmanager
def settings(spark: SparkSession) -> Iterator[None]:
    """Context with settings that make small native queries quick."""
    before = {key: spark.conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            if known is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, known)


def session_with(spark: SparkSession, further: dict[str, str]) -> SparkSession:
    """Return a session of its own, with the settings of `settings` and further ones."""
    session = spark.newSession()
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    for key, value in {"spark.sql.session.timeZone": zone, **_SETTINGS, **further}.items():
        session.conf.set(key, value)
    return session


def _types(schema: StructType | None) -> list[tuple[str, str]]:
    """Return the names and types of columns."""
    return [(column.name, column.dataType.simpleString()) for column in schema or ()]


def plain_rows(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a batch, sorted."""
    return sorted((_plain(tuple(row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    """Return a value whose text tells it apart: rows as tuples, sets in order are left as lists."""
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value


def _first_difference(ours: list[Any], theirs: list[Any]) -> str:
    """Return the values that differ in the first row that does, as text."""
    for own, other in zip(ours, theirs, strict=False):
        parts = [
            f"column {number}: {mine!r}, Spark: {other[number]!r}"
            for number, mine in enumerate(own)
            if not alike(mine, other[number])
        ]
        if parts:
            return "; ".join(parts)
    return f"{len(ours)} rows, Spark: {len(theirs)}"


def _without(rows: list[Any], others: list[Any]) -> list[Any]:
    """Return the first rows that are not among others, or more often."""
    left = list(rows)
    for other in others:
        if other in left:
            left.remove(other)
    return left[:10]
