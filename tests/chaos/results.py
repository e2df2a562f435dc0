"""Starting a program that may die, and reading what it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.chaos.flow import Row, expected_final

__all__ = ["insist_on_each_row_once", "put", "rows_in_order", "run_program", "sink_epochs"]

_ROOT = Path(__file__).parents[2]
_SCHEMA = pa.schema({"k": pa.int32(), "number": pa.int64(), "act": pa.string()})
_OLDEST_S = 1_600_000_000


def put(directory: Path, number: int, rows: list[tuple[int, int, str]]) -> None:
    """Write one epoch's file; files are read in order of their numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(_SCHEMA)]
    hidden = directory / f"_{number:06d}"
    pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), hidden)
    # Spark orders files by their time of modification.
    os.utime(hidden, (_OLDEST_S + number, _OLDEST_S + number))
    hidden.rename(directory / f"{number:06d}.parquet")


def run_program(name: str, config: dict[str, Any], *, timeout_s: float = 240.0) -> int:
    """Run a program of this directory to its end; return its status (-9: killed)."""
    directory = Path(config["directory"])
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    log = directory / f"{name}.log"
    environment = os.environ | {
        # Functions are pickled by name; executors find them here too.
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("ab") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", f"tests.chaos.programs.{name}", str(path)],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGINT)  # it stops what it started
            try:
                program.wait(60)
            finally:
                program.kill()
            raise


def rows_in_order(directory: Path) -> list[tuple[int, tuple[Any, ...]]]:
    """(epoch, row) of everything in a Parquet sink, in order of epochs, and as staged in each."""
    found: list[tuple[int, tuple[Any, ...]]] = []
    for epoch in sorted(directory.glob("epoch=*"), key=lambda p: int(p.name[6:])):
        for path in sorted(epoch.glob("*.parquet")):
            rows = pq.ParquetFile(path).read().to_pylist()
            found.extend((int(epoch.name[6:]), tuple(row.values())) for row in rows)
    return found


def sink_epochs(directory: Path) -> dict[int, Counter[tuple[Any, ...]]]:
    """Epoch → its rows in a Parquet sink."""
    found: dict[int, Counter[tuple[Any, ...]]] = {}
    for epoch, row in rows_in_order(directory):
        found.setdefault(epoch, Counter())[row] += 1
    return found


def insist_on_each_row_once(out: Path, epochs: list[list[Row]]) -> None:
    """Check the sinks of the flow, however its rows were cut into epochs."""
    numbers = defaultdict(list)
    for _, (key, number) in rows_in_order(out / "order"):
        numbers[key].append(number)
    given = Counter(key for rows in epochs for key, *_ in rows)
    assert numbers == {key: list(range(count)) for key, count in given.items()}
    for sink in ("totals", "shards"):
        newest = {row[0]: row[1:] for _, row in rows_in_order(out / sink)}
        assert newest == expected_final(epochs, sink), sink
