"""Texts of files as own sources read them, beside Spark's readers: drawn lines, many of them ugly.

``python -m tests.adopted.scans [--rounds N] [--lines N] [--seed N]``

Each line is a file of its own, which Spark reads by ``spark.read``.  The own reader gives the same
rows, or raises because it is not sure; how often it does is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from godwit.adopt.csv_scans import SparkCsv
from godwit.adopt.json_scans import SparkJson
from godwit.connect.files.directory import Directory
from godwit.connect.files.file_formats import FileRange
from godwit.model.errors import GodwitError
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.connect.files.text_formats import TextFormat

_FLAT = "s string, n bigint, i int, d double, b boolean, c decimal(5, 2), t timestamp, y date"
SCHEMAS = {"csv": _FLAT, "json": f"{_FLAT}, a array<int>, o struct<x: int, y: string>"}
_TIMES = (
    *("2024-02-29T10:11:12", "2024-02-29 10:11:12.5", "2024-01-01", "2024-01-01T00:00:00Z"),
    *("2024-13-01T00:00:00", "2024-01-01T24:00:00", "2024-01-01 00:00:00.1234567", "", "now"),
    *("2024-06-01T12:00:00+02:00", "1969-12-31 23:59:59.999999", "n/a", "2024-1-1", "10:11"),
)
_WORDS = ("a", "", "ü", "x y", " ", "NaN", "null", "12", "a,b", "it's", "#", "-", "\\", "tab\t")
_NUMBERS = (
    *("1", "-7", "0", "-0", "+5", "007", "2147483648", "9223372036854775808", "1.0", "1.5", ".5"),
    *("5.", "1e3", "1E-3", "-1.25", "1.555", "1.565", "999.995", "12345.6", "NaN", "Infinity"),
    *("-Infinity", "Inf", "1f", "1_000", "1,5", " 1", "1 ", "", "x", "123456789012345678901234"),
    *("0.1", "1e400", "4.9e-324", "0x1F", "True", "true"),
)
_QUOTES = (
    *('"a""b"', '"a""b""c"', '"a"x', '"a""', 'a"b"', '"a,""b"', '"say ""a"""', '"""a"""'),
    *('"a, ""b"" c"', '"""",x', '"a ""b, c"""'),
)


@dataclass
class Compared:
    """Number of lines, of those that the own reader refuses, and what differs."""

    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    different: list[str] = field(default_factory=list)


def line_of_json(draw: random.Random) -> str:
    """Draw a line of JSON, of which one in two is changed by some characters."""
    values: dict[str, Any] = {
        "s": draw.choice([*_WORDS, 5, 1.50, True, None, {"a": [1, "x"]}, [1, 2]]),
        "n": draw.choice([1, -7, 2**62, 2**63, 1.5, "5", True, None, [1]]),
        "i": draw.choice([1, 2**31, 1.0, "x", None, {}]),
        "d": draw.choice([0.1, 5, -0.0, 1e300, "NaN", "1.5", "", True, None, math.nan, -math.inf]),
        "b": draw.choice([True, False, None, "true", 1]),
        "c": draw.choice([1.25, 1.555, 5, 12345.6, "1.5", "x", True, None, 1e1]),
        "t": draw.choice([*_TIMES, 5, 1.5, None, True]),
        "y": draw.choice([*_TIMES, 5, None]),
        "a": draw.choice([[1, 2], [], None, [None], ["x"], 1, [2**31]]),
        "o": draw.choice([{"x": 1, "y": "z"}, {"x": 1}, {}, None, {"x": "q"}, [1], {"z": 1}]),
        "other": draw.choice([1, {"s": 1}, [[]]]),
    }
    names = draw.sample(list(values), draw.randint(1, len(values)))
    separators = draw.choice([(",", ":"), (", ", ": ")])
    text = json.dumps(
        {name: values[name] for name in names},
        ensure_ascii=draw.random() < 0.5,
        separators=separators,
    )
    return _changed(draw, text, '{}[]",:\\ x10eE-+.tnu\t') if draw.random() < 0.5 else text


def line_of_csv(draw: random.Random) -> str:
    """Draw a line of CSV."""
    cells = [
        draw.choice(_WORDS),
        *(draw.choice(_NUMBERS) for _ in range(3)),
        draw.choice(["true", "FALSE", "t", "1", ""]),
        draw.choice(_NUMBERS),
        draw.choice(_TIMES),
        draw.choice(_TIMES),
    ]
    cells = cells[: draw.choice([8, 8, 8, 8, 7, 3, 1])] + ["z"] * draw.choice([0, 0, 0, 1])
    line = ",".join(_quoted(cell) if draw.random() < 0.1 else cell for cell in cells)
    if draw.random() < 0.2:
        line = draw.choice(_QUOTES) + "," + line
    return _changed(draw, line, '",\\ x1;e-+.\t') if draw.random() < 0.3 else line


