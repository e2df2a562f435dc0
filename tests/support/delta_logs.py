"""Delta tables without a library: logs written by hand, and read as the protocol says."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
import zlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Field = dict[str, Any]
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)


def field(
    name: str, dtype: Any, metadata: Mapping[str, Any] | None = None, *, nullable: bool = True
) -> Field:
    """A column of a table's schema."""
    return {"name": name, "type": dtype, "nullable": nullable, "metadata": dict(metadata or {})}


def make_table(
    path: Path,
    fields: Sequence[Field],
    *,
    features: Sequence[str] = (),
    reader_features: Sequence[str] = (),
    versions: tuple[int, int] | None = None,
    properties: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> Path:
    """Write the first commit of a table.

    `versions`: of reader and writer, without features; else the ones that name features.
    """
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if reader_features else 1,
        "minWriterVersion": 7,
        "writerFeatures": [*features, *reader_features],
    }
    if reader_features:
        protocol["readerFeatures"] = list(reader_features)
    if versions is not None:
        protocol = {"minReaderVersion": versions[0], "minWriterVersion": versions[1]}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
        "partitionColumns": list(partition_by),
        "configuration": dict(properties or {}),
        "createdTime": 0,
    }
    commit(path, [{"protocol": protocol}, {"metaData": metadata}], "CREATE TABLE")
    return path


def commit(path: Path, actions: Iterable[Mapping[str, Any]], operation: str = "WRITE") -> None:
    """Write the next commit of a table."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    version = len(list(log.glob("*.json")))
    info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": operation}}
    text = "\n".join(json.dumps(action) for action in [info, *actions])
    (log / f"{version:020}.json").write_text(text + "\n")


def add_file(
    path: Path,
    rows: pa.Table,
    partition: Mapping[str, str | None] | None = None,
    *,
    deleted: Sequence[int] = (),
    **options: Any,
) -> None:
    """Commit a data file of another writer; `deleted`: rows in its deletion vector."""
    name = f"theirs-{uuid.uuid4()}.parquet"
    pq.write_table(rows, path / name, **options)
    add: dict[str, Any] = {
        "path": name,
        "partitionValues": dict(partition or {}),
        "size": (path / name).stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }
    if deleted:
        add["deletionVector"] = deletion_vector(deleted)
    commit(path, [{"add": add}])


def deletion_vector(rows: Sequence[int]) -> dict[str, Any]:
    """A deletion vector within the log: a Roaring bitmap of row numbers below 65536, in Z85."""
    bitmap = struct.pack("<iiHHI", 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *sorted(rows))
    data = struct.pack("<iqi", 1681511377, 1, 0) + bitmap
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(data + b"\0" * (-len(data) % 4)),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def vector_on_disk(path: Path, inline: Mapping[str, Any]) -> dict[str, Any]:
    """A deletion vector in a file of the table, behind another one; `inline`: it in the log."""
    data = _z85_decoded(inline["pathOrInlineDv"])[: inline["sizeInBytes"]]
    name = uuid.uuid4()
    block = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    directory = path / "ab"
    directory.mkdir(exist_ok=True)
    (directory / f"deletion_vector_{name}.bin").write_bytes(b"\x01" + block + block)
    place = {"pathOrInlineDv": f"ab{z85(name.bytes)}", "offset": 1 + len(block)}
    return {**inline, "storageType": "u", **place}


def _z85_decoded(text: str) -> bytes:
    """The bytes of a text in Z85."""
    words = []
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _Z85.index(character)
        words.append(struct.pack(">I", number))
    return b"".join(words)


def z85(data: bytes) -> str:
    """Bytes, a multiple of four of them, as text in Z85."""
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(_Z85[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def live_files(path: Path) -> list[dict[str, Any]]:
    """The files of a table's newest version, from all commits of its log (no checkpoints)."""
    live: dict[str, dict[str, Any]] = {}
    for file in sorted((path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().split("\n") if line]
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
    return list(live.values())


def read_by_log(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of a table without deletion vectors, with partition values from its log."""
    rows = []
    for file in live_files(path):
        partition = {
            name: partition_value(text, schema.field(name).type)
            for name, text in file["partitionValues"].items()
        }
        stored = pq.ParquetFile(path / unquote(file["path"])).read().to_pylist()
        rows += [{name: {**row, **partition}.get(name) for name in schema.names} for row in stored]
    return rows


def partition_value(text: str | None, dtype: pa.DataType) -> Any:
    """The value of a text in the log ("Partition Value Serialization"); an empty one is null."""
    if text is None or text == "":
        return None
    if pa.types.is_boolean(dtype):
        return {"true": True, "false": False}[text]
    if pa.types.is_integer(dtype):
        return int(text)
    if pa.types.is_decimal(dtype):
        return Decimal(text)
    if pa.types.is_float32(dtype):
        return pa.scalar(float(text), pa.float32()).as_py()
    if pa.types.is_floating(dtype):
        return float(text)
    if pa.types.is_date(dtype):
        return dt.date.fromisoformat(text)
    if pa.types.is_timestamp(dtype):
        at = dt.datetime.fromisoformat(text)
        return at.replace(tzinfo=dt.UTC) if dtype.tz else at
    assert pa.types.is_string(dtype), dtype
    return text
