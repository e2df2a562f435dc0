"""Results in a Delta Lake table, exactly once, by Delta's own application transactions.

Every commit to a Delta table may say "application a has written its version v" in the same log
entry as the rows.  The invariant: the table's version for our application is n if and only if it
holds the rows of every epoch up to n.  Two deliveries of one epoch at the same time conflict in
the log, and the loser looks again.
"""

from __future__ import annotations

import functools
import itertools
import os
import uuid
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.carried_files import rows_of_file
from godwit.sinks.continuity import is_shared, too_few_left
from godwit.sinks.delta_table import (
    DeltaLaneWriter,
    add_action,
    as_delta_stores,
    check_table,
    error_text,
    held_epoch,
    mark,
    metadata_of,
    restored_since,
    table_files,
    takes_plain_files,
    version_to_restore,
)
from godwit.sinks.file_systems import destination_of
from godwit.sinks.parquet_files import (
    LANE_BYTES,
    MAX_PARTITIONS,
    file_row_check,
    files_there,
    tell_what_went,
    went_with_target,
)
from godwit.sinks.rows import (
    check_mode,
    checked_rejects,
    column_names,
    fit,
    gather,
    is_whole,
    require_columns,
    storable_schema,
    upsert_keys,
    with_plain_types,
    without_replaced_rows,
)
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.plan.staging import LaneWriter, RowCheck
    from godwit.sinks.committed import CommittedEpochs

__all__ = ["DeltaSink"]

_ATTEMPTS: Final = 30  # of several writers, one wins each time
_REST_ROWS: Final = 2_000_000
_REST_BYTES: Final = 128 * 2**20


