"""The log of a Delta table, read by the protocol: versions, their actions, and snapshots.

A version is one file of JSON actions in ``_delta_log``.  A checkpoint is a version's whole state in
Parquet, so that older versions can be removed; a snapshot is a checkpoint and the versions after
it.  The library deltalake neither shows deletion vectors of older versions nor reads tables with
column mapping, widened types or checkpoints of the second form, so the log is read here.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from godwit.connect.delta.place import error_text
from godwit.model.errors import SourceError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.connect.delta.place import TablePlace

_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(parquet|json)"
)
_NUM_RECORDS: Final = re.compile(r'"numRecords"\s*:\s*(\d+)')
_ACTIONS: Final = ("add", "metaData", "protocol", "sidecar")
_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Columns of the type variant are refused by their names.
        "variantType",
        "variantType-preview",
        "variantShredding-preview",
    }
)
_NAMED_FEATURES: Final = 3  # the version of the protocol that names features
_FACTS: Final = (  # of data files
    *("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector"),
)
_MAX_COMMITS: Final = 256  # remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Rows of a data file that are deleted, by number: where their bitmap is stored."""

    storage: str  # "i": within the log, "u": a file of the table, "p": a file anywhere
    place: str
    offset: int | None
    size: int  # bytes
    cardinality: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a version, as its action describes it."""

    path: str  # relative to the table, or absolute
    size: int  # bytes; 0 if unknown
    modified_ms: int
    partition: Mapping[str, str | None] | None  # physical name → text; ``None`` if not recorded
    rows: int | None = None  # with deleted ones
    stats: str | None = None  # JSON
    vector: DeletionVector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Schema and settings of a table."""

    table_id: str
    schema_json: str
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]

    @property
    def mapping(self) -> str:
        """Mode of column mapping: ``none``, ``name`` or ``id``."""
        return self.configuration.get("delta.columnMapping.mode", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Actions of one version."""

    version: int
    timestamp_ms: int
    operation: str
    adds: tuple[DataFile, ...]  # of data that changes, as are the next two
    removes: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]  # of the change data feed
    moved: tuple[DataFile, ...]  # added without a change of data, by compaction
    dropped: tuple[DataFile, ...]  # removed without a change of data
    metadata: Metadata | None = None
    protocol: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a table at a version."""

    version: int
    metadata: Metadata
    files: Mapping[str, DataFile]


def check_protocol(protocol: Mapping[str, Any], shown: str) -> None:
    """Raise `SourceError` if a table requires reader features that the source lacks."""
    version = int(protocol.get("minReaderVersion") or 1)
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - _FEATURES)
    if version > _NAMED_FEATURES:
        unknown = [f"reader version {version}"]
    if unknown:
        raise SourceError(
            f"The Delta table {shown!r} requires the reader features {listing(unknown)}, which "
            "the source does not support.",
            remedy="If the table does not need them, ALTER TABLE ... DROP FEATURE ...; or copy "
            "it to a table without them.",
            path=shown,
        )


