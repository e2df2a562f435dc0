"""Godwit's sources instead of Spark's scans: the same rows, without Spark's micro-batches.

A scan can be an own source if every option of it is kept, and every expression above it, up to the
first stateful operator, is computed in the lanes as Spark computes it (`godwit.adopt.stateless`).
All else is refused by its reason, so the choice changes how rows are read and never which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from godwit.adopt.csv_scans import SparkCsv
from godwit.adopt.expressions import spark_type
from godwit.adopt.json_scans import SparkJson
from godwit.adopt.parquet_scans import SparkParquet
from godwit.adopt.plan import (
    children_of,
    expressions_of,
    id_of,
    kind_of,
    metadata_of,
    output_of,
    place_of,
    references,
    to_list,
    walk,
)
from godwit.adopt.python_functions import PythonMap
from godwit.adopt.read_texts import converter
from godwit.adopt.scanned_files import ScannedFiles, is_of_directories
from godwit.adopt.stateless import Expansion, Explosion, Projection, read_stateless
from godwit.adopt.static_joins import StaticJoin
from godwit.adopt.text_scans import SparkText
from godwit.model.errors import GodwitError, UnsupportedQueryError
from godwit.model.naming import listing
from godwit.sources.source import Lag, Source, Split, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.adopt.plan import Catalyst
    from godwit.adopt.stateless import StatelessPart
    from godwit.connect.files.file_formats import FileFormat
    from godwit.sources.source import Position

_REMEDY: Final = "Omit own_sources(), so that Spark reads it in micro-batches."
_FILE_OPTIONS: Final = frozenset(
    {"latestfirst", "maxbytespertrigger", "maxfilespertrigger", "path", "pathglobfilter"}
)
_IDLE_OPTIONS: Final = frozenset({"discardcachedinputratio", "maxcachedfiles"})
"""Options that do not change the rows."""
_DEFAULTS: Final = {
    "cleansource": "off",
    "filenameonly": "false",
    "ignorecorruptfiles": "false",
    "ignoremissingfiles": "false",
    "mergeschema": "false",
    "recursivefilelookup": "false",
    # of texts
    "charset": "utf-8",
    "encoding": "utf-8",
    "enforceschema": "true",
    "escape": "\\",
    "inferschema": "false",
    "multiline": "false",
    "quote": '"',
}
"""Option → its only supported value, which changes nothing."""
_SETTINGS: Final = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "corrected",
}
_JSON_TYPES: Final = (
    *(pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
)
"""Types whose values are read as by Spark, or not at all, besides decimals."""
_PLAIN_PATTERN: Final = re.compile(r"[\w.*?=+ -]+")
_MARKS: Final = frozenset("*?[{")  # of patterns
_SEPARATOR: Final = re.compile(r"[^\w\s\"'\\#.+-]|\t", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Columns that are stored in the files of a scan, and how texts are read."""

    columns: pa.Schema  # all of them, in the order of the schema
    read: pa.Schema
    zone: str  # the session's
    corrupt: str  # name of a column for lines that cannot be read