class DeltaSink(Sink):
    """Writes each epoch to a Delta Lake table in one commit.

    Parameters and guarantee are those of `godwit.sinks.delta`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "upsert"] = "append",
        keys: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        max_partitions: int = MAX_PARTITIONS,
        lane_bytes: int = LANE_BYTES,
        rejects: Sink | None = None,
    ) -> None:
        check_mode("Delta sink", mode, keys)
        self._path = os.fspath(path)
        self._mode = mode
        self._keys = keys
        self._partition_by = column_names(partition_by)
        self._storage_options = dict(storage_options) if storage_options else None
        self._secrets = Secrets.of_uri(self._path) | Secrets.of_values(storage_options or {})
        self._shown_path = shown_uri(self._path)
        self._max_partitions, self._lane_bytes = max_partitions, lane_bytes
        self._rejects = checked_rejects(rejects)

    def __repr__(self) -> str:
        return f"gw.sinks.delta({self._shown_path!r}, mode={self._mode!r})"

    @property
    def rejects(self) -> Sink | None:
        """Sink of the rows that the table cannot take."""
        return self._rejects

    def row_check(self) -> RowCheck:
        """Return what finds rows that the table cannot take."""
        fields = self._table.schema().fields
        never_null = {field.name for field in fields if not field.nullable}
        partition_by = tuple(self._table.metadata().partition_columns)
        return file_row_check(self._context, partition_by, self._max_partitions, never_null)

    @functools.cached_property
    def destination(self) -> str:
        """The table, wherever the process goes after it was first asked."""
        return destination_of(self._path)

    @property
    def target(self) -> str | None:
        """Writer that lanes use; none if rows are merged."""
        if self._merge_keys:
            return None
        uri = str(self._table.table_uri)
        return unquote(urlsplit(uri).path) if uri.startswith("file:") else self.destination

    def lane_writer(self) -> LaneWriter | None:
        """Return what writes data files in lanes, if rows are added and nothing else is asked.

        Raises `SinkError` if the table cannot be written.
        """
        if self._merge_keys or not takes_plain_files(self._table):
            return None
        try:
            mark(self._table.table_uri, self._storage_options, self._marker)
        except OSError as error:
            raise self._error(
                f"cannot write to {self._shown_path}: {error_text(error)}",
                "Check the path, its permissions and the credentials.",
            ) from self._secrets.cause(error)
        return self._file_writer()

    def _file_writer(self) -> DeltaLaneWriter:
        return DeltaLaneWriter(
            sink=self._context.name,
            target=self.target or "",
            uri=self._table.table_uri,
            storage_options=self._storage_options,
            secrets=self._secrets,
            marker=self._marker,
            opening=self._opening,
            schema=self._schema,
            partition_by=tuple(self._table.metadata().partition_columns),
            lane_bytes=self._lane_bytes,
        )

    @property
    def _marker(self) -> str:
        return f"_godwit/{self._context.query_id}-{self._context.writer}"

    def open(self, context: SinkContext) -> None:
        """Create the table, or check that the rows fit it.

        Raises `SinkError` if the table cannot be opened or its columns are others.
        """
        self._context = context
        self.__dict__.pop("destination", None)  # of another run, started elsewhere
        self._opening = uuid.uuid4().hex[:12]
        self._merge_keys = upsert_keys(context, self._keys) if self._mode == "upsert" else ()
        for key in self._merge_keys:
            if pa.types.is_nested(context.schema.field(key).type):
                raise self._error(
                    f"column {key!r} of type {context.schema.field(key).type} cannot be a key",
                    "Identify rows by columns of primitive types (keys=[...]).",
                )
            if "`" in key:
                raise self._error(
                    f"column {key!r} cannot be a key, since it has a backtick in its name, which "
                    "deltalake's merge cannot read",
                    "Rename the column before the sink.",
                )
        require_columns(context, self._partition_by, "partition_by")
        self._schema = with_plain_types(storable_schema(context.schema), as_delta_stores)
        try:
            self._is_new = not DeltaTable.is_deltatable(self._path, self._storage_options)
            if self._is_new:
                DeltaTable.create(
                    self._path,
                    schema=self._schema,
                    mode="ignore",
                    partition_by=list(self._partition_by) or None,
                    storage_options=self._storage_options,
                )
            self._table = DeltaTable(self._path, storage_options=self._storage_options)
        except Exception as error:  # noqa: BLE001  the library also raises bare Exceptions
            raise self._error(
                f"cannot open {self._shown_path}: {error_text(error)}",
                "Check the path, the credentials and the types of the columns.",
            ) from self._secrets.cause(error)
        check_table(self._table, self._schema, self._error)
        self._look()

    def _look(self) -> None:
        """Find the last epoch that the table holds, and under which application to go on."""
        try:
            self._table.update_incremental()
            self._held = held_epoch(
                self._table, self._context.query_id, self._context.writer, self._first_app_id
            )
        except Exception as error:  # noqa: BLE001  as above
            raise self._error(
                f"cannot read the log of {self._shown_path}: {error_text(error)}",
                "Check the path and the credentials.",
            ) from self._secrets.cause(error)
        recorded = self._held
        self._generation = "" if recorded is None else recorded.generation
        self._base = -1 if recorded is None else recorded.point.epoch
        self._seen = self._table.version()

    @property
    def _first_app_id(self) -> str:
        return f"godwit-{self._context.query_id}-{self._context.writer}"

    @property
    def _app_id(self) -> str:
        return (
            f"{self._first_app_id}-{self._generation}" if self._generation else self._first_app_id
        )

    @property
    def keeps_epochs(self) -> bool:
        """True: every commit says which epoch of which history it is."""
        return True

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch that the table holds, whatever it was restored from."""
        return None if self._held is None else self._held.point

    def cannot_roll_back(self) -> None:
        """Versions of a table are kept, as long as nobody vacuums them."""

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Restore the table to the version of the last epoch that is of a history.

        Raises `SinkError` if others have written since, or the files of that version are gone.
        """
        version = None
        try:
            version, left, stranger = version_to_restore(
                self._table,
                lambda point: is_shared(point, epochs),
                self._context.query_id,
                self._context.writer,
            )
            too_few = not self._context.complete and left < min_epoch
            if version is not None and version >= 0 and stranger is None and not too_few:
                self._table.restore(version)
        except Exception as error:  # noqa: BLE001  as above
            raise self._error(
                f"cannot be rolled back to version {version}: {error_text(error)}",
                "Its files may have been vacuumed; restore the table from a copy, or use another.",
            ) from self._secrets.cause(error)
        if stranger is not None:
            raise self._error(
                f"cannot be rolled back: version {stranger['version']} "
                f"({stranger.get('operation')}) is somebody else's, and would be undone too",
                "Delete the rows of later epochs by hand and start with "
                'on_divergence="new_writer"; or use another table.',
            )
        if too_few:
            raise self._error(*too_few_left(left, min_epoch))
        if version is None or version < 0:
            raise self._error(
                "cannot be rolled back: its log does not say which versions are of this query",
                "Restore it by hand, RESTORE TABLE ... TO VERSION AS OF ..., or use another table.",
            )
        self._look()

    def continue_after(self, point: HistoryPoint) -> None:
        """Take epochs for delivered, by a commit that says so and adds no rows."""
        self._generation = uuid.uuid4().hex[:8]
        try:
            self._table.create_write_transaction(
                [],
                mode="append",
                schema=Schema.from_arrow(self._schema),
                partition_by=list(self._table.metadata().partition_columns),
                commit_properties=self._properties(point, first=True),
            )
        except Exception as error:  # noqa: BLE001  as above
            raise self._error(
                f"cannot be written: {error_text(error)}", "Check the path and the credentials."
            ) from self._secrets.cause(error)
        self._look()

    def deliver(self, output: EpochOutput) -> None:
        """Commit the epoch's rows with its number, unless the table has it.

        Raises `SinkError` if the commit fails, or others commit in between time and again.
        """
        if output.num_rows == 0 and not is_whole(output, self._context):
            return
        files: list[WrittenFile] | None = None
        for attempt in range(_ATTEMPTS):
            rows = _Rows(self._rows(output))
            try:
                self._table.update_incremental()
                if self._recorded() >= output.epoch:
                    return
                self._insist_on_what_was_delivered(output.epoch)
                if output.files():
                    # Files that are added are not looked at by the library.
                    check_table(self._table, self._schema, self._error)
                    if not self._has_files(output):
                        return
                if output.files() and takes_plain_files(self._table):
                    files = files or [*output.files(), *self._write_rest(rows, output.epoch)]
                    self._add(files, output.point, complete=is_whole(output, self._context))
                else:
                    rows = _Rows(itertools.chain(self._rows_of_files(output), rows))
                    reader = pa.RecordBatchReader.from_batches(self._schema, rows)
                    self._commit(reader, output.point, complete=is_whole(output, self._context))
            except SinkError:
                raise
            except Exception as error:  # noqa: BLE001  as above
                if rows.error is not None:
                    # The library has wrapped what went wrong on our side.
                    raise rows.error from None
                if isinstance(error, CommitFailedError) and attempt < _ATTEMPTS - 1:
                    continue
                raise self._error(
                    f"epoch {output.epoch} cannot be committed to {self._shown_path}: "
                    f"{error_text(error)}",
                    "It is in the table whole or not at all; mend the cause and start the query "
                    "again.",
                    epoch=output.epoch,
                ) from self._secrets.cause(error)
            return

    def _recorded(self) -> int:
        version = self._table.transaction_version(self._app_id)
        return self._base if version is None else max(version, self._base)

    def _insist_on_what_was_delivered(self, epoch: int) -> None:
        """Refuse to go on after epochs that somebody has taken from the table in this run."""
        version, context = -1 if self._held is None else self._held.version, self._context
        if restored_since(self._table, self._seen, version, context.query_id, context.writer):
            raise self._error(
                f"{self._shown_path} was restored to a version before the last epoch that was "
                "delivered to it in this run",
                "Restore it to its newest version; or start from a backup of the checkpoint that "
                'is as old; or go on without the epochs in between, on_divergence="new_writer".',
                epoch=epoch,
            )
        self._seen = self._table.version()

    def _rows(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        if not self._merge_keys:
            return gather(fit(output, self._schema, self._context.name))
        # A merge refuses to change a row twice, and inserts a new one as often as it comes.
        return gather(
            without_replaced_rows(output, self._schema, self._merge_keys, self._context.name)
        )

    def _write_rest(self, rows: Iterable[pa.RecordBatch], epoch: int) -> Iterator[WrittenFile]:
        """Write what lanes left to the driver, to be added with their files."""
        for batch in gather(rows, rows=_REST_ROWS, size_bytes=_REST_BYTES):
            table = pa.Table.from_batches([batch])
            yield from self._file_writer().write_files(table, f"{epoch}-rest")

    def _has_files(self, output: EpochOutput) -> bool:
        """Return whether the lanes' files are there; false if they went with a whole table."""
        filesystem, root = table_files(self._table.table_uri, self._storage_options)
        _, gone = files_there(filesystem, root, output.files())
        if gone and self._is_new and went_with_target(gone, self._opening):
            tell_what_went(self._context.name, self._shown_path, output)
            self._commit(
                pa.RecordBatchReader.from_batches(self._schema, []), output.point, complete=False
            )
            return False
        if gone:
            raise self._error(
                f"epoch {output.epoch}: {len(gone)} of the files that lanes wrote are gone, among "
                f"them {gone[0]}",
                "Restore them; or remove the table to begin it anew.",
                epoch=output.epoch,
            )
        return True

    def _rows_of_files(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        """Read what lanes wrote before the table asked for more than files."""
        filesystem, root = table_files(self._table.table_uri, self._storage_options)
        for file in output.files():
            yield from rows_of_file(filesystem, root, file, self._schema)

    def _add(self, files: Sequence[WrittenFile], point: HistoryPoint, *, complete: bool) -> None:
        self._table.create_write_transaction(
            [add_action(file) for file in files],
            mode="overwrite" if complete else "append",
            schema=Schema.from_arrow(self._schema),
            partition_by=list(self._table.metadata().partition_columns),
            commit_properties=self._properties(point),
        )

    def _properties(self, point: HistoryPoint, *, first: bool = False) -> CommitProperties:
        transactions = [Transaction(self._app_id, point.epoch)]
        if first:  # that the writer was here is asked of its first generation
            transactions.append(Transaction(self._first_app_id, point.epoch))
        return CommitProperties(
            custom_metadata=metadata_of(point, self._context.writer, self._generation),
            app_transactions=transactions,
        )

    def _commit(self, reader: pa.RecordBatchReader, point: HistoryPoint, *, complete: bool) -> None:
        properties = self._properties(point)
        if complete or not self._merge_keys:
            write_deltalake(
                self._table,
                reader,
                mode="overwrite" if complete else "append",
                commit_properties=properties,
            )
            return
        same_keys = " AND ".join(
            f"(target.{_quoted(key)} IS NOT DISTINCT FROM source.{_quoted(key)})"
            for key in self._merge_keys
        )
        merger = self._table.merge(
            reader,
            predicate=same_keys,
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def _error(self, what: str, remedy: str, **context: Any) -> SinkError:
        return SinkError(
            f"Delta sink {self._context.name!r}: {self._secrets.hide(what)}.",
            remedy=remedy,
            sink=self._context.name,
            path=self._shown_path,
            **context,
        )


class _Rows:
    """An iterator of batches that remembers its own failure."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:
            self.error = error
            raise


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
