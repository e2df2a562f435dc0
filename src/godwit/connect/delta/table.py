"""A Delta table as a target: its requirements on writers, compared with the sink's features.

All requirements are checked before the first epoch, since a committed epoch has to be delivered.
Other writers may change a table while a query runs, so all checks but the rehearsal are repeated
before each commit.

**Features.**  The format grows by features, which a table names in its protocol, and which a writer
must know.  The sink takes the features of `_FEATURES`.  Only a commit shows which of them the
installed deltalake knows: `rehearse` commits no rows to a table without rows that has the same
protocol, columns and properties, in a temporary directory.

**Partition values** are texts in the log ("Partition Value Serialization" in the protocol).
deltalake writes decimals that are negative and not whole in a form that no reader knows, and reads
binary values back as others: columns of these types are refused.  By the protocol an empty text is
null; deltalake takes the name of the null directory for null as well: rows with these are rejected.
"""

from __future__ import annotations

import decimal
import json
import re
import tempfile
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from godwit.columns.types import is_text
from godwit.connect.files.parquet_files import LONGEST_NAME, NULL_PARTITION, check_of_columns
from godwit.connect.row_checks import (
    KNOWN_YEARS,
    NO_NANOSECONDS,
    ColumnCheck,
    Rule,
    up_to_characters,
)
from godwit.model.locations import is_uri, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import SinkContext

_FEATURES: Final = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "variantType",
    "variantType-preview",
}
"""Features of tables that the sink writes to, if `find_problem` finds nothing else."""

_LAST_WRITER_VERSION: Final = 7  # the one that names features
_IDENTITY_VERSION: Final = 6  # the first and only version that implies ``identityColumns``

_PLAIN_FEATURES: Final = {"appendOnly", "invariants", "timestampNtz", "checkConstraints"}
"""Features that a table may require of writers that only add data files."""

_LAST_PLAIN_VERSION: Final = 3  # of those that name no features: later ones compute columns

# Types of partition columns whose text the sink itself writes, and those that it leaves to
# deltalake; decimals without a scale are right too.
_PLAIN_PARTITIONS: Final = {"string", "byte", "short", "integer", "long", "date", "boolean"}
_PARTITIONS: Final = {*_PLAIN_PARTITIONS, "float", "double", "timestamp", "timestamp_ntz"}

_FIRST_VERSION: Final = 1, 6  # of deltalake

_LENGTHS: Final = "__CHAR_VARCHAR_TYPE_STRING"  # Spark's types with a length, which Delta lacks
_FORGETS: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """Reason why a table cannot be written to, and what to do."""

    what: str
    remedy: str