class ComputedSource(Source):
    """An own source whose rows are computed from those of another one, where they are read.

    `parts`: functions of the rows' columns `inputs`; the rows are those of the first one, then
    those of the second one.
    """

    def __init__(
        self, source: Source, inputs: Sequence[str], parts: Sequence[StatelessPart]
    ) -> None:
        self._source, self._inputs, self._parts = source, list(inputs), tuple(parts)
        max_rows = [_max_rows_per_row(part) for part in self._parts]
        self._max_rows_of_row = (
            None if None in max_rows else sum(filter(None, max_rows))
        )  # of one row
        steps = [step for part in self._parts for step in part.steps]
        self._keeps_rows = len(self._parts) == 1 and all(
            isinstance(part_step, Projection) for part_step in steps
        )

    def __repr__(self) -> str:
        return f"<computed from {self._source!r}>"

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    @property
    def identity(self) -> str:
        return self._source.identity

    @property
    def directory(self) -> Any:
        """Directory that is read; ``None`` if the rows are not in files."""
        return getattr(self._source, "directory", None)

    def open(self, position: Position | None) -> None:
        self._source.open(position)

    def start(self) -> Position:
        return self._source.start()

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        return self._source.latest(position, limit=limit, until=until)

    def end(self, position: Position) -> Position:
        return self._source.end(position)

    def precedes(self, position: Position, other: Position) -> bool:
        return self._source.precedes(position, other)

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return the splits of the rows that are read; the number of computed rows is unknown."""
        splits = self._source.splits(begin, end, parallelism)
        if self._keeps_rows:
            return splits
        return [
            replace(
                split,
                rows=None
                if self._max_rows_of_row is None or split.rows is None
                else split.rows * self._max_rows_of_row,
                exact=False,
            )
            for split in splits
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield the computed rows of a split."""
        for batch in self._source.read(split, self._inputs):
            if isinstance(batch, Unreadable):
                yield batch
                continue
            rows = pa.Table.from_batches([batch])
            for part in self._parts:
                yield from part(rows).select(list(columns)).combine_chunks().to_batches()

    def lag(self, position: Position) -> Lag:
        return self._source.lag(position)

    def committed(self, position: Position) -> None:
        self._source.committed(position)

    def take_reports(self) -> list[str]:
        return self._source.take_reports()

    def describe(self, position: Position) -> dict[str, Any]:
        return self._source.describe(position)

    def close(self) -> None:
        self._source.close()


def _max_rows_per_row(part: StatelessPart) -> int | None:
    """Return the maximum number of rows from one row; ``None`` if that depends on its values."""
    most = 1
    for step in part.steps:
        if isinstance(step, Explosion | PythonMap | StaticJoin):
            return None
        most *= len(step.projections) if isinstance(step, Expansion) else 1
    return most


def computed_source(catalyst: Catalyst, plans: Sequence[Any]) -> ComputedSource:
    """Return the rows of plans over one scan, concatenated, as one of Godwit's sources.

    Raises `UnsupportedQueryError` if it would not have the rows that Spark has, or not surely so.
    """
    for plan in plans:
        for node in walk(plan):
            catalyst.check_repeatable(node, _refuse_value)
    scan, _ = _way_to_scan(plans[0])
    if scan is None:
        raise _refusal(plans[0], "it does not read a stream")
    read, compiled_plans = output_of(scan), plans
    optimized = [catalyst.optimized(plan) for plan in plans]
    if all(_way_to_scan(plan)[0] is not None for plan in optimized):  # some row may be left
        used = {number for plan in optimized for number in _columns_read(plan)}
        read, compiled_plans = (
            [attribute for attribute in read if id_of(attribute) in used] or read[:1],
            optimized,
        )
    source = source_of(catalyst, scan, read)
    try:
        parts = [
            read_stateless(catalyst, plan, _way_to_scan(plan)[1], read) for plan in compiled_plans
        ]
    except UnsupportedQueryError as error:
        context, problem = error.context, f"{shown(scan)} cannot be read by own_sources()"
        missing = (
            f"{context['expression']} needs {context['reason']}"
            if "reason" in context
            else f"{context['node']} is not supported in own sources"
        )
        raise UnsupportedQueryError(f"{problem}: {missing}.", remedy=_REMEDY, **context) from None
    return ComputedSource(source, [str(attribute.name()) for attribute in read], parts)


def check_scans(plan: Any) -> None:
    """Raise if a plan reads one scan twice: batches of two sources would have different files."""
    scans: list[Any] = []
    for scan in filter(is_scan, walk(plan)):
        if any(scan.equals(other) for other in scans):
            raise _refusal(scan, "the query reads it twice")
        scans.append(scan)


def is_scan(node: Any) -> bool:
    """Return whether a node reads a stream."""
    return kind_of(node).startswith("StreamingRelation")


def shown(scan: Any) -> str:
    """Return the text of a scan, such as ``FileSource[in/]``."""
    return f"The scan {' '.join(str(scan.simpleString(80)).split())[:80]}"