class Log:
    """Log of a table; remembers the last versions that it read."""

    def __init__(self, table: TablePlace) -> None:
        self._table = table
        self._commits: OrderedDict[int, Commit] = OrderedDict()
        self._snapshot: Snapshot | None = None  # the last one

    # -- versions ---------------------------------------------------------------------------------

    def versions(self) -> range:
        """Return the versions in the log, from the first one that has no gap after it.

        Raises `SourceError` if there is no table.
        """
        numbers = sorted(
            int(match[1]) for name in self._log_file_names() if (match := _COMMIT.fullmatch(name))
        )
        checkpoints = self._complete_checkpoints(self._log_file_names())
        if not numbers and not checkpoints:
            raise SourceError(
                f"There is no Delta table at {self._table.shown!r}.",
                remedy="Check the path, and create the table first.",
                path=self._table.shown,
            )
        newest = max([*numbers, *checkpoints])
        first, existing = newest + 1, set(numbers)
        while first - 1 in existing:
            first -= 1
        return range(first, newest + 1)

    def has(self, version: int) -> bool:
        """Return whether a version exists; raise `SourceError` if it was removed from the log.

        `version`: the one after the newest that was read, or an older one.
        """
        if version in self._commits:
            return True
        paths = [self._log_path(f"{number:020}.json") for number in (version, max(version - 1, 0))]
        infos = self._table.filesystem.get_file_info(paths)
        is_there, is_former = (info.type == pafs.FileType.File for info in infos)
        if not is_there and not is_former and self.versions().stop > version:
            raise self.removed_error(version)
        return bool(is_there)

    def commit(self, version: int) -> Commit:
        """Return the actions of a version; raise `SourceError` if they were removed."""
        if version in self._commits:
            self._commits.move_to_end(version)
            return self._commits[version]
        path = self._log_path(f"{version:020}.json")
        try:
            with self._table.filesystem.open_input_file(path) as stream:
                text = stream.read()
        except FileNotFoundError as error:
            raise self.removed_error(version) from error
        commit = self._parse_commit(version, _parse_actions(text), path)
        self._commits[version] = commit
        if len(self._commits) > _MAX_COMMITS:
            self._commits.popitem(last=False)
        return commit

    def removed_error(self, version: int) -> SourceError:
        """Return the error that a version is no longer in the log."""
        return SourceError(
            f"Version {version} of the Delta table {self._table.shown!r} is no longer in its "
            "log: old versions are removed after delta.logRetentionDuration.",
            remedy="Start a new query, with a new checkpoint, from the newest version (or one "
            "that the log still has, by version=). If queries may stop for longer, increase "
            "delta.logRetentionDuration.",
            path=self._table.shown,
            version=version,
        )

    def _parse_commit(
        self, version: int, actions: Iterable[Mapping[str, Any]], path: str
    ) -> Commit:
        """Return actions as a commit, `DataFile` by `DataFile`."""
        kinds: dict[str, list[DataFile]] = {
            name: [] for name in ("add", "remove", "cdc", "moved", "dropped")
        }
        info: Mapping[str, Any] = {}
        metadata, protocol = None, None
        for action in actions:
            if (value := action.get("add")) is not None:
                kinds["add" if value.get("dataChange", True) else "moved"].append(
                    _data_file_of(value)
                )
            elif (value := action.get("remove")) is not None:
                kinds["remove" if value.get("dataChange", True) else "dropped"].append(
                    _data_file_of(value)
                )
            elif (value := action.get("cdc")) is not None:
                kinds["cdc"].append(_data_file_of(value))
            elif (value := action.get("metaData")) is not None:
                metadata = _metadata_of(value)
            elif (value := action.get("protocol")) is not None:
                protocol = value
            elif (value := action.get("commitInfo")) is not None:
                info = value
        timestamp = info.get("inCommitTimestamp") or info.get("timestamp")
        if timestamp is None:
            modified = self._table.filesystem.get_file_info(path).mtime_ns
            timestamp = (modified or 0) // 10**6
        return Commit(
            version=version,
            timestamp_ms=int(timestamp),
            operation=str(info.get("operation", "")),
            adds=tuple(kinds["add"]),
            removes=tuple(kinds["remove"]),
            changes=tuple(kinds["cdc"]),
            moved=tuple(kinds["moved"]),
            dropped=tuple(kinds["dropped"]),
            metadata=metadata,
            protocol=protocol,
        )

    def version_at(self, timestamp_us: int) -> int:
        """Return the newest version that was committed at `timestamp_us` (Unix time) or before."""
        versions = self.versions()
        first, after = versions.start, versions.stop
        while first < after:  # the first version that is later
            middle = (first + after) // 2
            if self.commit(middle).timestamp_ms * 1000 > timestamp_us:
                after = middle
            else:
                first = middle + 1
        if first == versions.start:
            raise SourceError(
                f"The log of the Delta table {self._table.shown!r} has no version from that time "
                f"or before; its first version is {versions.start}.",
                remedy="Give a later timestamp=, or version=.",
                path=self._table.shown,
            )
        return first - 1

    # -- snapshots --------------------------------------------------------------------------------

    def snapshot(self, version: int) -> Snapshot:
        """Return the state at a version; raise `SourceError` if the log does not have it."""
        if self._snapshot is None or self._snapshot.version != version:
            self._snapshot = self._read_snapshot(version)
        return self._snapshot

    def forget_snapshot(self) -> None:
        """Forget the last snapshot, which may have many files."""
        self._snapshot = None

    def _read_snapshot(self, version: int) -> Snapshot:
        """Return the state at a version, from a checkpoint and the versions after it."""
        names = self._log_file_names()
        checkpoints = self._complete_checkpoints(names)
        base = max((number for number in checkpoints if number <= version), default=-1)
        files: dict[str, DataFile] = {}
        metadata, protocol = None, None
        if base >= 0:
            for action in self._checkpoint_actions(checkpoints[base]):
                if isinstance(action, DataFile):
                    files[action.path] = action
                elif "metaData" in action:
                    metadata = _metadata_of(action["metaData"])
                elif "protocol" in action:
                    protocol = action["protocol"]
        for number in range(base + 1, version + 1):
            commit = self.commit(number)
            metadata, protocol = commit.metadata or metadata, commit.protocol or protocol
            for file in (*commit.removes, *commit.dropped):
                files.pop(file.path, None)
            files.update({file.path: file for file in (*commit.adds, *commit.moved)})
        check_protocol(protocol or {}, self._table.shown)
        if metadata is None:
            raise SourceError(
                f"The log of the Delta table {self._table.shown!r} has no columns at version "
                f"{version}.",
                remedy="Check that the path is the directory of a table.",
                path=self._table.shown,
            )
        return Snapshot(version=version, metadata=metadata, files=files)

    def _log_file_names(self) -> list[str]:
        """Return the names of the files of the log."""
        try:
            selector = pafs.FileSelector(self._log_path("").rstrip("/"), allow_not_found=True)
            infos = self._table.filesystem.get_file_info(selector)
        except (OSError, pa.ArrowException) as error:
            text = self._table.secrets.hide(error_text(error))
            raise SourceError(
                f"The log of the Delta table {self._table.shown!r} cannot be listed: {text}.",
                remedy="Check the path and the credentials (storage_options=).",
                path=self._table.shown,
            ) from self._table.secrets.cause(error)
        return [info.base_name for info in infos if info.is_file]

    def _log_path(self, name: str) -> str:
        """Return the path of a file of the log."""
        return self._table.full_path(f"{_LOG}/{name}")

    @staticmethod
    def _complete_checkpoints(names: Sequence[str]) -> dict[int, list[str]]:
        """Return the complete checkpoints: version → names of the files of one of them."""
        parts: dict[tuple[int, str], list[str]] = {}
        for name in sorted(names):
            if match := _CHECKPOINT.fullmatch(name):
                parts.setdefault((int(match[1]), match[3] or ""), []).append(name)
        complete = {}
        for (version, count), file_names in parts.items():
            if not count:
                complete[version] = file_names[:1]
            elif len(file_names) == int(count):
                complete.setdefault(version, file_names)
        return complete

    def _checkpoint_actions(self, names: Sequence[str]) -> Iterator[DataFile | Mapping[str, Any]]:
        """Yield the files and other actions of a checkpoint, including those of its sidecars."""
        for file in names:
            if file.endswith(".json"):
                with self._table.filesystem.open_input_file(self._log_path(file)) as stream:
                    actions: Iterable[DataFile | Mapping[str, Any]] = list(
                        _parse_actions(stream.read())
                    )
            else:
                actions = self._parquet_actions(file)
            for action in actions:
                if isinstance(action, DataFile):
                    yield action
                elif action.get("add") is not None:
                    yield _data_file_of(action["add"])
                elif action.get("sidecar") is not None:
                    _, _, name = unquote(action["sidecar"]["path"]).rpartition("/")
                    yield from self._parquet_actions(f"_sidecars/{name}")
                else:
                    yield action

    def _parquet_actions(self, file: str) -> Iterator[DataFile | Mapping[str, Any]]:
        """Yield the actions of a Parquet file of a checkpoint."""
        with self._table.filesystem.open_input_file(self._log_path(file)) as stream:
            opened = pq.ParquetFile(stream)
            actions = [name for name in _ACTIONS if name in opened.schema_arrow.names]
            columns = _needed_columns(opened.schema_arrow, actions)
            for group in range(opened.num_row_groups):
                rows = opened.read_row_group(group, columns=columns)
                for name in actions:
                    values = rows.column(name).combine_chunks().drop_null()
                    if name == "add":
                        yield from _data_files_of_checkpoint(values)
                        continue
                    for value in values.to_pylist(maps_as_pydicts="strict"):
                        yield {name: value}


