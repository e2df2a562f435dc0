"""Tables of a lake as sources, beside a directory of the same Parquet files.

All subjects read the same files, in turns, on one core: the driver's part of an epoch (its end and
its splits) and the rows. A lake is a function in `LAKES`, which makes a table of Parquet files and
returns a source of it.

    python -m benchmarks.lake_sources [--rows 2000000] [--files 16] [--rounds 7]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import read_options

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.sources import Source


def rows_of(first: int, count: int) -> pa.Table:
    """Return rows of five columns, of numbers, text and times."""
    generator = np.random.default_rng(first)
    keys = generator.integers(0, count // 2 + 1, count)
    times = 1_700_000_000_000_000 + np.arange(first, first + count) * 10
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "key": keys,
            "name": pa.array(keys % 1000).cast(pa.string()),
            "price": generator.random(count),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def directory(path: Path, tables: list[pa.Table]) -> Source:
    """Return a source of the Parquet files of a directory."""
    path.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, path / f"{number}.parquet", compression="snappy")
    return gw.sources.parquet(path)


def delta(path: Path, tables: list[pa.Table]) -> Source:
    """Return a source of a Delta table to which the same files were added."""
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

    table = DeltaTable.create(str(path), tables[0].schema)
    for number, rows in enumerate(tables):
        file = path / f"{number}.parquet"
        pq.write_table(rows, file, compression="snappy")
        add = AddAction(
            path=file.name,
            size=file.stat().st_size,
            partition_values={},
            modification_time=number,
            data_change=True,
            stats=f'{{"numRecords": {rows.num_rows}}}',
        )
        table.create_write_transaction(
            [add], "append", table.schema(), commit_properties=CommitProperties()
        )
        table.update_incremental()
    return gw.sources.delta(path)


def iceberg(path: Path, tables: list[pa.Table]) -> Source:
    """Return a source of an Iceberg table to which the same files were added."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table.name_mapping import create_mapping_from_schema

    path.mkdir()
    uri, warehouse = f"sqlite:///{path}/catalog.db", f"file://{path}/warehouse"
    properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.rows", tables[0].schema)
    mapping = create_mapping_from_schema(table.schema()).model_dump_json()
    with table.transaction() as transaction:  # the files have no field ids
        transaction.set_properties({"schema.name-mapping.default": mapping})
    for number, rows in enumerate(tables):
        file = path / f"{number}.parquet"
        pq.write_table(rows, file, compression="snappy")
        table.add_files([f"file://{file}"])
    catalog.close()
    return gw.sources.iceberg("lake.rows", catalog=properties)


LAKES: Final[Mapping[str, Callable[[Path, list[pa.Table]], Source]]] = {
    "Delta": delta,
    "Iceberg": iceberg,
}


def read_all(source: Source) -> int:
    """Read all rows of a source in one epoch, after a start; return their number."""
    source.open(None)
    start = source.start()
    names = source.schema.names
    splits = source.splits(start, source.latest(start), 2)
    return sum(batch.num_rows for split in splits for batch in source.read(split, names))


def main() -> None:
    """Measure all subjects in turns; print the median times and their ratios."""
    options = read_options(__doc__, rows=2_000_000, files=16, rounds=7)
    size = options.rows // options.files
    tables = [rows_of(number * size, size) for number in range(options.files)]
    with tempfile.TemporaryDirectory() as temporary:
        subjects = {"Parquet files": directory(Path(temporary, "files"), tables)}
        for name, make in LAKES.items():
            subjects[name] = make(Path(temporary, name), tables)
        took_s: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(options.rounds + 1):
            order = list(subjects.items())
            for name, source in order if turn % 2 else reversed(order):
                began = time.perf_counter()
                assert read_all(source) == size * options.files, name
                if turn:  # the first is to warm up
                    took_s[name].append(time.perf_counter() - began)
    base = statistics.median(took_s["Parquet files"])
    for name, times in took_s.items():
        median = statistics.median(times)
        rate = size * options.files / median
        print(f"{name:16} {rate:12,.0f} rows/s  {median / base:5.2f}x as long as Parquet files")


if __name__ == "__main__":
    main()
