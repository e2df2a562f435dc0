"""Results in a Delta Lake table, exactly once, by Delta's application transactions.

Every commit to a Delta table may say "application a has written its version v" in the same log
entry as the rows.  Invariant: the table's version for the sink's application is n if and only if
the table has the rows of every epoch up to n.  Two deliveries of one epoch at the same time
conflict in the log, and the refused one reads the log again.

**Restored tables.**  The version that a table keeps for an application never goes back: after
``RESTORE`` the version includes epochs whose rows are gone.  So every commit of the sink also has
its epoch and writer.  The log is read from the newest version back, and continues at the version
that a ``RESTORE`` names; the first such commit has the last epoch in the table.  If it differs from
the application's version, the sink continues as another application, a *generation* of its own,
which begins with the ``RESTORE`` or with a commit that names it.

**Data files** that lanes write in the table's directory count from the commit that adds them.
``VACUUM`` removes a file that no version adds, as it does for any writer of the format.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import math
import os
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from godwit.columns.signed import CHANGE
from godwit.columns.types import is_text
from godwit.connect.delta.history import changed_history, rows_of_versions
from godwit.connect.delta.maintenance import maintain_table
from godwit.connect.delta.place import error_text, table_files
from godwit.connect.delta.table import (
    as_delta_stores,
    check_library,
    check_names,
    check_path,
    find_problem,
    missing_features,
    partition_problem,
    rehearse,
    row_check,
    takes_plain_files,
)
from godwit.connect.files.parquet_files import (
    Partition,
    files_there,
    is_target_replaced,
    partitioned,
    partitions_worth_files,
    require_types,
    write_file,
)
from godwit.model.errors import SinkError
from godwit.model.locations import local_path as local_path_of
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.carried_files import rows_of_file
from godwit.sinks.file_systems import (
    destination_of,
    exists,
    force_file,
    force_names,
    local_path,
    place_of,
    try_directory,
)
from godwit.sinks.rows import (
    column_names,
    is_complete_result,
    join_small_batches,
    require_columns,
    storable_schema,
    with_plain_types,
)
from godwit.sinks.sink import Maintained
from godwit.sinks.target_sink import (
    RESERVED_NAMES,
    CommitRetries,
    TargetSink,
    is_shared,
    point_text,
    point_without_history,
    read_point_text,
)
from godwit.sinks.writing import Mode, Writing

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.connect.delta.table import TargetProblem
    from godwit.plan.staging import LaneWriter, RowCheck, WrittenFile
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Maintenance, Sink, SinkContext

_UNRIVALLED_ATTEMPTS: Final = 3  # of a commit that fails without a commit of another writer
_REST_ROWS: Final = 2_000_000
_REST_BYTES: Final = 128 * 2**20


class DeltaSink(TargetSink):
    """Writes each epoch to a Delta Lake table in one commit (see `godwit.sinks.delta`)."""

    failures = (Exception,)  # the library also raises bare Exceptions
    takes_other_writers = True
    reserved_names = RESERVED_NAMES | {"_delta_log", "_delta_index", "_change_data"}
    text_of = staticmethod(error_text)
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write
    deletes = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode,
        keys: str | Sequence[str] | None,
        order_by: str | None,
        rename: Mapping[str, str] | None,
        partition_by: str | Sequence[str],
        storage_options: Mapping[str, str] | None,
        max_partitions: int,
        lane_bytes: int,
        rejects: Sink | None,
        maintain: Maintenance | None = None,
    ) -> None:
        self._writing = Writing(mode=mode, keys=keys, order_by=order_by, rename=rename)
        self._writing.check("Delta sink", get_args(Mode))
        self._path = os.fspath(path)
        self._partition_by = column_names(partition_by)
        self._storage_options = dict(storage_options) if storage_options else None
        self._shown_path = shown_uri(self._path)
        secrets = Secrets.of_uri(self._path) | Secrets.of_values(storage_options or {})
        super().__init__("Delta", secrets=secrets, rejects=rejects, path=self._shown_path)
        self._max_partitions, self._lane_bytes = max_partitions, lane_bytes
        self._maintenance = maintain

    def __repr__(self) -> str:
        return f"gw.sinks.delta({self._shown_path!r}, mode={self._writing.mode!r})"

    @property
    def maintenance(self) -> Maintenance | None:
        """The policy that the user set."""
        return self._maintenance

    def maintain(self) -> Maintained:
        """Compact the table and remove files of old versions, as the policy says."""
        if self._maintenance is None:
            return Maintained()
        with self._translating_errors(
            f"cannot maintain {self._shown_path}", "It will be retried; see the table's log."
        ):
            return maintain_table(self._path, self._storage_options, self._maintenance)

    def row_check(self) -> RowCheck:
        """Return the check for rows that the table's columns or partitions cannot hold."""
        check = row_check(self._table, self._context, self._max_partitions)
        return self._layout.check(check)

    @functools.cached_property
    def destination(self) -> str:
        """Canonical path or URI of the table, without secrets."""
        return destination_of(self._path)

    @property
    def place(self) -> str:
        """Name of the table's directory, the same for all spellings of its path."""
        return place_of(self.destination, self._storage_options or {})

    @property
    def example_files(self) -> tuple[str, ...]:
        """Names of files that the table may get, as examples."""
        return ("/".join([*(f"{name}=0" for name in self._partition_by), "part-00000.parquet"]),)

    @property
    def target(self) -> str | None:
        """URI of the table, to which lanes write data files; ``None`` for upserts."""
        if self._merge_keys:
            return None
        uri = str(self._table.table_uri)
        return unquote(urlsplit(uri).path) if uri.startswith("file:") else self.destination

    def lane_writer(self) -> LaneWriter | None:
        """Return the writer of data files for lanes; ``None`` if rows are merged by the driver."""
        if self._merge_keys or not takes_plain_files(self._table):
            return None
        with self._translating_errors(
            f"cannot write to {self._shown_path}",
            "Check the path, its permissions and the credentials.",
        ):
            write_marker(self._table.table_uri, self._storage_options, self._marker_path)
        return self._file_writer()

    def _file_writer(self) -> DeltaLaneWriter:
        """Return a writer for the table's data files."""
        return DeltaLaneWriter(
            sink=self._context.name,
            target=self.target or "",
            uri=self._table.table_uri,
            storage_options=self._storage_options,
            secrets=self._secrets,
            marker=self._marker_path,
            opening=self._opening_id,
            schema=self._schema,
            partition_by=tuple(self._table.metadata().partition_columns),
            lane_bytes=self._lane_bytes,
        )

    @property
    def _marker_path(self) -> str:
        """Path, within the table, of the file by which lanes identify the table."""
        return f"_godwit/{self._context.query_id}-{self._context.writer}"

    def _fit(self, context: SinkContext) -> None:
        """Set the columns of the table; raise if Delta tables cannot have them."""
        context = self._set_layout(context)
        self.__dict__.pop("destination", None)  # of another run, started elsewhere
        self._opening_id = uuid.uuid4().hex[:12]
        self._merge_keys = self._layout.keys
        require_columns(context, self._partition_by, "partition_by")
        self._schema = with_plain_types(storable_schema(context.schema), as_delta_stores)
        self._rows_schema = self._layout.rows_schema(self._schema)
        merges = bool(self._merge_keys) and not context.complete
        self._raise_problem(
            check_library()
            or check_path(self._path)
            or check_names(self._schema.names, merges=merges)
        )
        require_types(context, self._schema, "a Delta table", self._target_error, Schema.from_arrow)

    def _try_target(self) -> RowCheck:
        """Check the table; if it is to be created, check a temporary one like it."""
        path, options = self._path, self._storage_options
        with tempfile.TemporaryDirectory(prefix="godwit-") as directory:
            with self._opening_errors():
                local = local_path_of(path)
                is_there = local is None or try_directory(pafs.LocalFileSystem(), local)
                if not is_there or not DeltaTable.is_deltatable(path, options):
                    path, options = directory, None
                    self._create_table(path, options)
                self._table = DeltaTable(path, storage_options=options)
            self._check_table(complete=self._context.complete)
            self._rehearse_commit()
            return self.row_check()

    def open(self, context: SinkContext) -> None:
        """Open or create the table; raise if it cannot take the rows."""
        self._fit(context)
        with self._opening_errors():
            self._is_new = not DeltaTable.is_deltatable(self._path, self._storage_options)
            if self._is_new:
                self._create_table(self._path, self._storage_options)
            self._table = DeltaTable(self._path, storage_options=self._storage_options)
        self._check_table(complete=context.complete)
        self._rehearse_commit()
        self._read_last_epoch()

    def _opening_errors(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that translates errors of the library while the table is opened."""
        return self._translating_errors(
            f"cannot open {self._shown_path}",
            "Check the path, the credentials and the types of the columns; for a table with "
            "features that deltalake cannot read, use another path.",
        )

    def _create_table(self, path: str, storage_options: dict[str, str] | None) -> None:
        """Create a table for the rows, unless there is one."""
        columns = Schema.from_arrow(self._schema)
        self._raise_problem(partition_problem(columns, self._partition_by))
        DeltaTable.create(
            path,
            schema=self._schema,
            mode="ignore",
            partition_by=list(self._partition_by) or None,
            storage_options=storage_options,
        )

    def _check_table(self, *, complete: bool) -> None:
        """Raise if the table cannot take the rows; `complete`: they replace all rows."""
        merges = bool(self._merge_keys) and not complete
        self._raise_problem(
            find_problem(self._table, self._schema, merges=merges, replaces=complete)
        )

    def _raise_problem(self, problem: TargetProblem | None) -> None:
        """Raise a problem of the table, if there is one."""
        if problem is not None:
            raise self._target_error(problem.what, problem.remedy)

    def _rehearse_commit(self) -> None:
        """Raise if deltalake cannot commit an epoch to a table such as this one."""
        nothing = point_without_history(-1, self._context.query_id)
        self._generation = ""

        def commit(copy: DeltaTable) -> None:
            """Commit an epoch without rows."""
            no_rows = pa.RecordBatchReader.from_batches(self._rows_schema, [])
            self._commit_rows(copy, no_rows, nothing, complete=self._context.complete)

        try:
            rehearse(self._table, commit)
        except OSError:  # of the temporary directory, which says nothing about the table
            return
        except Exception as error:  # noqa: BLE001 - the library also raises bare Exceptions
            self._raise_problem(missing_features(error_text(error)))

    def _read_last_epoch(self) -> None:
        """Read from the table the last epoch, and the ``appId`` generation for the next ones."""
        with self._translating_errors(
            f"cannot read the log of {self._shown_path}", "Check the path and the credentials."
        ):
            self._table.update_incremental()
            last = last_epoch_of(self._table, self._context.query_id, self._context.writer)
        self._last_epoch = last
        self._generation = "" if last is None else last.generation
        self._epoch_before = -1 if last is None else last.point.epoch
        self._seen_version = self._table.version()

    def _app_id(self, generation: str) -> str:
        """Return the ``appId`` of this sink's epochs in the table's log; see `_delta_app_id`."""
        return _delta_app_id(self._context.query_id, self._context.writer, generation)

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch that the table has, also after a RESTORE."""
        return None if self._last_epoch is None else self._last_epoch.point

    def cannot_roll_back(self) -> None:
        """Return ``None``: earlier versions can be restored until they are vacuumed."""

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Restore the table's version of the last epoch that the checkpoint has too; or raise.

        `min_epoch`: last epoch that must stay in the table.
        """
        with self._translating_errors(
            "cannot be rolled back", "Check the path and the credentials."
        ):
            version, left, stranger = version_to_restore(
                self._table,
                lambda point: is_shared(point, epochs),
                self._context.query_id,
                self._context.writer,
            )
        if stranger is not None:
            raise self._target_error(
                f"cannot be rolled back: version {stranger['version']} "
                f"({stranger.get('operation')}) was written by another writer, and would be "
                "undone too",
                "Delete the rows of later epochs by hand and start with "
                'on_divergence="new_writer"; or use another table.',
            )
        if not self._context.complete and left < min_epoch:
            raise self._rollback_error(left, min_epoch)
        if version is None or version < 0:
            raise self._target_error(
                "cannot be rolled back: its log does not show which versions this query wrote",
                "Restore it by hand (RESTORE TABLE ... TO VERSION AS OF ...), or use another "
                "table.",
            )
        with self._translating_errors(
            f"cannot be rolled back to version {version}",
            "Its files may have been vacuumed; restore the table from a copy, or use another "
            "table.",
        ):
            self._table.restore(version)
        self._read_last_epoch()

    def continue_after(self, point: HistoryPoint) -> None:
        """Commit `point` as the last epoch, without rows, under a new ``appId``."""
        self._generation = uuid.uuid4().hex[:8]
        with self._translating_errors("cannot be written", "Check the path and the credentials."):
            self._table.create_write_transaction(
                [],
                mode="append",
                schema=self._table.schema(),
                partition_by=list(self._table.metadata().partition_columns),
                commit_properties=self._commit_properties(point, first=True),
            )
        self._read_last_epoch()

    def deliver(self, output: EpochOutput) -> None:
        """Commit the epoch's rows with its number, unless the table has it; raise if that fails."""
        complete = is_complete_result(output, self._context)
        if output.num_rows == 0 and not complete:
            return
        files: list[WrittenFile] | None = None
        retries = CommitRetries(self._retry_policy)
        failures = 0  # without a commit of another writer
        version = self._table.version()
        while True:
            schema = self._rows_schema
            rows = _Rows(self._layout.rows(output, self._schema))
            try:
                self._table.update_incremental()
                version = self._table.version()
                retries.begin(version)
                if self._recorded_epoch() >= output.epoch:
                    return
                self._check_not_restored(output.epoch)
                self._check_table(complete=complete)
                if output.files() and not self._has_files(output):
                    return
                if output.files() and takes_plain_files(self._table):
                    files = files or [*output.files(), *self._write_remaining(rows, output.epoch)]
                    self._commit_files(files, output.point, complete=complete)
                else:
                    rows = _Rows(itertools.chain(self._rows_of_files(output), rows))
                    reader = pa.RecordBatchReader.from_batches(schema, rows)
                    self._commit_rows(self._table, reader, output.point, complete=complete)
            except SinkError:
                raise
            except Exception as error:  # noqa: BLE001  as above
                if rows.error is not None:
                    # The library has wrapped what went wrong on our side.
                    raise rows.error from None
                conflicts = isinstance(error, CommitFailedError)
                # A file that compaction has replaced, and removed while it was being read.
                is_gone = isinstance(error, DeltaError) and "not found" in str(error)
                rivals = (conflicts or is_gone) and self._is_newer_than(version)
                if conflicts or rivals:
                    failures = 0 if rivals else failures + 1
                    if failures < _UNRIVALLED_ATTEMPTS:
                        if retries.wait_after_conflict():
                            continue
                        raise self._conflict_error(output.epoch, retries) from None
                raise self._target_error(
                    f"epoch {output.epoch} cannot be committed to {self._shown_path}: "
                    f"{error_text(error)}",
                    "The table has either all of the epoch or none of it; fix the cause and "
                    "start the query again.",
                    epoch=output.epoch,
                ) from self._secrets.cause(error)
            return

    def _is_newer_than(self, version: int) -> bool:
        """Return whether other writers have committed to the table since its `version`."""
        with suppress(DeltaError):  # reported by the caller
            self._table.update_incremental()
        return bool(self._table.version() > version)

    def _recorded_epoch(self) -> int:
        """Return the sink's last epoch, from the table's log or as read before; -1 if none."""
        version = self._table.transaction_version(self._app_id(self._generation))
        return self._epoch_before if version is None else max(version, self._epoch_before)

    def _check_not_restored(self, epoch: int) -> None:
        """Raise if delivered epochs were removed from the table during this run."""
        context, last = self._context, self._last_epoch
        version = -1 if last is None else last.version
        if restored_since(
            self._table, self._seen_version, version, context.query_id, context.writer
        ):
            raise self._target_error(
                f"{self._shown_path} was restored to a version before the last epoch that was "
                "delivered to it in this run",
                "Restore it to its newest version; or start from a backup of the checkpoint from "
                "that time; or continue without the epochs in between, with "
                'on_divergence="new_writer".',
                epoch=epoch,
            )
        self._seen_version = self._table.version()

    def _write_remaining(self, rows: Iterable[pa.RecordBatch], epoch: int) -> Iterator[WrittenFile]:
        """Write the rows that are not in lanes' files to data files; yield each file."""
        writer = self._file_writer()
        for batch in join_small_batches(rows, rows=_REST_ROWS, size_bytes=_REST_BYTES):
            parts = partitioned(pa.Table.from_batches([batch]), writer.partition_by)
            yield from writer.write_files(parts, f"{epoch}-rest")

    def _has_files(self, output: EpochOutput) -> bool:
        """Return whether all files that lanes wrote for an epoch exist; raise if some are missing.

        If the table was removed and created again, the epoch is committed empty: ``False``.
        """
        filesystem, root = table_files(self._table.table_uri, self._storage_options)
        _, gone = files_there(filesystem, root, output.files())
        opening = self._opening_id if self._is_new else ""
        if gone and is_target_replaced(self._context.name, self._shown_path, output, gone, opening):
            no_rows = pa.RecordBatchReader.from_batches(self._rows_schema, [])
            self._commit_rows(self._table, no_rows, output.point, complete=False)
            return False
        if gone:
            raise self._target_error(
                f"epoch {output.epoch}: {len(gone)} of the files that lanes wrote no longer "
                f"exist, among them {gone[0]}",
                "Restore them; or remove the table to start with a new one.",
                epoch=output.epoch,
            )
        return True

    def _rows_of_files(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        """Yield the rows of lanes' files, for a table to which files can no longer be added."""
        filesystem, root = table_files(self._table.table_uri, self._storage_options)
        for file in output.files():
            yield from rows_of_file(filesystem, root, file, self._schema)

    def _commit_files(
        self, files: Sequence[WrittenFile], point: HistoryPoint, *, complete: bool
    ) -> None:
        """Commit existing data files as an epoch.

        `complete`: they replace all rows of the table.
        """
        self._table.create_write_transaction(
            [add_action(file) for file in files],
            mode="overwrite" if complete else "append",
            schema=self._table.schema(),
            partition_by=list(self._table.metadata().partition_columns),
            commit_properties=self._commit_properties(point),
        )

    def _commit_properties(self, point: HistoryPoint, *, first: bool = False) -> CommitProperties:
        """Return the properties of a commit that store its epoch.

        `first`: also store it under the first ``appId``, which shows that the sink wrote here.
        """
        transactions = [Transaction(self._app_id(self._generation), point.epoch)]
        if first:  # that the writer was here is asked of its first generation
            transactions.append(Transaction(self._app_id(""), point.epoch))
        return CommitProperties(
            custom_metadata={
                _KEY: point_text(point, self._context.writer, generation=self._generation)
            },
            app_transactions=transactions,
        )

    def _commit_rows(
        self,
        table: DeltaTable,
        reader: pa.RecordBatchReader,
        point: HistoryPoint,
        *,
        complete: bool,
    ) -> None:
        """Write and commit an epoch's rows; `complete`: they replace all rows of the table."""
        properties = self._commit_properties(point)
        if complete or not self._merge_keys:
            has_more_columns = len(table.schema().fields) > len(self._schema)
            write_deltalake(
                table,
                reader,
                mode="overwrite" if complete else "append",
                schema_mode="merge" if has_more_columns else None,  # which are null then
                commit_properties=properties,
            )
            return
        same_keys = " AND ".join(
            f"(target.{_quoted_name(key)} IS NOT DISTINCT FROM source.{_quoted_name(key)})"
            for key in self._merge_keys
        )
        if self._layout.is_history:
            reader = self._history_reader(table, reader)
        merger = table.merge(
            reader,
            predicate=same_keys,
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        )
        version, deletes = self._layout.version, self._context.kind != "rows"
        columns = {f"target.`{name}`": f"source.`{name}`" for name in self._schema.names}
        if self._layout.is_history or deletes:
            is_delete = f"source.`{CHANGE.name}` < 0"
            (
                merger.when_matched_delete(is_delete)
                .when_matched_update(columns)
                .when_not_matched_insert(columns, f"NOT {is_delete}")
                .execute()
            )
        elif version:
            is_newer = f"target.`{version}` IS NULL OR source.`{version}` >= target.`{version}`"
            merger.when_matched_update(columns, is_newer).when_not_matched_insert(columns).execute()
        else:
            merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def _history_reader(
        self, table: DeltaTable, reader: pa.RecordBatchReader
    ) -> pa.RecordBatchReader:
        """Return the rows of a history to write and to delete for an epoch's versions of rows."""
        layout, schema = self._layout, self._schema
        versions = reader.read_all()
        names = ", ".join(map(_quoted_name, schema.names))
        query = f"SELECT {names} FROM target{_range_of_keys(versions, layout.row_keys)}"  # noqa: S608
        former = schema.empty_table()
        if versions.num_rows:
            batches = QueryBuilder().register("target", table).execute(query)
            former = rows_of_versions(batches, versions, layout, schema)
        changed = changed_history(former, versions, layout, schema)
        return pa.RecordBatchReader.from_batches(changed.schema, changed.to_batches())


class _Rows:
    """Iterator over batches that remembers the error that it raised."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:
            self.error = error
            raise


def _range_of_keys(rows: pa.Table, keys: Sequence[str]) -> str:
    """Return an SQL condition that holds for all rows with the keys of `rows`, and few others."""
    conditions = []
    for key in keys:
        column = rows.column(key)
        bounds = pc.min_max(column).as_py()
        if pa.types.is_integer(column.type) and not column.null_count:
            conditions.append(f"{_quoted_name(key)} BETWEEN {bounds['min']} AND {bounds['max']}")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _quoted_name(name: str) -> str:
    """Return a column name quoted for Delta's SQL."""
    return '"' + name.replace('"', '""') + '"'


_KEY: Final = "godwit"
_PAGES: Final = (16, 256, 4096, None)
_MAINTENANCE: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END", "RESTORE"}
"""Operations that add no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEpoch:
    """An epoch recorded in a table."""

    # the epoch and its history; without a digest where an earlier version committed it
    point: HistoryPoint
    generation: str  # of the application that its version is under, or the next one's
    version: int  # of the table, at which it was committed; -1 if not known


def _delta_app_id(query_id: str, writer: str, generation: str = "") -> str:
    """Return the ``appId`` under which a sink's writer commits epochs to a Delta table.

    `generation`: suffix of a new id, as after a ``RESTORE``, since an id's version never goes back;
    empty: the first id.
    """
    return "-".join(["godwit", query_id, writer, *([generation] if generation else [])])


def _epoch_of_commit(commit: Mapping[str, Any], query_id: str, writer: str) -> TableEpoch | None:
    """Return the epoch that a writer stored in a commit's metadata; ``None`` if it did not."""
    own = read_point_text(commit.get(_KEY), query_id, writer)
    if own is None:
        return None
    point, fields = own
    return TableEpoch(
        point=point,
        generation=str(fields.get("generation", "")),
        version=int(commit["version"]),
    )


def _commits_back(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the commits that led to the table's content, newest first.

    A ``RESTORE`` is included; the commits that it undid are not.
    """
    newest, seen = table.version(), 0
    for page in _PAGES:
        history = table.history(page)
        for commit in history[seen:]:
            if commit["version"] > newest:
                continue
            yield commit
            newest = commit["version"] - 1
            if commit.get("operation") == "RESTORE":
                target = _restored_version(commit, table)
                if target is None:
                    return
                newest = target
        seen = len(history)
        if page is None or seen < page:
            return


def _restored_version(commit: Mapping[str, Any], table: DeltaTable) -> int | None:
    """Return the version that a ``RESTORE`` returned to; ``None`` if the log lacks it.

    A ``RESTORE`` by timestamp does not name its version. It used the modification times of log
    files, which are neither the times in the log nor kept by copies. So the version is found by
    content: it has the data files that the table had after the ``RESTORE``. Every version with
    these files has the same rows.
    """
    parameters = commit.get("operationParameters") or {}
    if parameters.get("version") is not None:
        return int(parameters["version"])
    restored = _files_at(table, int(commit["version"]))
    if restored is None:
        return None
    earlier = [c for c in table.history() if c["version"] < commit["version"]]
    by_time = _versions_near(earlier, _timestamp_ms(parameters))
    return next((version for version in by_time if _files_at(table, version) == restored), None)


def _timestamp_ms(parameters: Mapping[str, Any]) -> float:
    """Return the time in the parameters of a ``RESTORE``, in ms of Unix time; else infinity."""
    try:
        if parameters.get("datetime") is not None:
            return int(parameters["datetime"])
        return dt.datetime.fromisoformat(str(parameters["timestamp"])).timestamp() * 1000
    except (KeyError, ValueError):
        return math.inf


def _versions_near(commits: Sequence[Mapping[str, Any]], at_ms: float) -> list[int]:
    """Return the versions committed up to `at_ms`, newest first, then later ones, oldest first."""
    times_ms = {int(c["version"]): c.get("timestamp") or 0 for c in commits}
    latest = max((v for v, time_ms in times_ms.items() if time_ms <= at_ms), default=-1)
    versions = sorted(times_ms)
    return [v for v in reversed(versions) if v <= latest] + [v for v in versions if v > latest]


def _files_at(table: DeltaTable, version: int) -> frozenset[str] | None:
    """Return the data files of a table's version; ``None`` if its log is cleaned up."""
    options = table._storage_options  # noqa: SLF001  the table does not tell them otherwise
    try:
        return frozenset(DeltaTable(table.table_uri, version, options).file_uris())
    except DeltaError:
        return None


def last_epoch_of(table: DeltaTable, query_id: str, writer: str) -> TableEpoch | None:
    """Return a writer's last epoch in a table; epoch -1 if its rows are gone.

    Also -1 if a ``RESTORE`` went back further than the log, so that it is unknown: then a start is
    refused. ``None`` if the writer never wrote to the table.
    """
    recorded = table.transaction_version(_delta_app_id(query_id, writer))
    if recorded is None:
        return None
    restore = -1
    oldest: Mapping[str, Any] = {}
    for commit in _commits_back(table):
        if commit.get("operation") == "RESTORE":
            restore = max(restore, int(commit["version"]))
        epoch = _epoch_of_commit(commit, query_id, writer)
        if epoch is not None:
            if restore < 0:
                return epoch
            return TableEpoch(point=epoch.point, generation=f"r{restore}", version=epoch.version)
        oldest = commit
    log = table.history()
    # If the content goes back to the first commit of the log, the log has all that was restored.
    is_complete = log[-1:] == [oldest] and oldest["operation"] != "RESTORE"
    if restore < 0 or (is_complete and not any(_epoch_of_commit(c, query_id, writer) for c in log)):
        # By an earlier version, whose commits do not say so; or before the log begins.
        return TableEpoch(
            point=point_without_history(recorded, query_id), generation="", version=-1
        )
    return TableEpoch(
        point=point_without_history(-1, query_id), generation=f"r{restore}", version=-1
    )


def version_to_restore(
    table: DeltaTable, is_shared: Callable[[HistoryPoint], bool], query_id: str, writer: str
) -> tuple[int | None, int, Mapping[str, Any] | None]:
    """Return the newest version of a table that has only epochs of the checkpoint's history.

    `is_shared`: tests an epoch. Returns the version (``None`` if the log does not say), the
    writer's last epoch in it (-1 if it has none), and a commit of another writer that would be
    undone too.
    """
    version: int | None = None
    left = -1
    others: list[Mapping[str, Any]] = []
    undone: list[Mapping[str, Any]] = []
    for commit in _commits_back(table):
        epoch = _epoch_of_commit(commit, query_id, writer)
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


def restored_since(table: DeltaTable, seen: int, version: int, query_id: str, writer: str) -> bool:
    """Return whether a ``RESTORE`` has removed a writer's last epoch from a table.

    `seen`: version at the last check; the writer may have committed an epoch since. `version`: the
    version of the writer's last epoch at that time.
    """
    if table.version() <= seen:
        return False
    targets: list[int] = []
    for commit in table.history(table.version() - seen):
        epoch = _epoch_of_commit(commit, query_id, writer)
        if epoch is not None:
            version = epoch.version
            break
        if commit.get("operation") == "RESTORE":
            target = _restored_version(commit, table)
            targets.append(-1 if target is None else target)
    return any(target < version for target in targets)


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
    opening: str  # mark in the names of files that were written since the sink was opened
    # columns of the rows as the table keeps them, and which of them are not in files
    schema: pa.Schema
    partition_by: tuple[str, ...]
    lane_bytes: int  # as the sink was given it

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write a data file for each partition of a lane's rows; `place`: the lane's number.

        ``None`` if the rows are too few for files, or the table was replaced.
        """
        parts = partitions_worth_files(rows, self.schema, self.partition_by, self.lane_bytes)
        if parts is None:
            return None
        filesystem, root = table_files(self.uri, self.storage_options)
        if not exists(filesystem, f"{root}/{self.marker}"):
            return None
        return self.write_files(parts, f"{epoch}-{place}")

    def write_files(self, parts: Iterable[Partition], name: str) -> Sequence[WrittenFile]:
        """Write a data file for each partition, named ``godwit-<name>-...``."""
        filesystem, root = table_files(self.uri, self.storage_options)
        attempt = f"{self.opening}-{uuid.uuid4().hex}"
        written = []
        try:
            for number, part in enumerate(parts):
                path = f"godwit-{name}-{attempt}-{number:05d}.zstd.parquet"
                file = write_file(
                    filesystem,
                    root,
                    path,
                    part.rows,
                    partition=part,
                    compression="zstd",
                    delivered=path,
                    facts={"statistics": _column_statistics(part.rows)},
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
                remedy="Check the path, its permissions and free space, and start the query again.",
                sink=self.sink,
                path=self.target,
            ) from self.secrets.cause(error)
        return written


def write_marker(uri: str, storage_options: Mapping[str, str] | None, marker: str) -> None:
    """Write the file `marker`, by which lanes identify the table, to the table's directory."""
    filesystem, root = table_files(uri, storage_options)
    filesystem.create_dir(f"{root}/{Path(marker).parent}", recursive=True)
    with filesystem.open_output_stream(f"{root}/{marker}") as stream:
        stream.write(b"Lanes of the query write data files where they see this.\n")


def add_action(file: WrittenFile) -> AddAction:
    """Return the action that adds a data file in the table's log."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows, **file.facts.get("statistics", {})}),
    )


def _column_statistics(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Return null counts, minima and maxima of columns, as Delta's log has them."""
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
        low, high = (_statistics_value(extremes[end].as_py()) for end in ("min", "max"))
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls}


def _is_plain(dtype: pa.DataType) -> bool:
    """Return whether Delta's statistics can hold values of a type."""
    return bool(pa.types.is_integer(dtype) or pa.types.is_date32(dtype) or is_text(dtype))


def _statistics_value(value: Any) -> Any:
    """Return a minimum or maximum as in Delta's statistics; ``None`` if it is too long."""
    if isinstance(value, str):
        return value if len(value.encode()) <= _LONGEST_TEXT else None
    return value if value is None or isinstance(value, int) else value.isoformat()
