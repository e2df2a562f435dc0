"""A line of a file is a row, or is bad, whichever other lines are parsed with it.

Drawn files of CSV and JSON are read as a whole, with a bad line more at either end, in small
blocks, and a few rows at a time.  The good rows and the bad lines are the same each time.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.connect.files import text_formats
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = ["0", "7", "-0", "-0.0", "1.0", "1e2", "1E-12", "127", "128", "9" * 19, "9" * 39, "0.1"]
NUMBERS += ["1.25", "1e39", "1e400", "-1e-400", "01", "+1", ".5", "1.", "0x1F", "1_0", "--1", ""]
NUMBERS += ["16777217", "2048.5", "1e-45", "NaN", "-Infinity", "nan", " 7", "7\t", "null"]
TIMES = ["2026-01-02", "2026-01-02T03:04:05", "2026-01-02 03:04:05.123456", "2026-01-02T03"]
TIMES += ["2026-01-02T03:04:05Z", "2026-01-02 03:04+02:00", "2026-01-02T24:00:00", "0000-01-01"]
TIMES += ["2026-02-30", "2026-01-02T03:04:05.1234567Z", "10000-01-01", "0001-01-01T00:00:00+01:00"]
TIMES += [" 2026-01-02", "2026-01-02T03:04:05 UTC", "20260102", "9999-12-31 23:59:59-01:00"]
WORDS = ["", "a", "true", "FALSE", "1", "NULL", "N/A", "\u00fc", "a b", "AAA=", "\u2028", "\x0b"]
TYPES = ["tinyint", "bigint", "float", "double", "decimal(5, 2)", "decimal(38, 0)", "boolean"]
TYPES += ["date", "timestamp", "timestamp_ntz", "string", "binary"]
TIMED = {"date", "timestamp", "timestamp_ntz"}
CSV_BAD = ["bad"] * 6  # too many values
JSON_BAD = b'{"bad":'
MARK = b"\xef\xbb\xbf"  # of UTF-8, at the begin of some files


def text_for(draw: random.Random, dtype: str) -> str:
    """Text that is a value of a type, or nearly one."""
    if draw.random() < 0.6:  # a usual one
        if dtype in TIMED:
            return f"2026-01-{draw.randrange(1, 29):02}"
        return draw.choice(["a", "bc"]) if dtype == "string" else draw.choice(["0", "1"])
    return draw.choice(TIMES if dtype in TIMED else NUMBERS + WORDS)


def csv_line(draw: random.Random, types: list[str], options: dict[str, Any]) -> bytes:
    """Line of CSV that may have any fault."""
    delimiter, quote = options["delimiter"], options["quote"] or '"'
    cells = []
    for dtype in types:
        cell = text_for(draw, dtype)
        if draw.random() < 0.2:
            cell = cell.replace(quote, quote * 2)
            inner = ["", "", delimiter, quote * 2, "\\" + quote, "\\\\", "\r", "\\"]
            cell = quote + cell + draw.choice(inner) + quote
        elif draw.random() < 0.1:
            marks = [
                f"5{quote} pipe",
                quote,
                "\\",
                "\\\\",
                "\\" + delimiter,
                "\\" + quote,
            ]
            cell += draw.choice(marks)
        cells.append(cell)
    if draw.random() < 0.05:
        cells = cells[1:] if draw.random() < 0.5 else [*cells, ""]
    line: bytes = delimiter.join(cells).encode()
    if draw.random() < 0.1:
        place = draw.randrange(len(line) + 1)
        some = [
            quote.encode(),
            b"\xff",
            b"\r",
            b"\\",
            b" ",
            b"\0",
            delimiter.encode(),
            MARK,
        ]
        line = line[:place] + draw.choice(some) + line[place:]
    return line


def json_value(draw: random.Random, dtype: str, depth: int = 0) -> str:
    """Text of a value in JSON that is one of a type, or nearly one."""
    if draw.random() < 0.04:
        return draw.choice(["null", "true", "[]", "{}", "[1]", '{"x": 1}', '"x"', "1", "[" * 40])
    if dtype.startswith("array"):
        inner = [json_value(draw, dtype[6:-1], depth + 1) for _ in range(draw.randrange(3))]
        return f"[{', '.join(inner)}]"
    if dtype.startswith("struct"):
        names = [n for n in ("x", "y", "x") if draw.random() < (0.9 if n == "y" else 0.5)]
        inner = [f'"{name}": {json_value(draw, dtype[9:-1], depth + 1)}' for name in names]
        return f"{{{', '.join(inner)}}}"
    if dtype.startswith("map"):
        names = draw.choices(["1", "01", "a", "-0", "1.0"], k=draw.randrange(3))
        return f"{{{', '.join(f'{name!r}: 1' for name in names)}}}".replace("'", '"')
    text = text_for(draw, dtype)
    if dtype in {"tinyint", "bigint", "float", "double", "boolean"}:
        return text if draw.random() < 0.9 else f'"{text}"'
    if dtype.startswith("decimal"):
        return text if draw.random() < 0.5 else f'"{text}"'
    escapes = ["\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\u0000", "\t", "\\x", "\x7f"]
    return f'"{text}{draw.choice(escapes) if draw.random() < 0.1 else ""}"'


def json_line(draw: random.Random, types: list[str]) -> bytes:
    """Line of JSON that may have any fault."""
    fields = [(f"c{n}", json_value(draw, dtype)) for n, dtype in enumerate(types)]
    while draw.random() < 0.15:
        extra = (
            draw.choice(["c0", "more", "", "\\u00630"]),
            draw.choice([*NUMBERS[:12], '"\xe9"']),
        )
        fields.insert(draw.randrange(len(fields) + 1), extra)
    space = draw.choice(["", "", " ", "\t"])
    line = ("{" + ",".join(f'"{n}":{space}{v}' for n, v in fields) + "}" + space).encode()
    if draw.random() < 0.1:
        place = draw.choice([0, len(line), draw.randrange(len(line) + 1)])
        some = [
            b'"',
            b"\xff",
            b"\r",
            b"\\",
            b" ",
            b"\0",
            b"}",
            b"{",
            b",",
            MARK,
            b"\x0b",
        ]
        some += [b"{}", b"\0{}", b"/**/", b"]", b"\x1e"]
        line = line[:place] + draw.choice(some) + line[place:]
    return line


def read_all(
    kind: str,
    lines: list[bytes],
    directory: Path,
    *,
    mark: bytes,
    rows: int | None = None,
    **options: Any,
) -> tuple[list[str], Counter[bytes]] | None:
    """Good rows and bad lines of a file; ``None`` if it is refused."""
    directory = directory / kind
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "1").write_bytes(mark + b"\n".join(lines) + b"\n")
    source = getattr(gw.sources, kind)(directory, max_rows_per_epoch=rows, **options)
    source.open(None)
    good, bad, position = list[str](), Counter[bytes](), source.start()
    try:
        for _ in range(1000):
            end = source.latest(position)
            if end == position:
                return good, bad
            for split in source.splits(position, end, 1):
                for batch in source.read(split, source.schema.names):
                    if isinstance(batch, pa.RecordBatch):
                        good += map(repr, batch.to_pylist())
                    else:
                        bad.update(batch.rows["value"].to_pylist())
            position = end
    except SourceError:
        return None
    raise AssertionError


def check(kind: str, lines: list[bytes], directory: Path, **options: Any) -> None:
    """Assert that it does not matter how a file is read; its first line may be a header."""
    bad_line = JSON_BAD if kind == "json" else options["delimiter"].join(CSV_BAD).encode()
    lines[0] = lines[0].removeprefix(MARK)
    header = 1 if kind == "csv" and options.get("header", True) else 0
    readings = {
        "whole": lines,
        "bad at the end": [*lines, bad_line],
        "bad at the begin": [*lines[:header], bad_line, *lines[header:]],
    }
    outcomes: dict[str, Any] = {}
    for skipping in (True, False):
        own = {**options, "on_bad": "skip" if skipping else "refuse"}
        for name, text in readings.items() if skipping else [("whole", lines)]:
            outcome = read_all(kind, text, directory, **own)
            if name != "whole" and outcome is not None:
                outcome[1].subtract([bad_line])
            outcomes[name] = outcome
        for number in (1, 40):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(text_formats, "_BLOCK_BYTES", number)
                outcomes[f"blocks of {number}"] = read_all(kind, lines, directory, **own)
        for rows in (1, 3):
            outcomes[f"{rows} rows"] = read_all(kind, lines, directory, rows=rows, **own)
        for name, outcome in outcomes.items():
            whole = outcomes["whole"]
            if outcome is not None and whole is not None:
                assert outcome[0] == whole[0], (name, skipping, options, lines)
                assert +outcome[1] == +whole[1], (name, skipping, options, lines)
            assert (outcome is None) == (whole is None), (name, skipping, options, lines)
        outcomes = {}


def check_drawn(seed: int, directory: Path) -> None:
    """Check a drawn file."""
    draw = random.Random(seed)
    kind = draw.choice(["csv", "json"])
    types = [draw.choice(TYPES) for _ in range(draw.choice([1, 2, 2, 3]))]
    options: dict[str, Any] = {}
    if kind == "csv":
        options = {
            "delimiter": draw.choice([",", ",", ";", "\t", "|"]),
            "quote": draw.choice(['"', '"', '"', "'", None]),
            "escape": draw.choice([None, None, "\\"]),
            "header": draw.random() < 0.8,
            "null_values": draw.choice([[""], ["", "NULL"], []]),
        }
        lines = [csv_line(draw, types, options) for _ in range(draw.choice([2, 8, 30]))]
        if options["header"]:
            lines.insert(0, options["delimiter"].join(f"c{n}" for n in range(len(types))).encode())
        end = draw.choice([b"", b"", b"\r"])
        lines = [line + end for line in lines]
    else:
        shapes = ["{}", "{}", "array<{}>", "struct<y: {}>", "map<string, int>"]
        types = [draw.choice(shapes).format(dtype) for dtype in types]
        lines = [json_line(draw, types) for _ in range(draw.choice([2, 8, 30]))]
    if draw.random() < 0.3:
        blanks = [b"", b"\r", b" "] if kind == "json" else [b"", b"\r"]
        lines.insert(draw.randrange(1, len(lines) + 1), draw.choice(blanks))
    mark = MARK if draw.random() < 0.1 else b""
    options["schema"] = {f"c{n}": dtype for n, dtype in enumerate(types)}
    check(kind, lines, directory, mark=mark, **options)


@pytest.mark.parametrize("part", range(4))
def test_a_line_is_good_or_bad_wherever_a_file_is_cut(part: int, tmp_path: Path) -> None:
    for seed in range(part * 40, part * 40 + rounds(10, 40)):
        check_drawn(seed, tmp_path)