def _refusal(node: Any, why: str) -> UnsupportedQueryError:
    """Return the error that a node's rows cannot be those of an own source."""
    subject = shown(node) if is_scan(node) else kind_of(node)
    return UnsupportedQueryError(
        f"{subject} cannot be read by own_sources(): {why}.",
        remedy=_REMEDY,
        node=kind_of(node),
        place=place_of(node),
    )


def _refuse_value(expression: Any, reason: str) -> NoReturn:
    """Raise the error that an expression is not computed where rows are read."""
    text, place = str(expression.sql()), place_of(expression)
    raise UnsupportedQueryError(
        f"{text} cannot be computed by an own source: it needs {reason}.",
        remedy=_REMEDY,
        node=kind_of(expression),
        place=place,
    )


def _way_to_scan(plan: Any) -> tuple[Any | None, tuple[int, ...]]:
    """Return the scan below a plan, and the path to it; ``None`` if no row is read."""
    node, path = plan, []
    while not is_scan(node):
        children = children_of(node)
        if len(children) > 1:
            raise _refusal(node, "it combines the rows of several inputs")
        if not children:
            return None, ()
        node = children[0]
        path.append(0)
    return node, tuple(path)


def _columns_read(plan: Any) -> set[int]:
    """Return the numbers of the columns that a plan reads or gives."""
    read = {id_of(attribute) for attribute in output_of(plan)}
    for node in walk(plan):
        for expression in expressions_of(node) if not is_scan(node) else ():
            read |= references(expression)
    return read


# -- scans -------------------------------------------------------------------------------------


def source_of(catalyst: Catalyst, scan: Any, attributes: Sequence[Any]) -> Source:
    """Return the own source of some columns of a scan; raise `UnsupportedQueryError` if none."""
    if kind_of(scan) != "StreamingRelation":
        raise _refusal(scan, f"Godwit has no own source for {str(scan.sourceName())!r}")
    relation = scan.dataSource()
    name = str(relation.className()).rpartition(".")[2].lower().removesuffix("fileformat")
    if name not in _FORMATS:
        raise _refusal(scan, f"the format {name!r} is not supported")
    format_of, own_options = _FORMATS[name]
    options = _options_of(relation.options())
    _check_options(scan, options, _FILE_OPTIONS | own_options)
    for setting, value in _SETTINGS.items():
        if str(catalyst.spark.conf.get(setting, value)).lower() != value:
            raise _refusal(scan, f"the session has {setting} set to a value other than {value}")
    if {"maxfilespertrigger", "maxbytespertrigger"} <= options.keys():
        raise _refusal(scan, "Spark accepts maxFilesPerTrigger or maxBytesPerTrigger, but not both")
    partitions = [str(name) for name in to_list(relation.sourceInfo().partitionColumns())]
    directory, pattern = _place_of(catalyst, scan, options, to_list(relation.paths()))
    if partitions and pattern is not None:
        raise _refusal(scan, "its path is a pattern, and its directories are partitions")
    columns = pa.schema(
        [(str(attribute.name()), _type_of(scan, attribute)) for attribute in output_of(scan)]
    )
    parts = pa.schema([_partition_of(scan, columns.field(name)) for name in partitions])
    read_schema = pa.schema([columns.field(str(attribute.name())) for attribute in attributes])
    stored = Stored(
        columns=pa.schema([field for field in columns if field.name not in parts.names]),
        read=pa.schema([field for field in read_schema if field.name not in parts.names]),
        zone=str(catalyst.spark.conf.get("spark.sql.session.timeZone")),
        corrupt=str(catalyst.spark.conf.get("spark.sql.columnNameOfCorruptRecord")),
    )
    try:
        return ScannedFiles(
            format_of(scan, options, stored),
            directory,
            schema=read_schema,
            partitions=parts,
            pattern=pattern or _pattern_of(scan, options),
            is_pattern=pattern is not None,
            max_files_per_epoch=_positive_option(scan, options, "maxFilesPerTrigger"),
            max_bytes_per_epoch=_positive_option(scan, options, "maxBytesPerTrigger"),
            newest_first=options.get("latestfirst", "false").lower() == "true",
        )
    except GodwitError as error:
        if isinstance(error, UnsupportedQueryError):
            raise
        raise _refusal(scan, error.message.rstrip(".")) from None


