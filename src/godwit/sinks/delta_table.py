"""Delta table of a sink: its schema, the epoch that it holds, and the data files that lanes write.

**Epoch**, of which history, though the table was restored to an earlier version.  The version that
a table keeps for an application never goes back: after ``RESTORE`` the table says that it has
epochs whose rows are gone.  What the table holds stands in its log, for every commit of ours says
whose epoch it is.  Read from the newest version back, going on at a ``RESTORE`` where that leads,
the first such commit is the last epoch that is there.

Where that is not what the application's version says, the sink goes on as another application, a
*generation* of its own, which begins with the ``RESTORE`` or with a commit that says so.

**Data files** of lanes, in the table's directory, that no version names yet.  A data file counts
from the commit that adds it, and nobody looks at it before; one that no version ever adds is
removed by ``VACUUM``, as what any writer of the format leaves behind.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import Schema
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.sinks.file_systems import force_file, force_names, local_path
from godwit.sinks.parquet_files import are_worth_files, partitioned, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable

    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.model.secrets import Secrets

__all__ = [
    "DeltaLaneWriter",
    "HeldEpoch",
    "add_action",
    "as_delta_stores",
    "check_table",
    "error_text",
    "held_epoch",
    "mark",
    "metadata_of",
    "restored_since",
    "table_files",
    "takes_plain_files",
    "version_to_restore",
]


_PLAIN_FEATURES: Final = {"appendOnly", "invariants", "timestampNtz", "checkConstraints"}
"""Features that a table may ask of writers whose rows are data files that a commit adds."""

_LAST_PLAIN_VERSION: Final = 3  # of those that name no features: later ones compute columns
_PLAIN_PARTITIONS: Final = {"string", "byte", "short", "integer", "long", "date", "boolean"}


class _MakeError(Protocol):
    def __call__(self, what: str, remedy: str) -> SinkError: ...


def check_table(table: DeltaTable, schema: pa.Schema, error: _MakeError) -> None:
    """Refuse a table that rows do not fit, or that would refuse some of them.

    Raises `SinkError`: made by `error`.
    """
    _check_columns(table, schema, error)
    _check_constraints(table, error)


def _check_columns(table: DeltaTable, schema: pa.Schema, error: _MakeError) -> None:
    existing = {field.name: field.type for field in table.schema().fields}
    expected = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    differences = [
        f"{name} ({_type_name(expected.get(name))} in the rows, {_type_name(existing.get(name))} "
        f"in the table)"
        for name in sorted(existing.keys() | expected.keys())
        if existing.get(name) != expected.get(name)
    ]
    if differences:
        raise error(
            f"the table has other columns: {', '.join(differences)}",
            "Use another path, or cast and rename the columns before the sink.",
        )


def _check_constraints(table: DeltaTable, error: _MakeError) -> None:
    # What it refused would have been committed already.
    names = [
        name.removeprefix("delta.constraints.")
        for name in table.metadata().configuration
        if name.startswith("delta.constraints.")
    ]
    names += [f.name for f in table.schema().fields if "delta.invariants" in f.metadata]
    if names:
        raise error(
            f"the table has constraints ({', '.join(sorted(names))})",
            "Drop them (ALTER TABLE ... DROP CONSTRAINT ...) and filter in a map before the "
            "sink, or write to another table.",
        )


def takes_plain_files(table: DeltaTable) -> bool:
    """Return whether plain files, with partition values in text, meet the table's demands."""
    protocol = table.protocol()
    if protocol.min_writer_version > _LAST_PLAIN_VERSION and not protocol.writer_features:
        return False
    features = set(protocol.writer_features or ())
    types = [
        str(getattr(field.type, "type", ""))
        for field in table.schema().fields
        if field.name in table.metadata().partition_columns
    ]
    return features <= _PLAIN_FEATURES and _PLAIN_PARTITIONS.issuperset(types)


def as_delta_stores(dtype: pa.DataType) -> pa.DataType:
    """Return the narrowest type of Delta Lake (it has no unsigned ones) that holds `dtype`."""
    return {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }.get(dtype, dtype)


def _type_name(dtype: object) -> str:
    if dtype is None:
        return "absent"
    return str(getattr(dtype, "type", dtype))


def error_text(error: Exception) -> str:
    r"""Text of the library's error on one line, without colours: the cause is on the last one.

    Examples
    --------
    >>> error_text(OSError("Generic error\n  \x1b[31m\u21b3\x1b[0m no such bucket\n"))
    'Generic error: no such bucket'
    """
    lines = re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", str(error)).splitlines()
    return ": ".join(line.strip() for line in lines if line.strip()) or type(error).__name__