def check_library(version: str = deltalake.__version__) -> TargetProblem | None:
    """Return why the installed deltalake cannot be used; ``None`` if it can be."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers >= _FIRST_VERSION:
        return None
    return TargetProblem(
        f"deltalake {version} is too old: it may add data files twice, or not replace rows",
        "Install a newer version: pip install 'deltalake>={}.{}'.".format(*_FIRST_VERSION),
    )


def check_path(path: str) -> TargetProblem | None:
    """Return why deltalake cannot write to a path or URI; ``None`` if it can."""
    if not is_uri(path) and (scheme := re.match("[A-Za-z][A-Za-z0-9+.-]+:", path)):
        return TargetProblem(
            f"the path begins with {scheme[0]}, which deltalake would read as the scheme of a URI",
            f"For a directory of this name, write ./{path}; in a URI, put a slash after the "
            "scheme.",
        )
    local = local_path(path) or ""
    if re.search("%[0-9A-Fa-f]{2}", local or unquote(path)):
        return TargetProblem(
            "the path has a % with two digits, which deltalake would decode",
            "Use a path without it.",
        )
    if character := re.search(r"[\[\]^|\\\x00-\x1f\x7f]", local):
        return TargetProblem(
            f"the path {local!r} has the character {character[0]!r}, which deltalake does not "
            "support in a path",
            "Use a path without it.",
        )
    return None


def rehearse(table: DeltaTable, commit: Callable[[DeltaTable], None]) -> None:
    """Commit nothing to a copy of a table without its rows; raises as deltalake would.

    `commit`: commits an epoch without rows to a table.
    """
    protocol, metadata = table.protocol(), table.metadata()
    of_copy: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.min_reader_version >= 3:
        of_copy["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= _LAST_WRITER_VERSION:
        of_copy["writerFeatures"] = protocol.writer_features or []
    columns = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
        "createdTime": 0,
    }
    with tempfile.TemporaryDirectory(prefix="godwit-") as directory:
        log = Path(directory, "_delta_log", f"{0:020}.json")
        log.parent.mkdir()
        log.write_text(f"{json.dumps({'protocol': of_copy})}\n{json.dumps({'metaData': columns})}")
        commit(DeltaTable(directory))


def find_problem(
    table: DeltaTable, schema: pa.Schema, *, merges: bool, replaces: bool
) -> TargetProblem | None:
    """Return why a table cannot take the rows; ``None`` if it can.

    `schema`: the rows. `merges`: they are upserts. `replaces`: each epoch replaces all rows.
    """
    return next(_problems_of_table(table, schema, merges=merges, replaces=replaces), None)


def _problems_of_table(
    table: DeltaTable, schema: pa.Schema, *, merges: bool, replaces: bool
) -> Iterator[TargetProblem]:
    """Yield each problem."""
    fields = table.schema().fields
    properties = table.metadata().configuration
    if unknown := _unknown_features(table):
        yield missing_features(", ".join(unknown))
    if (merges or replaces) and properties.get("delta.appendOnly", "").lower() == "true":
        yield TargetProblem(
            "the table is append-only (delta.appendOnly), and "
            + ("upserts" if merges else "complete results")
            + " replace rows",
            "Write to another table, or ALTER TABLE ... UNSET TBLPROPERTIES ('delta.appendOnly').",
        )
    if differences := _column_differences(table, schema):
        yield TargetProblem(
            f"the table has other columns: {', '.join(differences)}",
            "Use another path, or cast and rename the columns before the sink.",
        )
    if names := _constraint_names(table):
        yield TargetProblem(
            f"the table has constraints ({', '.join(sorted(names))})",
            "Drop them (ALTER TABLE ... DROP CONSTRAINT ...) and filter in a map before the "
            "sink, or write to another table.",
        )
    if names := _columns_with(table, "delta.generationExpression"):
        yield TargetProblem(
            f"the table has generated columns ({', '.join(names)}), whose expressions deltalake "
            "parses in another SQL dialect and checks only at the commit",
            "Compute the columns in a map before the sink, and write to a table where they are "
            "ordinary columns.",
        )
    if _FORGETS in properties:
        yield TargetProblem(
            f"the table drops transaction ids after some time ({_FORGETS}), and the sink needs "
            "them to detect an epoch that is delivered twice",
            f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}').",
        )
    if problem := check_names([field.name for field in fields], merges=merges):
        yield problem
    if problem := partition_problem(table.schema(), table.metadata().partition_columns):
        yield problem
    for field in fields:
        text = str(field.metadata.get(_LENGTHS, ""))
        if field.name in schema.names and text and _length_limit(text) is None:
            yield TargetProblem(
                f"column {field.name!r} is of type {text}, whose lengths cannot be checked before "
                "the commit",
                "Write to a table with string instead of char and varchar.",
            )


def missing_features(names: str) -> TargetProblem:
    """Return the problem that a table requires unsupported writer features."""
    return TargetProblem(
        f"the table requires writer features that deltalake {deltalake.__version__} or this sink "
        f"does not support ({names})",
        "If the table does not need them, ALTER TABLE ... DROP FEATURE ...; or write to another "
        "table.",
    )


def _unknown_features(table: DeltaTable) -> list[str]:
    """Return the writer features that a table requires and the sink does not support."""
    protocol = table.protocol()
    version = protocol.min_writer_version
    if version > _LAST_WRITER_VERSION:
        return [f"writer version {version}"]
    if version == _IDENTITY_VERSION:
        return ["identityColumns (writer version 6)"]
    named = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    return sorted(named - _FEATURES)


def check_names(names: Sequence[str], *, merges: bool) -> TargetProblem | None:
    """Return why a table cannot have columns of these names; `merges`: rows are upserts."""
    quoted = [name for name in names if "`" in name]
    if merges and quoted:
        return TargetProblem(
            f"column {quoted[0]!r} has a backtick in its name, which deltalake's merge cannot read",
            'Rename the column before the sink, or use mode="append".',
        )
    if len({name.lower() for name in names}) < len(names):
        return TargetProblem(
            f"the columns {', '.join(names)} differ only in case, which Delta tables ignore",
            "Rename columns before the sink.",
        )
    return None


def partition_problem(schema: Schema, partition_by: Sequence[str]) -> TargetProblem | None:
    """Return why a table cannot be partitioned by columns; ``None`` if it can."""
    types = {field.name: _type_name(field.type) for field in schema.fields}
    is_repeated = len(set(partition_by)) < len(partition_by)
    if is_repeated or (partition_by and not types.keys() - set(partition_by)):
        return TargetProblem(
            f"the columns {', '.join(partition_by)} cannot partition the table: list each column "
            "once, and leave at least one column out",
            "Partition by fewer columns.",
        )
    for name in partition_by:
        dtype = types[name]
        if not (dtype in _PARTITIONS or re.fullmatch(r"decimal\(\d+, ?0\)", dtype)):
            return TargetProblem(
                f"column {name!r} of type {dtype} cannot partition the table, since deltalake "
                "cannot write and read back all values of that type",
                "Partition by another column, or cast this one to string in a map before the sink.",
            )
        is_long = len(f"{name}={NULL_PARTITION}".encode()) > LONGEST_NAME
        if is_long or name != name.strip() or re.search("[\\x00-\\x1f\\x7f:]", name):
            return TargetProblem(
                f"column {name!r} cannot partition the table, since deltalake cannot use its name "
                "in paths (a colon, a control character, white space at an end, or too long)",
                "Rename the column before the sink, or partition by another.",
            )
    return None


def _column_differences(table: DeltaTable, schema: pa.Schema) -> list[str]:
    """Return the columns in which a table differs from the rows, one string each.

    Further nullable columns are no difference, since they are null in new rows; but for partition
    columns, which name directories of rows.
    """
    partition_by = table.metadata().partition_columns
    fields = {field.name: field for field in table.schema().fields}
    existing = {name: field.type for name, field in fields.items()}
    expected = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    differences = []
    for name in sorted(existing.keys() | expected.keys()):
        expected_type, existing_type = expected.get(name), existing.get(name)
        is_extra = expected_type is None and fields[name].nullable and name not in partition_by
        if expected_type == existing_type or is_extra:
            continue
        texts = [_type_name(expected_type), _type_name(existing_type)]
        if len(set(texts)) == 1:  # nested ones, which differ within
            texts = [str(expected_type), str(existing_type)]
        differences.append(f"{name} ({texts[0]} in the rows, {texts[1]} in the table)")
    return differences


def _constraint_names(table: DeltaTable) -> list[str]:
    """Return the names of a table's constraints."""
    names = [
        name.removeprefix("delta.constraints.")
        for name in table.metadata().configuration
        if name.startswith("delta.constraints.")
    ]
    return [*names, *_columns_with(table, "delta.invariants")]


