"""Results in an Apache Iceberg table, exactly once, by the properties of its snapshots.

A commit to an Iceberg table adds a snapshot, whose summary may have fields beyond the format's.
Invariant: the newest snapshot of this sink among the ancestors of the current snapshot names the
last epoch whose rows are in the table.  A table that is rolled back has other ancestors, so the
lost epochs are known from the table.  Snapshots expire; a property of the table, set in the same
commit, repeats the epoch of the newest one, and is read only if ancestors are missing.

**Two drivers.**  A catalog accepts a commit only on the snapshot that it was made for.  The library
repeats a refused commit on the newer snapshot without a look at it.  `_EpochTable` looks, and does
not repeat the commit if the newer snapshot has the epoch, or if rows depend on the table's, as in
upserts, which are then computed again.

**Upserts** are copy on write, by the driver: the rows within the range of the epoch's keys are
read, rows of the same keys are left out, and the rest is written again with the epoch's rows.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NotInstalledError, ValidationException
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from godwit.columns.signed import CHANGE
from godwit.connect.files.parquet_files import file_row_check, require_types
from godwit.connect.iceberg.files import (
    ReplacedFiles,
    all_files,
    change_of_files,
    data_files_of,
    delete_files,
    try_to_write,
    unreadable_files,
)
from godwit.connect.iceberg.maintenance import maintain_table
from godwit.connect.iceberg.rows import place_of_table
from godwit.model.locations import local_path
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.file_systems import try_directory
from godwit.sinks.rows import (
    is_complete_result,
    storable_schema,
    with_plain_types,
)
from godwit.sinks.sink import MAX_PARTITIONS, Maintained
from godwit.sinks.target_sink import (
    CommitRetries,
    TargetSink,
    is_shared,
    point_text,
    point_without_history,
    read_point_text,
)
from godwit.sinks.writing import Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Maintenance, Sink, SinkContext

_Created = TypeVar("_Created")

_PROPERTY: Final = "godwit"
_MAX_FORMAT_VERSION: Final = 2  # that pyiceberg writes
_CREATIONS: Final = 5  # tries: a catalog, a namespace and a table may each be created by others
_MAX_REPETITIONS: Final = 2**31 - 1  # those are bounded by time


class IcebergSink(TargetSink):
    """Writes each epoch to an Iceberg table in one commit (see `godwit.sinks.iceberg`)."""

    failures = (Exception,)  # of catalogs, stores and the library, which share no base
    takes_other_writers = True
    deletes = True

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        mode: Literal["append", "upsert", "changes"],
        keys: str | Sequence[str] | None,
        order_by: str | None,
        rename: Mapping[str, str] | None,
        rejects: Sink | None,
        maintain: Maintenance | None = None,
    ) -> None:
        self._writing = Writing(mode=mode, keys=keys, order_by=order_by, rename=rename)
        self._writing.check("Iceberg sink", ("append", "upsert", "changes"))
        self._table_name = table
        self._properties = dict(catalog) if isinstance(catalog, Mapping) else {}
        named = catalog if isinstance(catalog, str) else self._properties.pop("name", "default")
        self._catalog_name = named
        secrets = Secrets.of_values(self._properties)
        for value in self._properties.values():
            secrets |= Secrets.of_uri(str(value))
        super().__init__("Iceberg", secrets=secrets, rejects=rejects, table=table)
        self._maintenance = maintain

    def __repr__(self) -> str:
        return f"gw.sinks.iceberg({self._table_name!r}, mode={self._writing.mode!r})"

    @property
    def destination(self) -> str:
        """Name and URI of the catalog, without secrets, and name of the table."""
        uri = shown_uri(str(self._properties.get("uri", "")))
        return f"iceberg:{self._catalog_name}:{uri}:{self._table_name}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The table, after its catalog."""
        return (f"iceberg://{self._catalog_name}/{self._table_name}",)

    @property
    def place(self) -> str:
        """Text that identifies the table, independent of the catalog's name."""
        return place_of_table(self._properties, self._catalog_name, self._table_name)

    @property
    def maintenance(self) -> Maintenance | None:
        """The policy that the user set."""
        return self._maintenance

    def maintain(self) -> Maintained:
        """Compact the table and expire its snapshots, as the policy says."""
        if self._maintenance is None:
            return Maintained()
        with self._translating_errors("cannot be maintained", "It will be retried."):
            catalog = load_catalog(self._catalog_name, **self._properties)
            with contextlib.closing(catalog):
                return maintain_table(
                    catalog.load_table(self._table_name),
                    self._maintenance,
                    lambda table, check: _EpochTable(
                        table, check, CommitRetries(self._retry_policy)
                    ),
                )

    def row_check(self) -> RowCheck:
        """Return the check for rows that the table's columns or Parquet cannot hold."""
        never_null = {field.name for field in self._schema if not field.nullable}
        check = file_row_check(self._context, (), MAX_PARTITIONS, never_null)
        return self._layout.check(check)

    def _fit(self, context: SinkContext) -> None:
        """Set the columns of the table; raise if its rows cannot be identified."""
        context = self._set_layout(context)
        self._merge_keys = self._layout.keys
        self._own_schema = with_plain_types(storable_schema(context.schema), as_iceberg_stores)
        require_types(
            context, self._own_schema, "an Iceberg table", self._target_error, iceberg_schema
        )

    def _try_target(self) -> RowCheck:
        """Check the table, or whether its columns can be those of a table if it is absent."""
        with contextlib.ExitStack() as closing:
            with self._opening_errors():
                trial = closing.enter_context(_trial_properties(self._properties))
                self._catalog: Catalog = _at_once_with_others(
                    lambda: load_catalog(self._catalog_name, **trial)
                )
                closing.callback(self._catalog.close)
                if not self._catalog.table_exists(self._table_name):
                    warehouse = str(self._properties.get("warehouse", ""))
                    if warehouse and (local := local_path(warehouse)) is not None:
                        try_directory(LocalFileSystem(), local)
                    self._schema = self._own_schema
                    return self.row_check()
                table = self._catalog.load_table(self._table_name)
            self._check_table(table)
            return self.row_check()

    def _opening_errors(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that translates errors of the catalog while the table is opened."""
        return self._translating_errors(
            "cannot be opened",
            "Check the catalog's properties (catalog=...), the name of the table, credentials, and "
            "the types of the columns.",
        )

    def open(self, context: SinkContext) -> None:
        """Load or create the table; raise if it cannot take the rows."""
        self._fit(context)
        with self._opening_errors():
            table = _at_once_with_others(self._load_or_create)
        self._check_table(table)
        self._last_epoch = self._last_epoch_in(table.metadata)

    def _check_table(self, table: Table) -> None:
        """Raise if the table cannot take the rows."""
        self._check_format(table)
        self._schema = self._fit_columns(table, complete=self._context.complete)
        self._check_files(table)

    def _check_format(self, table: Table) -> None:
        """Raise if pyiceberg cannot write tables like this one."""
        version = table.metadata.format_version
        if version == 1:  # whose snapshots have no numbers
            raise self._target_error(
                "the table is of format version 1, in which a roll-back could not be detected",
                "Upgrade it: ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2').",
            )
        if version > _MAX_FORMAT_VERSION:
            raise self._target_error(
                f"the table is of format version {version}, which pyiceberg can read but not write",
                "Use a table of format version 2. A table cannot be downgraded: create another "
                "one, with TBLPROPERTIES ('format-version' = '2'), and copy the rows.",
            )
        properties = table.properties
        file_format = properties.get("write.format.default", "parquet").lower()
        if file_format != "parquet":
            raise self._target_error(
                f"the format of the table's data files is {file_format.upper()}, which pyiceberg "
                "cannot write",
                "ALTER TABLE ... SET TBLPROPERTIES ('write.format.default' = 'parquet'). "
                "Existing files in other formats are no problem if epochs are appended.",
            )
        if "encryption.key-id" in properties:
            raise self._target_error(
                "the table is encrypted, but pyiceberg would write unencrypted files",
                "Write to a table without encryption.key-id.",
            )

    def _check_files(self, table: Table) -> None:
        """Raise if rows cannot be written in the table's format, or its rows cannot be read."""
        with self._translating_errors(
            f"pyiceberg cannot write rows in the format of the table ({_shown_format(table)})",
            "Check the credentials, the table's partitions and its properties (write.*).",
        ):
            if self._merge_keys and (what := unreadable_files(table)) is not None:
                raise self._target_error(
                    f"the table {what}, which pyiceberg cannot read, or not completely, so rows "
                    "with the keys of an epoch cannot be replaced",
                    "Compact the table with the engine that wrote them (CALL "
                    "system.rewrite_data_files, with rewrite-all), or append epochs to it.",
                )
            try:
                try_to_write(table, self._schema, self._own_schema.names)
            except NotInstalledError as error:
                raise self._target_error(
                    f"the table's partitions need a package that is not installed: {error}",
                    "Run pip install 'godwit-streams[iceberg]'",
                ) from error

    def _load_or_create(self) -> Table:
        """Load the table; create the catalog's tables, the namespace and the table if absent."""
        self._catalog = load_catalog(self._catalog_name, **self._properties)
        if not self._catalog.table_exists(self._table_name):
            namespace, _, _ = self._table_name.rpartition(".")
            if namespace:
                self._catalog.create_namespace_if_not_exists(namespace)
            self._catalog.create_table_if_not_exists(self._table_name, self._own_schema)
        return self._catalog.load_table(self._table_name)

    def _fit_columns(self, table: Table, *, complete: bool) -> pa.Schema:
        """Return the table's columns, with the types of the rows; raise if they differ.

        Further optional columns are null in new rows. Upserts would lose their values in rows that
        they replace, so a table of upserts has none. `complete`: all rows are replaced.
        """
        schema, existing = self._own_schema, table.schema().as_arrow()
        replaces_rows = bool(self._merge_keys) and not complete
        differences = [
            f"{name} ({_type_name(schema, name)} in the rows, {_type_name(existing, name)} in the "
            "table)"
            for name in sorted({*schema.names, *existing.names})
            if _common_type_of(schema, name) != _common_type_of(existing, name)
            and (replaces_rows or name in schema.names or not existing.field(name).nullable)
        ]
        if differences:
            raise self._target_error(
                f"the table has other columns: {', '.join(differences)}",
                "Use another table, or cast and rename the columns before the sink.",
            )
        return pa.schema(
            [
                schema.field(field.name).with_nullable(field.nullable)
                if field.name in schema.names
                else field
                for field in existing
            ]
        )

    def _last_epoch_in(self, metadata: TableMetadata) -> HistoryPoint | None:
        """Return the last epoch that the table has from this sink; ``None`` if it has none."""
        return last_epoch_of(metadata, self._context.query_id, self._context.writer)

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch that the table has from this sink, also after a roll-back."""
        return self._last_epoch

    def cannot_roll_back(self) -> None:
        """Return ``None``: earlier snapshots can be returned to until they expire."""

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Roll back to the snapshot of the last epoch that the checkpoint has too; or raise.

        `min_epoch`: last epoch that must stay in the table.
        """
        with self._translating_errors(
            "cannot be rolled back", "Check the catalog and the credentials."
        ):
            table = self._catalog.load_table(self._table_name)
        target, last_epoch = self._snapshot_to_keep(
            table.metadata, lambda point: is_shared(point, epochs)
        )
        if not self._context.complete and last_epoch < min_epoch:
            raise self._rollback_error(last_epoch, min_epoch)
        with self._translating_errors(
            "cannot be rolled back", "Check the catalog and the credentials."
        ):
            if target is not None:
                table.manage_snapshots().rollback_to_snapshot(target.snapshot_id).commit()
            else:  # there was nothing before; a table cannot return to having no snapshot
                no_epoch = point_without_history(-1, self._context.query_id)
                self._commit_rows(table, self._schema.empty_table(), no_epoch, complete=True)
            self._last_epoch = self._last_epoch_in(
                self._catalog.load_table(self._table_name).metadata
            )

    def _snapshot_to_keep(
        self, metadata: TableMetadata, is_kept: Callable[[HistoryPoint], bool]
    ) -> tuple[Snapshot | None, int]:
        """Return the newest snapshot whose epochs are all kept, and its last epoch, or raise.

        `is_kept`: tests an epoch. The snapshot is ``None`` if the table had none before the
        others.
        """
        oldest: Snapshot | None = None  # of ours that are to be undone
        others: list[Snapshot] = []
        undone: list[Snapshot] = []
        keep, left = None, -1
        for snapshot in _existing_ancestors(metadata):
            point = _epoch_of_snapshot(snapshot, self._context.query_id, self._context.writer)
            if point is None:
                if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
                    others.append(snapshot)  # it may have added rows
                continue
            undone, others = [*undone, *others], []
            if is_kept(point):
                keep, left = snapshot, point.epoch
                break
            oldest = snapshot
        if undone:
            raise self._target_error(
                f"cannot be rolled back: snapshot {undone[-1].snapshot_id} was written by "
                "another writer, and would be undone too",
                'Delete the rows of later epochs by hand and start with on_divergence="new_writer"'
                "; or use another table.",
            )
        if keep is None and oldest is not None and oldest.parent_snapshot_id is not None:
            keep = metadata.snapshot_by_id(oldest.parent_snapshot_id)
        if keep is None and (oldest is None or not _is_first(oldest)):
            raise self._target_error(
                "cannot be rolled back: the snapshots of the epochs to return to have expired",
                "Restore the table from a copy, or use another.",
            )
        return keep, left

    def continue_after(self, point: HistoryPoint) -> None:
        """Commit a snapshot without rows that records `point` as the sink's last epoch."""
        with self._translating_errors(
            "cannot be written", "Check the catalog and the credentials."
        ):
            table = self._catalog.load_table(self._table_name)
            nothing = self._schema.empty_table()
            self._commit_rows(table, nothing, point, complete=False)

    def deliver(self, output: EpochOutput) -> None:
        """Commit the epoch's rows with its number, unless the table has it."""
        complete = is_complete_result(output, self._context)
        if output.num_rows == 0 and not complete:
            return
        with self._translating_errors(
            f"epoch {output.epoch} cannot be committed",
            "The table has either all of the epoch or none of it; fix the cause and start the "
            "query again.",
            epoch=output.epoch,
        ):
            retries = CommitRetries(self._retry_policy)
            while True:
                table = self._catalog.load_table(self._table_name)
                retries.begin(table.last_sequence_number, _last_writer(table.metadata))
                if self._has_epoch(table.metadata, output.epoch):
                    return
                self._schema = self._fit_columns(table, complete=complete)
                batches = self._layout.rows(output, self._schema)
                rows = pa.Table.from_batches(batches, self._layout.rows_schema(self._schema))
                try:
                    self._commit_rows(table, rows, output.point, complete=complete, retries=retries)
                except _EpochIsThereError:
                    self._last_epoch = output.point
                except (CommitFailedException, ValidationException) as error:
                    if isinstance(error, _NoTimeLeftError) or not retries.wait_after_conflict():
                        raise self._conflict_error(output.epoch, retries) from error
                    continue
                return

    def _has_epoch(self, metadata: TableMetadata, epoch: int) -> bool:
        """Return whether the table has an epoch; raise if the table lost epochs in this run."""
        last = self._last_epoch_in(metadata)
        if self._last_epoch is not None and (last is None or last.epoch < self._last_epoch.epoch):
            raise self._target_error(
                "was rolled back to a snapshot before the last epoch that was delivered to it in "
                "this run",
                "Return to its newest snapshot; or start from a backup of the checkpoint from "
                "that time; or continue without the epochs in between, with "
                'on_divergence="new_writer".',
                epoch=epoch,
            )
        return last is not None and last.epoch >= epoch

    def _commit_rows(
        self,
        table: Table,
        rows: pa.Table,
        point: HistoryPoint,
        *,
        complete: bool,
        retries: CommitRetries | None = None,
    ) -> None:
        """Write rows and commit them with their epoch; `complete`: they replace all rows.

        `retries`: attempts to deliver the epoch, which another driver may do meanwhile, and which
        raises `_EpochIsThereError` then; ``None``: it is not a delivery.
        """
        query, writer = self._context.query_id, self._context.writer
        sequence = table.metadata.next_sequence_number()  # or more, if repeated
        text = point_text(point, writer, sequence=sequence)
        metadata_before = table.metadata
        replaced: ReplacedFiles | None = None
        if self._merge_keys and rows.num_rows and not complete:
            replaced = ReplacedFiles(table, rows, self._merge_keys)
            if self._layout.version:
                rows = replaced.without_older(table, rows, self._layout.version)
                replaced = ReplacedFiles(table, rows, self._merge_keys) if rows.num_rows else None
            kept_rows = [
                part.cast(self._schema) for part in (replaced.rows_that_stay if replaced else ())
            ]
            rows = pa.concat_tables([*kept_rows, self._without_deletes(rows)])
        else:
            rows = self._without_deletes(rows)

        def check_repetition(refreshed: Table) -> None:
            """Raise if a commit must not be repeated unchanged on a newer version of the table."""
            metadata = refreshed.metadata
            last = self._last_epoch_in(metadata)
            if retries is not None and last is not None and last.epoch >= point.epoch:
                raise _EpochIsThereError("The epoch is already in the table.")
            if (
                metadata.current_schema_id != metadata_before.current_schema_id
                or metadata.default_spec_id != metadata_before.default_spec_id
                or last != self._last_epoch_in(metadata_before)  # it was rolled back
                or (
                    complete and metadata.current_snapshot_id != metadata_before.current_snapshot_id
                )
                or (replaced is not None and not replaced.still_apply(refreshed))
            ):
                raise CommitFailedException("The rows were computed from an older snapshot.")

        files = data_files_of(table, rows)
        removed = all_files(table) if complete else [] if replaced is None else replaced.files
        summary = {_PROPERTY: text}
        attempts = retries or CommitRetries(self._retry_policy)
        try:
            with _EpochTable(table, check_repetition, attempts).transaction() as transaction:
                transaction.set_properties({_property_name(query, writer): text})
                with change_of_files(transaction, removed, summary) as snapshot:
                    for file in files:
                        snapshot.append_data_file(file)
        except (CommitFailedException, ValidationException):
            delete_files(table, files)
            raise
        self._last_epoch = point

    def _without_deletes(self, rows: pa.Table) -> pa.Table:
        """Return an epoch's rows without its deletes."""
        if CHANGE.name not in rows.schema.names or self._context.kind == "rows":
            return rows
        upserts = rows.filter(pc.field(CHANGE.name) > 0)
        return upserts.select(self._schema.names).cast(self._schema)

    def close(self) -> None:
        catalog = getattr(self, "_catalog", None)
        if catalog is not None:
            catalog.close()


@contextlib.contextmanager
def _trial_properties(properties: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Context with properties of a catalog, to open it without creating a SQLite file.

    An absent file is created in a temporary directory: another sink may create the real one
    meanwhile, so it could not be removed again.
    """
    scheme, separator, path = str(properties.get("uri", "")).partition(":///")
    file = Path(path)
    if (
        not scheme.startswith("sqlite")
        or not file.name
        or file.exists()
        or not os.access(file.parent, os.W_OK)
    ):
        yield properties
        return
    with tempfile.TemporaryDirectory(prefix="godwit-") as directory:
        yield {**properties, "uri": f"{scheme}{separator}{directory}/{file.name}"}


def _at_once_with_others(create: Callable[[], _Created]) -> _Created:
    """Return the result of `create`; repeat it if another sink creates the same concurrently.

    A catalog in an SQL database looks whether its tables and a namespace exist, and creates them in
    a second step, which the database refuses if they exist by then.
    """
    for _ in range(_CREATIONS - 1):
        try:
            return create()
        except Exception as error:
            if not type(error).__module__.startswith("sqlalchemy."):
                raise
    return create()


class _EpochIsThereError(Exception):
    """The epoch was committed meanwhile, by another driver or by a commit whose reply was lost.

    Not an error that the library takes for a refused commit, after which it deletes the files.
    """


class _NoTimeLeftError(CommitFailedException):
    """Other writers committed too often for too long; a kind of refused commit, like its base."""


class _EpochTable(Table):
    """Table whose commit is repeated only if that is safe, with the limits of `CommitRetries`."""

    def __init__(
        self, table: Table, check: Callable[[Table], None], retries: CommitRetries
    ) -> None:
        super().__init__(
            identifier=table.name(),
            # The library repeats a commit as these properties say.
            metadata=table.metadata.model_copy(
                update={
                    "properties": {
                        **table.metadata.properties,
                        "commit.retry.num-retries": str(_MAX_REPETITIONS),
                        "commit.retry.min-wait-ms": "0",
                        "commit.retry.max-wait-ms": "0",
                        "commit.retry.total-timeout-ms": str(_MAX_REPETITIONS),
                    }
                }
            ),
            metadata_location=table.metadata_location,
            io=table.io,
            catalog=table.catalog,
            config=table.config,
        )
        self._check, self._retries = check, retries

    def refresh(self) -> Table:
        """Load the newest metadata, so that a commit can be repeated; raise if it must not be."""
        if not self._retries.wait_after_conflict():
            raise _NoTimeLeftError("The time limit for repeated commits is exceeded.")
        refreshed = super().refresh()
        self._retries.begin(self.last_sequence_number, _last_writer(self.metadata))
        self._check(self)
        return refreshed


def last_epoch_of(metadata: TableMetadata, query_id: str, writer: str) -> HistoryPoint | None:
    """Return a writer's last epoch in a table; epoch -1 if its rows are gone.

    ``None`` if it never wrote to the table.
    """
    ancestors = list(_existing_ancestors(metadata))
    for snapshot in ancestors:
        point = _epoch_of_snapshot(snapshot, query_id, writer)
        if point is not None:
            return point
    text = metadata.properties.get(_property_name(query_id, writer))
    if text is None:
        return None
    # Its snapshots have expired, unless there are older ones: the table was rolled back to these.
    recorded = read_point_text(text, query_id, writer)
    sequence = 0 if recorded is None else int(recorded[1].get("sequence", 0))
    if (
        recorded is None
        or not ancestors
        or any((snapshot_.sequence_number or 0) < sequence for snapshot_ in ancestors)
    ):
        return point_without_history(-1, query_id)
    return recorded[0]


def _existing_ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the snapshots that led to the table's content and still exist, newest first."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def _last_writer(metadata: TableMetadata) -> str:
    """Return the writer of the table's current snapshot, as text for errors."""
    snapshot = metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    if summary is None:
        return ""
    facts = summary.additional_properties
    by = "another Godwit query" if _PROPERTY in facts else facts.get("engine-name")
    return f"{summary.operation.value} by {by}" if by else f"{summary.operation.value}"


def _shown_format(table: Table) -> str:
    """Return a table's partitions, as text for errors."""
    fields = [
        f"{field.transform}({table.schema().find_column_name(field.source_id)})"
        for field in table.spec().fields
    ]
    return f"partitioned by {', '.join(fields)}" if fields else "without partitions"


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is the first one in its table's history."""
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == 1


def _property_name(query_id: str, writer: str) -> str:
    """Return the name of the table's property that stores a writer's last epoch."""
    return f"{_PROPERTY}.{query_id}.{writer}"


def _epoch_of_snapshot(snapshot: Snapshot, query_id: str, writer: str) -> HistoryPoint | None:
    """Return a writer's epoch from a snapshot; ``None`` if another writer made the snapshot."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    own = read_point_text(summary.get(_PROPERTY), query_id, writer)
    return None if own is None else own[0]


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return columns of rows as columns of a new table; raises any error for unsupported types."""
    schema = Catalog._convert_schema_if_needed(columns)  # noqa: SLF001  as it creates tables
    converted = assign_fresh_schema_ids(schema)
    converted.as_arrow()
    return converted


def as_iceberg_stores(dtype: pa.DataType) -> pa.DataType:
    """Return the narrowest Iceberg type that holds values of `dtype`."""
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(dtype.value_field)
    return {
        pa.int8(): pa.int32(),
        pa.int16(): pa.int32(),
        pa.uint8(): pa.int32(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.time32("s"): pa.time64("us"),
        pa.time32("ms"): pa.time64("us"),
        pa.date64(): pa.date32(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
    }.get(dtype, dtype)


def _common_type_of(schema: pa.Schema, name: str) -> object:
    """Return a column's type in the form that Arrow and Iceberg share, if there is one."""
    return _common_type(schema.field(name).type) if name in schema.names else None


def _common_type(dtype: pa.DataType) -> object:
    """Return a type in a form for comparison: without ``large_`` and the names of list items."""
    if pa.types.is_struct(dtype):
        return {field.name: _common_type(field.type) for field in dtype}
    if pa.types.is_map(dtype):
        return ["map", _common_type(dtype.key_type), _common_type(dtype.item_type)]
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return ["list", _common_type(dtype.value_type)]
    return str(dtype).removeprefix("large_")


def _type_name(schema: pa.Schema, name: str) -> str:
    """Return the type of a column, as text for errors; ``absent`` if there is no such column."""
    return str(schema.field(name).type) if name in schema.names else "absent"
