"""Own sources in place of Spark's scans: the same rows, read by the lanes without micro-batches.

A scan can be an own source if every option of it is kept, and every expression above it, up to the
first stateful operator, is computed in the lanes as Spark computes it (`godwit.adopt.stateless`).
All else is refused by its reason, so the choice changes how rows are read and never which.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from godwit.adopt.expressions import spark_type
from godwit.adopt.plan import (
    children_of,
    expressions_of,
    id_of,
    kind_of,
    metadata_of,
    place_of,
    references,
    to_list,
    walk,
)
from godwit.adopt.stateless import Expansion, Projection, read_stateless
from godwit.model.errors import GodwitError, UnsupportedQueryError
from godwit.model.naming import listing
from godwit.sources.file_formats import ParquetFormat
from godwit.sources.files import FileSource
from godwit.sources.json_files import JsonFormat
from godwit.sources.source import Lag, Source, Split, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.adopt.plan import Catalyst
    from godwit.adopt.stateless import StatelessPart
    from godwit.sources.file_formats import FileFormat
    from godwit.sources.source import Position

_REMEDY: Final = "Leave own_sources() out: Spark reads it in micro-batches."
_FILE_OPTIONS: Final = frozenset({"maxfilespertrigger", "path", "pathglobfilter"})
_IDLE_OPTIONS: Final = frozenset({"discardcachedinputratio", "maxcachedfiles"})
"""Options that change no rows."""
_DEFAULTS: Final = {
    "cleansource": "off",
    "filenameonly": "false",
    "ignorecorruptfiles": "false",
    "ignoremissingfiles": "false",
    "latestfirst": "false",
    "mergeschema": "false",
    "recursivefilelookup": "false",
}
"""Option → its value that changes nothing, the only one that is taken."""
_SETTINGS: Final = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
}
_JSON_TYPES: Final = (
    *(pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
)
"""Types whose values Spark reads as they are read here, or not at all; decimals, too."""
_PLAIN_PATTERN: Final = re.compile(r"[\w.*?=+ -]+")


class ComputedSource(Source):
    """An own source whose rows are computed from those of another one, where they are read.

    `parts`: functions of the rows' columns `inputs`; the rows are those of the first one, then
    those of the second one.
    """

    def __init__(
        self, source: Source, inputs: Sequence[str], parts: Sequence[StatelessPart]
    ) -> None:
        self._source, self._inputs, self._parts = source, list(inputs), tuple(parts)
        self._most = sum(_most_rows(part) for part in self._parts)
        steps = [step for part in self._parts for step in part.steps]
        self._keeps_rows = len(self._parts) == 1 and all(isinstance(s, Projection) for s in steps)

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
        """Return the splits of the rows that are read; how many come of them is not known."""
        splits = self._source.splits(begin, end, parallelism)
        if self._keeps_rows:
            return splits
        return [
            replace(split, rows=split.rows and split.rows * self._most, exact=False)
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


def _most_rows(part: StatelessPart) -> int:
    """Return how many rows come of one row at most."""
    most = 1
    for step in part.steps:
        most *= len(step.projections) if isinstance(step, Expansion) else 1
    return most


def computed_source(catalyst: Catalyst, plans: Sequence[Any]) -> ComputedSource:
    """Return the rows of plans over one scan, one after the other, as a source of Godwit's own.

    Raises `UnsupportedQueryError` if it would not have the rows that Spark has, or not surely so.
    """
    for plan in plans:
        for node in walk(plan):
            catalyst.check_repeatable(node, _refuse_value)
    scan, _ = _way_to_scan(plans[0])
    if scan is None:
        raise _refused(plans[0], "it does not read a stream")
    read, whole = to_list(scan.output()), plans
    optimized = [catalyst.optimized(plan) for plan in plans]
    if all(_way_to_scan(plan)[0] is not None for plan in optimized):  # some row may be left
        used = {number for plan in optimized for number in _columns_read(plan)}
        read, whole = [a for a in read if id_of(a) in used] or read[:1], optimized
    source = source_of(catalyst, scan, read)
    try:
        parts = [read_stateless(catalyst, plan, _way_to_scan(plan)[1], read) for plan in whole]
    except UnsupportedQueryError as error:
        context, own = error.context, f"{shown(scan)} cannot be an own source"
        missing = (
            f"{context['expression']} needs {context['reason']}"
            if "reason" in context
            else f"{context['node']} is not computed where rows are read"
        )
        raise UnsupportedQueryError(f"{own}: {missing}.", remedy=_REMEDY, **context) from None
    return ComputedSource(source, [str(a.name()) for a in read], parts)


def check_scans(plan: Any) -> None:
    """Raise if a plan reads one scan twice: batches of two sources would not be the same files."""
    scans: list[Any] = []
    for scan in filter(is_scan, walk(plan)):
        if any(scan.equals(other) for other in scans):
            raise _refused(scan, "the query reads it twice")
        scans.append(scan)


def is_scan(node: Any) -> bool:
    """Return whether a node reads a stream."""
    return kind_of(node).startswith("StreamingRelation")


def shown(scan: Any) -> str:
    """Return the text of a scan, such as ``FileSource[in/]``."""
    return f"The scan {' '.join(str(scan.simpleString(80)).split())[:80]}"


def _refused(node: Any, why: str) -> UnsupportedQueryError:
    """Return the error that a node's rows cannot be those of an own source."""
    subject = shown(node) if is_scan(node) else kind_of(node)
    return UnsupportedQueryError(
        f"{subject} cannot be an own source: {why}.",
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
    """Return the scan below a plan, and the way to it; ``None`` if no row is read."""
    node, path = plan, []
    while not is_scan(node):
        children = children_of(node)
        if len(children) > 1:
            raise _refused(node, "it puts together the rows of several inputs")
        if not children:
            return None, ()
        node = children[0]
        path.append(0)
    return node, tuple(path)


def _columns_read(plan: Any) -> set[int]:
    """Return the numbers of the columns that a plan reads or gives."""
    read = {id_of(attribute) for attribute in to_list(plan.output())}
    for node in walk(plan):
        for expression in expressions_of(node) if not is_scan(node) else ():
            read |= references(expression)
    return read


# -- scans -------------------------------------------------------------------------------------


def source_of(catalyst: Catalyst, scan: Any, attributes: Sequence[Any]) -> Source:
    """Return the own source of some columns of a scan; raise `UnsupportedQueryError` if none."""
    if kind_of(scan) != "StreamingRelation":
        raise _refused(scan, f"the source {str(scan.sourceName())!r} has none here")
    relation = scan.dataSource()
    name = str(relation.className()).rpartition(".")[2].lower().removesuffix("fileformat")
    format_of = _FORMATS.get(name)
    if format_of is None:
        raise _refused(scan, f"files of the format {name!r} are not read as Spark reads them")
    options = _options_of(relation.options())
    _check_options(scan, options, _FILE_OPTIONS | ({"mode"} if name == "json" else set()))
    for setting, value in _SETTINGS.items():
        if str(catalyst.spark.conf.get(setting, value)).lower() != value:
            raise _refused(scan, f"the session has {setting} set to a different value than {value}")
    if relation.sourceInfo().partitionColumns().size():
        raise _refused(scan, "it has columns of partitions, from the names of directories")
    schema = pa.schema([(str(a.name()), _type_of(scan, a)) for a in attributes])
    try:
        return FileSource(
            format_of(scan, options, schema),
            _path_of(catalyst, scan, options, to_list(relation.paths())),
            schema=schema,
            filesystem=None,
            pattern=_pattern_of(scan, options),
            max_rows_per_epoch=None,
            max_files_per_epoch=_number(scan, options, "maxFilesPerTrigger"),
            recursive=False,
        )
    except GodwitError as error:
        if isinstance(error, UnsupportedQueryError):
            raise
        raise _refused(scan, error.message.rstrip(".")) from None


def _options_of(options: Any) -> dict[str, str]:
    """Return a Scala map of options, by name in lower case."""
    entries, result = options.iterator(), {}
    while entries.hasNext():
        entry = entries.next()
        result[str(entry._1()).lower()] = str(entry._2())  # noqa: SLF001  Scala's names
    return result


def _check_options(scan: Any, options: dict[str, str], read: frozenset[str]) -> None:
    """Raise for an option that an own source does not keep."""
    for name, value in options.items():
        if name in read or name in _IDLE_OPTIONS or _DEFAULTS.get(name) == value.lower():
            continue
        raise _refused(scan, f"it has the option {name!r} (set to {value!r}), which is not read")


def _type_of(scan: Any, attribute: Any) -> pa.DataType:
    """Return the type of a column; raise if it is not one that is read as Spark reads it."""
    name, metadata = str(attribute.name()), metadata_of(attribute)
    odd = [key for key in metadata if key.startswith("__") or "DEFAULT" in key]
    if odd:
        raise _refused(scan, f"the column {name!r} is not a plain one ({listing(odd)})")
    try:
        dtype = spark_type(attribute.dataType())
    except ValueError as error:
        raise _refused(scan, f"the column {name!r} has {error}") from None
    if pa.types.is_nested(dtype):
        text = attribute.dataType().simpleString()
        raise _refused(scan, f"the column {name!r} has the nested type {text}")
    return dtype


def _path_of(catalyst: Catalyst, scan: Any, options: dict[str, str], paths: list[Any]) -> str:
    """Return the directory that a scan reads; raise if it is not one local directory."""
    given = [str(path) for path in paths] or [options.get("path", "")]
    if len(given) != 1:
        raise _refused(scan, "it reads several paths")
    (text,) = given
    if set("*?[{") & {*text}:
        raise _refused(scan, "its path is a pattern; give the directory and pathGlobFilter")
    jvm: Any = catalyst.spark._jvm  # noqa: SLF001  not in PySpark's API
    path = jvm.org.apache.hadoop.fs.Path(text)
    system = path.getFileSystem(catalyst.spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    whole = system.makeQualified(path).toUri()
    if str(whole.getScheme()) != "file":
        raise _refused(scan, f"its path is on the file system {whole.getScheme()!r}")
    directory = str(whole.getPath())
    if system.exists(jvm.org.apache.hadoop.fs.Path(f"{directory}/_spark_metadata")):
        raise _refused(scan, "Spark reads the files of its sink's log (_spark_metadata) alone")
    if not system.getFileStatus(path).isDirectory():
        raise _refused(scan, "its path is not a directory")
    return directory


def _pattern_of(scan: Any, options: dict[str, str]) -> str | None:
    """Return the pattern of the names of files; raise if Spark may understand it otherwise."""
    pattern = options.get("pathglobfilter")
    if pattern is not None and not _PLAIN_PATTERN.fullmatch(pattern):
        raise _refused(scan, f"pathGlobFilter {pattern!r} has more than '*' and '?'")
    return pattern


def _number(scan: Any, options: dict[str, str], name: str) -> int | None:
    """Return an option that is a number of at least 1."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise _refused(scan, f"the option {name} is {text!r}")
    return int(text)


def _parquet(_scan: Any, _options: dict[str, str], _schema: pa.Schema) -> FileFormat:
    """Return the format of Parquet files."""
    return ParquetFormat()


def _json(scan: Any, options: dict[str, str], schema: pa.Schema) -> FileFormat:
    """Return the format of JSON files; raise if lines or values may be read otherwise."""
    if options.get("mode", "").upper() != "FAILFAST":
        raise _refused(
            scan,
            "what Spark cannot read in a line of JSON is null, and here it is an error, as in "
            'Spark with option("mode", "FAILFAST")',
        )
    for field in schema:
        if field.type not in _JSON_TYPES and not pa.types.is_decimal(field.type):
            raise _refused(
                scan, f"texts of JSON in the column {field.name!r} of type {field.type} differ"
            )
    return JsonFormat(skips_bad=False)


_FORMATS: Final[dict[str, Callable[[Any, dict[str, str], pa.Schema], FileFormat]]] = {
    "json": _json,
    "parquet": _parquet,
}
"""Format of Spark's → function of a scan, its options and its columns that returns the own one."""
