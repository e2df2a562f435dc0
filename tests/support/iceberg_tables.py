"""Iceberg tables for tests: a catalog in a directory, and commits that pyiceberg cannot make."""

from __future__ import annotations

import json
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyroaring import BitMap

from godwit.connect.iceberg.files import _FileReplacement, all_files, data_files_of, read_file
from godwit.connect.iceberg.history import _entries_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

_REFERENCED = 17  # place of the only data file of deletes
_EXISTING, _DELETED = ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
_NUMBERS = {"file_path": "2147483546", "pos": "2147483545"}


def properties_of(path: Path) -> dict[str, str]:
    """The properties of a catalog in a directory."""
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/wh"}


def catalog_in(path: Path) -> Catalog:
    """A catalog in a directory, with the namespace ``shop``."""
    catalog = load_catalog("default", **properties_of(path))
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def local_path(location: str) -> Path:
    """The path of a local file."""
    return Path(location.removeprefix("file://"))


def commit_deletes(
    table: Table,
    deleted: Mapping[str, Sequence[int]],
    *,
    files: Sequence[DataFile],
    kind: str = "position",
    removed: Sequence[DataFile] = (),
) -> list[DataFile]:
    """Commit deletes of rows of data files, as other writers do; return the delete files.

    `deleted`: path of a data file → numbers of its rows. `files`: data files. `kind`:
    ``"position"``: one file for each partition; ``"vector"``: deletion vectors, all in one file;
    ``"equality"``: rows with these values of the first column. `removed`: delete files that go.
    """
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes"
    if kind == "vector":
        new = _vectors(path, deleted, files)
    else:
        groups: dict[str, list[DataFile]] = {}
        for file in files:
            if file.file_path in deleted:
                groups.setdefault(f"{file.spec_id} {file.partition}", []).append(file)
        new = [
            _delete_file(f"{path}-{number}.parquet", deleted, group, kind)
            for number, group in enumerate(groups.values())
        ]

    class Deletes(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            gone = {(file.file_path, file[_REFERENCED]) for file in removed}
            manifests = [m for m in self._existing_manifests() if not removed or _is_data(m)]
            entries: list[tuple[ManifestEntryStatus, DataFile, ManifestEntry | None]]
            entries = [(ManifestEntryStatus.ADDED, file, None) for file in new]
            for manifest in self._existing_manifests() if removed else ():
                for entry in () if _is_data(manifest) else _entries_of(manifest, table.io):
                    file = entry.data_file
                    is_gone = (file.file_path, file[_REFERENCED]) in gone
                    if entry.status != ManifestEntryStatus.DELETED:
                        entries.append((_DELETED if is_gone else _EXISTING, file, entry))
            for spec_id in sorted({file.spec_id for _, file, _ in entries}):
                with _DeleteManifestWriter(
                    table.specs()[spec_id],
                    table.schema(),
                    self.new_manifest_output(),
                    self._snapshot_id,
                    "deflate",
                ) as writer:
                    for status, file, old in entries:
                        if file.spec_id == spec_id:
                            writer.add_entry(self._entry(status, file, old))
                manifests.insert(0, writer.to_manifest_file())
            return manifests

        def _entry(
            self, status: ManifestEntryStatus, file: DataFile, old: ManifestEntry | None
        ) -> ManifestEntry:
            stays = old is not None and status == _EXISTING
            return ManifestEntry.from_args(
                _table_format_version=3,
                status=status,
                snapshot_id=old.snapshot_id if old is not None and stays else self._snapshot_id,
                sequence_number=None if old is None else old.sequence_number,
                file_sequence_number=None if old is None else old.file_sequence_number,
                data_file=file,
            )

    with table.transaction() as transaction:
        Deletes(operation=Operation.OVERWRITE, transaction=transaction, io=table.io).commit()
    return new


class _DeleteManifestWriter(ManifestWriterV2):
    """Manifests of deletes, with the fields of format 3."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    @property
    def version(self) -> Any:
        return 3

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(3),
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def _is_data(manifest: ManifestFile) -> bool:
    return manifest.content == ManifestContent.DATA


def _file(file: DataFile, **arguments: Any) -> DataFile:
    made = DataFile.from_args(_table_format_version=3, partition=file.partition, **arguments)
    made.spec_id = file.spec_id
    return made


def _delete_file(
    path: str, deleted: Mapping[str, Sequence[int]], group: Sequence[DataFile], kind: str
) -> DataFile:
    """Write one file of positional or equality deletes."""
    if kind == "equality":
        field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
        rows = pa.table(
            {"id": [n for f in group for n in deleted[f.file_path]]}, pa.schema([field])
        )
        content = DataFileContent.EQUALITY_DELETES
    else:
        pairs = [(f.file_path, row) for f in group for row in sorted(deleted[f.file_path])]
        columns = {"file_path": [p for p, _ in pairs], "pos": [row for _, row in pairs]}
        types = {"file_path": pa.string(), "pos": pa.int64()}
        fields = [
            pa.field(name, dtype, False, {"PARQUET:field_id": _NUMBERS[name]})
            for name, dtype in types.items()
        ]
        rows = pa.table(columns, pa.schema(fields))
        content = DataFileContent.POSITION_DELETES
    pq.write_table(rows, local_path(path))
    return _file(
        group[0],
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        record_count=rows.num_rows,
        file_size_in_bytes=local_path(path).stat().st_size,
        equality_ids=[1] if kind == "equality" else None,
    )


def _vectors(
    path: str, deleted: Mapping[str, Sequence[int]], files: Sequence[DataFile]
) -> list[DataFile]:
    """Write the deletion vectors of data files to one Puffin file."""
    path += ".puffin"
    content, blobs, offsets = b"PFA1", [], {}
    for name, rows in deleted.items():
        vector = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(rows).serialize()
        vector = b"\xd1\xd3\x39\x64" + vector
        blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
        offsets[name] = (len(content), len(blob))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": name, "cardinality": str(len(rows))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    local_path(path).write_bytes(content)
    return [
        _file(
            file,
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PUFFIN,
            record_count=len(deleted[file.file_path]),
            file_size_in_bytes=len(content),
            referenced_data_file=file.file_path,
            content_offset=offsets[file.file_path][0],
            content_size_in_bytes=offsets[file.file_path][1],
        )
        for file in files
        if file.file_path in deleted
    ]


class _Compaction(_FileReplacement):
    """Snapshot that writes the same rows to other files."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        return Summary(operation=Operation.REPLACE, **(snapshot_properties or {}))


def compact(table: Table, files: Sequence[DataFile] | None = None) -> None:
    """Replace data files, by default all of them, by new ones with the same rows."""
    chosen = all_files(table) if files is None else list(files)
    paths = {file.file_path for file in chosen}
    names = [field.name for field in table.schema().fields]
    rows = [
        read_file(table, task, names)
        for task in table.scan().plan_files()
        if task.file.file_path in paths
    ]
    new = data_files_of(table, pa.concat_tables(rows, promote_options="default")) if rows else []
    with table.transaction() as transaction:
        change = _Compaction(operation=Operation.REPLACE, transaction=transaction, io=table.io)
        with change:
            for file in chosen:
                change.delete_data_file(file)
            for file in new:
                change.append_data_file(file)


def edit_metadata(table: Table, edit: Any) -> None:
    """Change the newest metadata file of a table in its place: `edit` gets it as a dictionary."""
    path = local_path(table.metadata_location)
    metadata = json.loads(path.read_text())
    edit(metadata)
    path.write_text(json.dumps(metadata))