def _columns_with(table: DeltaTable, fact: str) -> list[str]:
    """Return the columns with a key in their metadata, or in that of nested columns."""
    return [field.name for field in table.schema().fields if f'"{fact}":' in field.to_json()]


def takes_plain_files(table: DeltaTable) -> bool:
    """Return whether the table allows Parquet files to be added without further metadata."""
    protocol = table.protocol()
    if protocol.min_writer_version > _LAST_PLAIN_VERSION and not protocol.writer_features:
        return False
    features = set(protocol.writer_features or ())
    partition_by = table.metadata().partition_columns
    types = [_type_name(f.type) for f in table.schema().fields if f.name in partition_by]
    return features <= _PLAIN_FEATURES and _PLAIN_PARTITIONS.issuperset(types)


def as_delta_stores(dtype: pa.DataType) -> pa.DataType:
    """Return the narrowest Delta Lake type that holds `dtype`; none is unsigned or a view."""
    return {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
    }.get(dtype, dtype)


def _type_name(dtype: object) -> str:
    """Return the name of a Delta type for messages; ``absent`` for ``None``."""
    if dtype is None:
        return "absent"
    return str(getattr(dtype, "type", dtype))


# --- rows ---------------------------------------------------------------------------------


def row_check(table: DeltaTable, context: SinkContext, max_partitions: int) -> RowCheck:
    """Return the check for rows that the table's columns or partitions cannot hold.

    `max_partitions`: the most partitions that one lane may write in an epoch.
    """
    partition_by = tuple(table.metadata().partition_columns)
    fields = {field.name: field for field in table.schema().fields}
    columns = []
    for name in context.schema.names:
        rules: tuple[Rule, ...] = (KNOWN_YEARS, NO_NANOSECONDS)
        field = fields[name]
        limit = _length_limit(str(field.metadata.get(_LENGTHS, "")))
        if limit is not None:
            rules = (*rules, up_to_characters(limit))
        if name in partition_by:
            stored = str(field.metadata.get("delta.columnMapping.physicalName", ""))
            rules = (*rules, NOT_NULL_TO_READERS, _short_directory(max(name, stored, key=len)))
        columns.append(ColumnCheck(name, rules, nullable=field.nullable))
    return check_of_columns(context, columns, partition_by, max_partitions)