def _quoted(cell: str) -> str:
    """Return a value in quotes."""
    return '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _changed(draw: random.Random, text: str, letters: str) -> str:
    """Change some characters of a text, or cut it."""
    for _ in range(draw.randint(1, 3)):
        place = draw.randint(0, len(text))
        action = draw.choice(["insert", "delete", "replace", "cut"])
        if action == "cut":
            text = text[:place]
        elif action == "insert":
            text = text[:place] + draw.choice(letters) + text[place:]
        else:
            put = draw.choice(letters) if action == "replace" else ""
            text = text[:place] + put + text[place + 1 :]
    return text


def _columns(schema: str) -> StructType:
    """Return the columns of a schema."""
    columns: Any = StructType.fromDDL(schema)
    return cast("StructType", columns)


def compare(
    spark: SparkSession, name: str, mode: str, lines: Sequence[str], *, doubled: bool = False
) -> Compared:
    """Compare the rows of lines in a format, ``csv`` or ``json``.

    `doubled`: two quotes within quotes are a quote.
    """
    schema = arrow_schema_of(_columns(SCHEMAS[name]), zone="UTC")
    place = Path(tempfile.mkdtemp(prefix="scans-"))
    try:
        for number, line in enumerate(lines):
            (place / f"{number:06d}").write_bytes(line.encode("utf-8", "surrogatepass"))
        frame = spark.read.schema(SCHEMAS[name]).option("mode", mode).format(name)
        frame = frame.option("escape", '"') if doubled else frame
        rows = frame.load(str(place)).select("*", "_metadata.file_name").toArrow()
        files = rows.column("file_name").to_pylist()
        theirs: dict[str, list[Any]] = {}
        values = _plain(rows.drop_columns(["file_name"]))
        for file, row in zip(files, values, strict=True):
            theirs.setdefault(file, []).append(row)
        own: TextFormat = (
            SparkJson(mode=mode.lower(), zone="UTC")
            if name == "json"
            else SparkCsv(
                schema,
                separator=",",
                header=False,
                null_text="",
                doubled=doubled,
                fails=False,
                zone="UTC",
            )
        )
        return _compared(own, schema, place, lines, theirs)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows with times as numbers, since some are beyond Python's years."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_temporal(column.type):
            number = pa.int32() if pa.types.is_date(column.type) else pa.int64()
            rows = rows.set_column(place, column.name, rows.column(place).cast(number))
    values: list[dict[str, Any]] = rows.to_pylist()
    return values


def _compared(
    own: TextFormat,
    schema: pa.Schema,
    place: Path,
    lines: Sequence[str],
    theirs: dict[str, list[Any]],
) -> Compared:
    """Read lines by the own reader, and compare the rows."""
    result = Compared()
    taken: list[str] = []
    expected: list[Any] = []
    directory = Directory(place, None, None)
    for file in directory.list().files:
        line = lines[int(file.path)]
        result.lines += 1
        try:
            batches = [*own.read(directory, FileRange(file=file), [*schema])]
        except (ValueError, GodwitError, pa.ArrowException) as error:
            reason = re.sub(r"'.*'|\".*\"", "...", str(error))
            result.refused[reason[:80]] += 1
            continue
        ours = [row for batch in batches for row in _plain(pa.Table.from_batches([batch]))]
        taken.append(line)
        expected += ours
        if repr(ours) != repr(theirs.get(file.path, [])):
            result.different.append(f"{line!r}\n  own   {ours}\n  Spark {theirs.get(file.path)}")
    (place / "all").mkdir()
    (place / "all/lines").write_bytes("\n".join(taken).encode("utf-8", "surrogatepass"))
    whole = Directory(place / "all", None, None)
    batches = [
        batch
        for file in whole.list().files
        for batch in own.read(whole, FileRange(file=file), [*schema])
    ]
    if repr(_plain(pa.Table.from_batches(batches))) != repr(expected):
        result.different.append("the rows of all lines in one file")
    return result


def main() -> None:
    """Compare drawn lines, round by round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.files.openCostInBytes", "0")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for seed in range(given.seed, given.seed + given.rounds):
        for name, mode, line, doubled in (
            ("csv", "PERMISSIVE", line_of_csv, False),
            ("csv", "PERMISSIVE", line_of_csv, True),
            ("json", "PERMISSIVE", line_of_json, False),
            ("json", "DROPMALFORMED", line_of_json, False),
        ):
            draw = random.Random(seed)
            lines = [line(draw) for _ in range(given.lines)]
            compared = compare(spark, name, mode, lines, doubled=doubled)
            print(
                f"{name} {mode} seed {seed}: {compared.lines} lines, {compared.refused.total()} "
                f"refused, "
                f"{len(compared.different)} different"
            )
            for reason, count in compared.refused.most_common(10):
                print(f"{count:6} {reason}")
            for text in compared.different[:20]:
                print(text)


if __name__ == "__main__":
    main()
