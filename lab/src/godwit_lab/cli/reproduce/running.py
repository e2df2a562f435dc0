"""Run a figure and keep its result, whole or not at all.

A result is a directory: ``result.json``, ``data.csv``, ``figure.png`` and ``figure.svg``.  It is
written under another name and renamed, so whatever stops a run leaves no half of one.  A result
that was made by the same scripts with the same settings is not made again.

Invariant: a result that is read is judged by its data; a verdict in the file counts for nothing.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from godwit import __version__
from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce.dependencies import digest
from godwit_lab.cli.reproduce.figure import Check, Data, Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.cli.reproduce.catalogue import Entry
    from godwit_lab.cli.reproduce.figure import Figure, FigureResult, FigureRun, Row

RESULT = "result.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one figure, as it is on disk."""

    figure: str
    title: str
    place: str
    quick: bool
    seed: int
    off: bool
    version: str
    scripts: str  # digest of the script that made it, and of all that it imports
    seconds: float
    columns: dict[str, list[float | int | str | None]]  # data, by column
    checks: tuple[Check, ...] = ()  # for who reads the file; they follow from the data
    notes: tuple[str, ...] = ()
    data: str = ""  # directory of data sets that it was given

    @property
    def verdict(self) -> Verdict:
        """Verdict of the checks: agrees with the paper, partly, or no."""
        return verdict_of(self.checks)

    @property
    def table(self) -> Data:
        """Data of the figure."""
        names = list(self.columns)
        rows = zip(*self.columns.values(), strict=True)
        return Data(
            {n: v for n, v in zip(names, row, strict=True) if v is not None} for row in rows
        )

    def answers(self, entry: Entry, run: FigureRun) -> bool:
        """Return whether this result is of the same figure, options, data and scripts as a run."""
        mine = (self.figure, self.quick, self.seed, self.off, self.data, self.scripts)
        asked = (
            entry.name,
            run.quick,
            run.seed,
            run.off,
            _path_text(run.data),
            digest(entry.script),
        )
        return mine == asked


def _path_text(path: Path | None) -> str:
    """Return a path as text; empty if there is none."""
    return "" if path is None else str(path)


def place_of(out: Path, entry: Entry, *, off: bool = False) -> Path:
    """Return the directory of a figure's result; `off`: without its mechanism."""
    return out / (f"{entry.name}.off" if off else entry.name)


def stored(out: Path, entry: Entry, *, off: bool = False) -> Result | None:
    """Return a figure's stored result (`off`: without its mechanism); ``None`` if incomplete."""
    return read(place_of(out, entry, off=off) / RESULT, entry)


def read(path: Path, entry: Entry) -> Result | None:
    """Read a figure's result and judge its data; ``None`` if the file is missing or damaged."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
        return replace(result, checks=entry.load().judge(result.table))
    except (OSError, msgspec.DecodeError, ValueError):
        return None  # it is made again


def no_mechanism(entry: Entry) -> GodwitError:
    """Return the error that a figure has no mechanism to switch off."""
    return GodwitError(
        f"{entry.name} has no mechanism to switch off.",
        remedy="Leave out --off, or name a figure that --list marks with it.",
        figure=entry.name,
    )


def reproduce(entry: Entry, run: FigureRun, out: Path) -> Result:
    """Run a figure, store its result in `out`, and return it.

    Raises `GodwitError` if there is no mechanism to switch off, or the result cannot be written.
    """
    figure = entry.load()
    if run.off and not figure.mechanism:
        raise no_mechanism(entry)
    began = time.perf_counter()
    outcome = figure.run(run)
    data = Data(outcome.rows)
    result = Result(
        figure=entry.name,
        title=figure.title,
        place=str(figure.place),
        quick=run.quick,
        seed=run.seed,
        off=run.off,
        version=__version__,
        scripts=digest(entry.script),
        seconds=round(time.perf_counter() - began, 2),
        columns={name: list(values) for name, values in data.columns.items()},
        checks=figure.judge(data),
        notes=outcome.notes,
        data=_path_text(run.data),
    )
    try:
        _store(figure, outcome, result, place_of(out, entry, off=run.off))
    except OSError as error:
        raise GodwitError(
            f"The result of {entry.name} cannot be written to {out}: {error.strerror or error}.",
            remedy="Free space there, or name another directory with --out; nothing is left of it.",
            figure=entry.name,
            path=str(out),
        ) from error
    return result


def _store(figure: Figure, outcome: FigureResult, result: Result, place: Path) -> None:
    """Write all files of a result to a temporary directory, and rename it to `place`."""
    from godwit_lab.cli.reproduce import drawing  # noqa: PLC0415  matplotlib is slow to import

    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        target = scratch / "new"
        target.mkdir()
        _write_csv(target / "data.csv", outcome.rows)
        picture = drawing.draw(figure, outcome.rows)
        for suffix in ("png", "svg"):
            drawing.save(picture, target / f"figure.{suffix}")
        text = msgspec.json.format(msgspec.json.encode(result), indent=2)
        (target / RESULT).write_bytes(text + b"\n")
        with suppress(FileNotFoundError):
            place.rename(scratch / "old")
        target.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows that may have different columns."""
    listed = [dict(row) for row in rows]
    columns = list(dict.fromkeys(column for row in listed for column in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(listed)