def _needed_columns(schema: pa.Schema, actions: Sequence[str]) -> list[str]:
    """Return the columns of a checkpoint to read: statistics in columns may be very wide."""
    columns = [name for name in actions if name != "add"]
    if "add" in actions:
        adds = schema.field("add").type
        stored = [adds.field(n).name for n in range(adds.num_fields)]
        columns += [f"add.{name}" for name in _FACTS if name in stored]
        if "stats" not in stored and "stats_parsed" in stored:
            columns.append("add.stats_parsed.numRecords")
    return columns


def _parse_actions(text: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of a file of JSON lines."""
    for line in text.split(b"\n"):
        if line.strip():
            yield json.loads(line)


def _data_file_of(action: Mapping[str, Any]) -> DataFile:
    """Return the data file of an action ``add``, ``remove`` or ``cdc``."""
    stats = action.get("stats")
    rows = (action.get("stats_parsed") or {}).get("numRecords")
    if stats and rows is None:
        counts = _NUM_RECORDS.findall(stats)
        if len(counts) > 1:  # there is a column of this name
            counts = [json.loads(stats).get("numRecords")]
        rows = int(counts[0]) if counts and counts[0] is not None else None
    vector = action.get("deletionVector")
    partition = action.get("partitionValues")
    return DataFile(
        path=unquote(action["path"]),
        size=int(action.get("size") or 0),
        modified_ms=int(action.get("modificationTime") or action.get("deletionTimestamp") or 0),
        partition=partition,
        rows=rows,
        stats=stats,
        vector=None
        if vector is None
        else DeletionVector(
            storage=vector["storageType"],
            place=vector["pathOrInlineDv"],
            offset=vector.get("offset"),
            size=int(vector["sizeInBytes"]),
            cardinality=int(vector["cardinality"]),
        ),
    )


def _data_files_of_checkpoint(adds: pa.StructArray) -> Iterator[DataFile]:
    """Yield the data files of the actions ``add`` of a checkpoint, of which there may be many."""
    names = [adds.type.field(n).name for n in range(adds.type.num_fields)]
    parts = [adds.field(name).to_pylist(maps_as_pydicts="strict") for name in names]
    for facts in zip(*parts, strict=True):
        yield _data_file_of(dict(zip(names, facts, strict=True)))


def _metadata_of(action: Mapping[str, Any]) -> Metadata:
    """Return the schema and settings of an action ``metaData``."""
    return Metadata(
        table_id=action["id"],
        schema_json=action["schemaString"],
        partition_by=tuple(action.get("partitionColumns") or ()),
        configuration=dict(action.get("configuration") or {}),
    )