_KEY: Final = "godwit"
_PAGES: Final = (16, 256, 4096, None)
_MAINTENANCE: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END", "RESTORE"}
"""Operations that add no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldEpoch:
    """An epoch that a table holds."""

    # the epoch and its history; without a digest where an earlier version committed it
    point: HistoryPoint
    generation: str  # of the application that its version is under, or the next one's
    version: int  # of the table, at which it was committed; -1 if not known


def metadata_of(point: HistoryPoint, writer: str, generation: str) -> dict[str, str]:
    """Describe an epoch for the log of the table."""
    fields = {**asdict(point), "writer": writer, "generation": generation}
    return {_KEY: json.dumps(fields, sort_keys=True)}


def _own_epoch(commit: Mapping[str, Any], query_id: str, writer: str) -> HeldEpoch | None:
    """Read an epoch of a writer out of a commit; ``None`` if it is somebody else's."""
    try:
        fields = json.loads(commit[_KEY])
        if (fields["query_id"], fields["writer"]) != (query_id, writer):
            return None
        return HeldEpoch(
            point=HistoryPoint(
                query_id=query_id,
                history=str(fields["history"]),
                epoch=int(fields["epoch"]),
                digest=str(fields["digest"]),
            ),
            generation=str(fields["generation"]),
            version=int(commit["version"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _commits_back(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the commits that led to what the table holds, the newest first.

    A ``RESTORE`` is among them; those that it undid are not.
    """
    at, seen = table.version(), 0
    for page in _PAGES:
        history = table.history(page)
        for commit in history[seen:]:
            if commit["version"] > at:
                continue
            yield commit
            at = commit["version"] - 1
            if commit.get("operation") == "RESTORE":
                target = _restored_version(commit, table)
                if target is None:
                    return
                at = target
        seen = len(history)
        if page is None or seen < page:
            return


def _restored_version(commit: Mapping[str, Any], table: DeltaTable) -> int | None:
    """Version that a ``RESTORE`` went back to; ``None`` if the log does not say."""
    parameters = commit.get("operationParameters") or {}
    if parameters.get("version") is not None:
        return int(parameters["version"])
    try:
        moment = (
            int(parameters["datetime"])
            if parameters.get("datetime") is not None
            else int(dt.datetime.fromisoformat(str(parameters["timestamp"])).timestamp() * 1000)
        )
    except (KeyError, ValueError):
        return None
    earlier = [c for c in table.history() if c["version"] < commit["version"]]
    return max((int(c["version"]) for c in earlier if c["timestamp"] <= moment), default=None)


def held_epoch(table: DeltaTable, query_id: str, writer: str, application: str) -> HeldEpoch | None:
    """Find the last epoch of a writer that a table holds.

    `table`: the table, as it is now. `query_id`, `writer`: whose epoch. `application`: name of the
    first generation of the writer's application. Returns ``None`` if the writer never wrote to the
    table. An epoch of -1 if what it wrote is gone.
    """
    recorded = table.transaction_version(application)
    if recorded is None:
        return None
    restore = -1
    for commit in _commits_back(table):
        if commit.get("operation") == "RESTORE":
            restore = max(restore, int(commit["version"]))
        epoch = _own_epoch(commit, query_id, writer)
        if epoch is not None:
            if restore < 0:
                return epoch
            return HeldEpoch(point=epoch.point, generation=f"r{restore}", version=epoch.version)
    if restore < 0:  # by an earlier version, whose commits do not say so
        return HeldEpoch(point=_unknown(query_id, recorded), generation="", version=-1)
    if any(_own_epoch(commit, query_id, writer) for commit in table.history()):
        return HeldEpoch(point=_unknown(query_id, -1), generation=f"r{restore}", version=-1)
    return HeldEpoch(point=_unknown(query_id, recorded), generation="", version=-1)


def version_to_restore(
    table: DeltaTable, is_shared: Callable[[HistoryPoint], bool], query_id: str, writer: str
) -> tuple[int | None, int, Mapping[str, Any] | None]:
    """Find the version of a table that has nothing of a writer but what is shared.

    Returns the version (``None`` if the log does not say), the writer's last epoch in it (-1 if it
    has none), and a commit of somebody else that would be undone too.
    """
    version: int | None = None
    left = -1
    others: list[Mapping[str, Any]] = []
    undone: list[Mapping[str, Any]] = []
    for commit in _commits_back(table):
        epoch = _own_epoch(commit, query_id, writer)
        if epoch is None:
            if commit.get("operation") not in _MAINTENANCE:
                others.append(commit)
            continue
        undone, others = [*undone, *others], []
        if is_shared(epoch.point):
            version, left = epoch.version, epoch.point.epoch
            break
        version = epoch.version - 1  # before our first epoch, if none is shared
    return version, left, undone[0] if undone else None


def _unknown(query_id: str, epoch: int) -> HistoryPoint:
    return HistoryPoint(query_id=query_id, history="", epoch=epoch, digest="")


def restored_since(table: DeltaTable, seen: int, held: int, query_id: str, writer: str) -> bool:
    """Return whether somebody has taken a writer's last epoch from a table by a ``RESTORE``.

    `table`: the table, as it is now. `seen`: version at which it was looked at last; the writer may
    have committed an epoch since. `held`: version of the writer's last epoch as of then.
    `query_id`, `writer`: the writer.
    """
    if table.version() <= seen:
        return False
    targets: list[int] = []
    for commit in table.history(table.version() - seen):
        epoch = _own_epoch(commit, query_id, writer)
        if epoch is not None:
            held = epoch.version
            break
        if commit.get("operation") == "RESTORE":
            target = _restored_version(commit, table)
            targets.append(-1 if target is None else target)
    return any(target < held for target in targets)


_LONGEST_TEXT: Final = 32  # engines cut longer ones off, each in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLaneWriter:
    """Writes a lane's rows as data files (see `godwit.plan.staging.LaneWriter`)."""

    sink: str  # name of the sink
    target: str  # where it writes, as it may be shown
    # the table
    uri: str
    storage_options: Mapping[str, str] | None
    secrets: Secrets
    marker: str  # path within the table of a file that says that this is it
    opening: str  # what tells files that were written since the sink was opened from others
    # columns of the rows as the table keeps them, and which of them are not in files
    schema: pa.Schema
    partition_by: tuple[str, ...]
    lane_bytes: int  # as the sink was given it

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write a file for each partition.

        Raises `SinkError` if the table is there and cannot be written.
        """
        if not are_worth_files(rows, 1, self.lane_bytes):
            return None
        rows = rows.cast(self.schema)
        partitions = len(partitioned(rows, self.partition_by)) if self.partition_by else 1
        filesystem, root = table_files(self.uri, self.storage_options)
        info = filesystem.get_file_info(f"{root}/{self.marker}")
        if info.type == pafs.FileType.NotFound:
            return None
        if not are_worth_files(rows, partitions, self.lane_bytes):
            return None
        return self.write_files(rows, f"{epoch}-{place}")

    def write_files(self, rows: pa.Table, name: str) -> Sequence[WrittenFile]:
        """Write files whose names begin with ``godwit-<name>``.

        Raises `SinkError` if the table cannot be written.
        """
        filesystem, root = table_files(self.uri, self.storage_options)
        attempt = f"{self.opening}-{uuid.uuid4().hex}"
        written = []
        try:
            for number, part in enumerate(partitioned(rows, self.partition_by)):
                path = f"godwit-{name}-{attempt}-{number:05d}.zstd.parquet"
                file = write_file(
                    filesystem,
                    root,
                    path,
                    part.rows,
                    partition=part,
                    compression="zstd",
                    delivered=path,
                    facts={"statistics": _statistics(part.rows)},
                )
                if local := local_path(filesystem, f"{root}/{path}"):
                    force_file(local)
                written.append(file)
            if local := local_path(filesystem, root):
                force_names([local])
        except OSError as error:
            raise SinkError(
                f"Delta sink {self.sink!r}: {self.target} cannot be written: "
                f"{self.secrets.hide(str(error))}.",
                remedy="Check the path, its permissions and its room, and start the query again.",
                sink=self.sink,
                path=self.target,
            ) from self.secrets.cause(error)
        return written


def table_files(uri: str, storage_options: Mapping[str, str] | None) -> tuple[pafs.FileSystem, str]:
    """Open the files of a table: a file system, and the table's directory in it."""
    if urlsplit(uri).scheme == "file":
        return pafs.LocalFileSystem(), unquote(urlsplit(uri).path).rstrip("/")
    options = dict(storage_options) if storage_options else None
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options)), ""


def mark(uri: str, storage_options: Mapping[str, str] | None, marker: str) -> None:
    """Write a file by which lanes recognize the table."""
    filesystem, root = table_files(uri, storage_options)
    filesystem.create_dir(f"{root}/{Path(marker).parent}", recursive=True)
    with filesystem.open_output_stream(f"{root}/{marker}") as stream:
        stream.write(b"Lanes of the query write data files where they see this.\n")


def add_action(file: WrittenFile) -> AddAction:
    """Describe a data file as the log of the table does."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows, **file.facts.get("statistics", {})}),
    )


def _statistics(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Nulls, least and greatest values of plain columns, by which readers pass over files."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not _is_plain(column.type):
            continue
        extremes = pc.min_max(column)
        low, high = (_plain(extremes[end].as_py()) for end in ("min", "max"))
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls}


def _is_plain(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_date32(dtype)
        or pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value.encode()) <= _LONGEST_TEXT else None
    return value if value is None or isinstance(value, int) else value.isoformat()