def _options_of(options: Any) -> dict[str, str]:
    """Return a Scala map of options, by name in lower case."""
    entries, result = options.iterator(), {}
    while entries.hasNext():
        entry = entries.next()
        result[str(entry._1()).lower()] = str(entry._2())  # noqa: SLF001  Scala's names
    return result


def _check_options(scan: Any, options: dict[str, str], read: frozenset[str]) -> None:
    """Raise for an option that an own source does not support."""
    for name, value in options.items():
        if name in read or name in _IDLE_OPTIONS or _DEFAULTS.get(name) == value.lower():
            continue
        raise _refusal(scan, f"it has the unsupported option {name!r} (set to {value!r})")


def _type_of(scan: Any, attribute: Any) -> pa.DataType:
    """Return the type of a column; raise if it would not be read as by Spark."""
    name, metadata = str(attribute.name()), metadata_of(attribute)
    odd = [key for key in metadata if key.startswith("__") or "DEFAULT" in key]
    if odd:
        raise _refusal(scan, f"the column {name!r} has unsupported metadata ({listing(odd)})")
    try:
        dtype = spark_type(attribute.dataType())
    except ValueError as error:
        raise _refusal(scan, f"the column {name!r} has {error}") from None
    return dtype


def _place_of(
    catalyst: Catalyst, scan: Any, options: dict[str, str], paths: list[Any]
) -> tuple[str, str | None]:
    """Return the local directory that a scan reads, and the pattern of names at the path's end."""
    given_paths = [str(path) for path in paths] or [options.get("path", "")]
    if len(given_paths) != 1:
        raise _refusal(scan, "it reads several paths")
    (text,) = given_paths
    head, _, name = text.rstrip("/").rpartition("/")
    pattern = name if _MARKS & {*name} else None
    if _MARKS & {*head} or (pattern is not None and not _PLAIN_PATTERN.fullmatch(pattern)):
        raise _refusal(
            scan, "its path is a pattern with wildcards other than '*' and '?' in file names"
        )
    if pattern is not None:
        text = head
        if "pathglobfilter" in options:
            raise _refusal(scan, "its path is a pattern, and it also has pathGlobFilter")
    path = catalyst.file_systems.Path(text or ("/" if pattern else text))
    system = path.getFileSystem(catalyst.spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    whole = system.makeQualified(path).toUri()
    if str(whole.getScheme()) != "file":
        raise _refusal(scan, f"its path is on the file system {whole.getScheme()!r}")
    directory = str(whole.getPath())
    if system.exists(catalyst.file_systems.Path(f"{directory}/_spark_metadata")):
        raise _refusal(scan, "Spark reads only the files in its sink's log (_spark_metadata)")
    if not system.getFileStatus(path).isDirectory():
        raise _refusal(scan, "its path is not a directory")
    return directory, pattern


def _partition_of(scan: Any, field: pa.Field) -> pa.Field:
    """Return a column of partitions; raise if Spark may read names of directories differently."""
    if not is_of_directories(field.type):
        raise _refusal(
            scan, f"the column {field.name!r} of its directories is of type {field.type}"
        )
    return field


def _pattern_of(scan: Any, options: dict[str, str]) -> str | None:
    """Return the pattern of the names of files; raise if Spark may interpret it differently."""
    pattern = options.get("pathglobfilter")
    if pattern is not None and not _PLAIN_PATTERN.fullmatch(pattern):
        raise _refusal(scan, f"pathGlobFilter {pattern!r} has wildcards other than '*' and '?'")
    return pattern


def _positive_option(scan: Any, options: dict[str, str], name: str) -> int | None:
    """Return an option that is a number of at least 1."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise _refusal(scan, f"the option {name} is {text!r}")
    return int(text)


def _parquet_format(_scan: Any, _options: dict[str, str], _stored: Stored) -> FileFormat:
    """Return the format of Parquet files."""
    return SparkParquet()


def _json_format(scan: Any, options: dict[str, str], stored: Stored) -> FileFormat:
    """Return the format of JSON files; raise if Spark may read lines or values differently."""
    mode = _mode_of(scan, options, stored, ("permissive", "dropmalformed", "failfast"))
    for field in stored.read:
        if not _is_of_json(field.type):
            raise _refusal(
                scan,
                (
                    f"JSON values of the column {field.name!r}, of type {field.type}, may be "
                    "read differently"
                ),
            )
    return SparkJson(mode=mode, zone=stored.zone)


def _csv_format(scan: Any, options: dict[str, str], stored: Stored) -> FileFormat:
    """Return the format of CSV files; raise if Spark may read lines or values differently."""
    mode = _mode_of(scan, options, stored, ("permissive", "failfast"))
    if not stored.columns:
        raise _refusal(scan, "all its columns are partition columns")
    for field in stored.columns if mode == "failfast" else stored.read:
        try:
            converter(field.type, stored.zone)
        except ValueError:
            raise _refusal(
                scan,
                (
                    f"CSV values of the column {field.name!r}, of type {field.type}, may be read "
                    "differently"
                ),
            ) from None
    separator = options.get("sep", options.get("delimiter", ","))
    if not _SEPARATOR.fullmatch(separator):
        raise _refusal(scan, f"its separator is {separator!r}")
    return SparkCsv(
        stored.columns,
        separator=separator,
        header=options.get("header", "false").lower() == "true",
        null_text=options.get("nullvalue", ""),
        doubled=_escape_of(scan, options) == '"',
        fails=mode == "failfast",
        zone=stored.zone,
    )


def _escape_of(scan: Any, options: dict[str, str]) -> str:
    """Return the character before a quote within quotes."""
    escape = options.get("escape", "\\")
    if escape not in {"\\", '"'}:
        raise _refusal(scan, f"its escape character is {escape!r}")
    return escape


def _mode_of(scan: Any, options: dict[str, str], stored: Stored, modes: Sequence[str]) -> str:
    """Return the mode of a scan of texts, in lower case."""
    mode = options.get("mode", "permissive").lower()
    if mode not in modes:
        raise _refusal(scan, f"the lines that mode {mode!r} drops depend on Spark's plan")
    if stored.corrupt in stored.columns.names:
        raise _refusal(scan, f"its column {stored.corrupt!r} is for malformed lines")
    return mode


def _is_of_json(dtype: pa.DataType) -> bool:
    """Return whether values of a type are read from JSON as Spark reads them."""
    if pa.types.is_list(dtype) or pa.types.is_struct(dtype):
        inner = [dtype.field(n).type for n in range(dtype.num_fields)]
        return all(_is_of_json(each) and not pa.types.is_temporal(each) for each in inner)
    is_timestamp = pa.types.is_timestamp(dtype) and dtype.tz is not None
    return dtype in _JSON_TYPES or pa.types.is_decimal(dtype) or is_timestamp


def _text_format(scan: Any, options: dict[str, str], stored: Stored) -> FileFormat:
    """Return the format of text files; raise if a file is one value, or has other columns."""
    if options.get("wholetext", "false").lower() != "false":
        raise _refusal(scan, "each file is one value (wholetext)")
    if len(stored.read) > 1 or not all(pa.types.is_string(field.type) for field in stored.read):
        raise _refusal(scan, "lines of text are one column of strings")
    return SparkText()


_FORMATS: Final[
    dict[str, tuple[Callable[[Any, dict[str, str], Stored], FileFormat], frozenset[str]]]
] = {
    "csv": (_csv_format, frozenset({"delimiter", "escape", "header", "mode", "nullvalue", "sep"})),
    "json": (_json_format, frozenset({"mode"})),
    "parquet": (_parquet_format, frozenset()),
    "text": (_text_format, frozenset({"wholetext"})),
}
"""Format of Spark's → function that returns the own one, and the options that it reads."""