def _length_limit(text: str) -> int | None:
    """Return the length in the name of a type, as in ``varchar(3)``; ``None`` if it has none.

    Also ``None`` for nested types of which only some texts have it.
    """
    limits = set(re.findall(r"char\((\d+)\)", text))
    return int(limits.pop()) if len(limits) == 1 and "string" not in text else None


def _taken_for_null(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of texts that readers take for a null partition; ``None`` for other types."""
    if not is_text(values.type):
        return None
    return pc.is_in(values, value_set=pa.array(["", NULL_PARTITION], values.type))


NOT_NULL_TO_READERS: Final = Rule(
    f"stands for null in a partition column (it is empty, or {NULL_PARTITION})",
    _taken_for_null,
)


def _short_directory(column: str) -> Rule:
    """Return the rule that limits the length of a partition's directory name ``column=value``."""
    reason = f"would name a directory of more than {LONGEST_NAME} bytes"
    return Rule(reason, partial(_with_long_directory, column))


def _with_long_directory(column: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of values whose directory deltalake would give too long a name."""
    room = LONGEST_NAME - len(column.encode()) - 1
    if is_text(values.type):
        may_be = pc.greater(pc.binary_length(values), room // 3)  # a byte may become %XX
    elif pa.types.is_float64(values.type):
        sizes = pc.abs(values)
        may_be = pc.or_(pc.greater(sizes, 1e100), pc.less(sizes, 1e-100))
    else:
        return None
    if not pc.any(may_be).as_py():
        return may_be
    return pa.array(
        [
            bool(maybe) and len(_partition_path_text(value)) > room
            for maybe, value in zip(may_be.to_pylist(), values.to_pylist(), strict=True)
        ],
        pa.bool_(),
    )


def _partition_path_text(value: str | float) -> str:
    """Return a partition value as deltalake writes it in paths: floats without an exponent.

    Examples
    --------
    >>> _in_path("a b"), _in_path(-1.5e-7)
    ('a%20b', '-0.00000015')
    """
    if isinstance(value, str):
        return quote(value, safe="")
    return f"{decimal.Decimal(repr(value)):f}"
