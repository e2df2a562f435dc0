"""Expected results, computed from the topic or the files themselves, as any reader sees them."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kafka_broker import KafkaBroker

__all__ = ["Contents", "problems"]

_HOUR = dt.timedelta(hours=1)
_COLUMNS = {
    "totals": ("k", "n", "total", "newest"),
    "rows": ("k", "n", "rows"),
    "windows": ("k", "window_start", "n", "total"),
}

Row = tuple[Any, ...]


@dataclass(slots=True)
class Contents:
    """What the flow reads, in order within each key."""

    keys: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    bad: list[Row] = field(default_factory=list)  # what nobody can read, by its place

    @classmethod
    def of_topic(cls, broker: KafkaBroker, name: str) -> Contents:
        """Read the committed messages of a topic from its beginning."""
        contents = cls()
        for message in broker.read(name):
            contents._add(message.value(), message.partition(), message.offset())
        return contents

    @classmethod
    def of_files(cls, directory: Path) -> Contents:
        """Read the lines of all whole files, in the order in which they were put."""
        contents = cls()
        for path in sorted(directory.glob("[0-9]*.json")):
            for line in path.read_bytes().splitlines():
                contents._add(line, str(path))
        return contents

    def _add(self, value: bytes, *place: Any) -> None:
        try:
            row = json.loads(value)
        except ValueError:
            row = {}
        if isinstance(row.get("k"), int):
            self.keys[row["k"]].append(row)
        else:
            self.bad.append((*place, value))

    def expected(self, kind: str) -> Counter[Row]:
        """Rows of a sink, with totals after every row."""
        if kind == "rejects":
            return Counter(self.bad)
        return Counter(row for key in self.keys for row in self._of_key(kind, key))

    def _of_key(self, kind: str, key: int) -> Iterator[Row]:
        total = 0
        windows: dict[dt.datetime, list[int]] = defaultdict(list)
        for count, row in enumerate(self.keys[key], 1):
            total += row["v"]
            if kind == "totals":
                yield key, count, total, row["n"]
            elif kind == "rows":
                yield key, row["n"], count
            at = dt.datetime.fromisoformat(row["at"])
            windows[at.replace(minute=0, second=0, microsecond=0)].append(row["v"])
        if kind == "windows":
            for start, values in windows.items():
                yield key, start, len(values), sum(values)


def problems(
    broker: KafkaBroker, told: dict[str, Any], contents: Contents, *, ended: bool
) -> Iterator[str]:
    """Say everything that is wrong with what stands at the targets."""
    for kind, target in {**told["outputs"], "rejects": told["rejects"]}.items():
        if kind == "windows" and not ended:
            continue
        rows, ordered = _delivered(broker, told, kind, target)
        found, expected = Counter(rows), contents.expected(kind)
        where = f"{kind} in {target}"
        if kind != "totals":
            if found != expected:
                yield f"{where}: {_some(expected - found)} lost, {_some(found - expected)} too many"
            continue
        # How many rows of a key an epoch has is the epoch's affair, what comes of them is not.
        if found - expected:
            yield f"{where}: {_some(found - expected)} too many"
        last = {(key, len(of)) for key, of in contents.keys.items()}
        if last - {row[:2] for row in rows}:
            yield f"{where}: the newest totals of {_some(last - {row[:2] for row in rows})} lost"
        counts: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            counts[row[0]].append(row[1])
        if ordered and any(of != sorted(of) for of in counts.values()):
            yield f"{where}: out of order"


def _some(rows: Any) -> str:
    return f"{len(rows)} ({sorted(rows, key=repr)[:3]})"


def _delivered(
    broker: KafkaBroker, told: dict[str, Any], kind: str, target: str
) -> tuple[list[Row], bool]:
    """Rows at a target, and whether those of a key are in their order."""
    place = Path(told["directory"]) / "out" / kind
    rows: Sequence[dict[str, Any]]
    match target:
        case "kafka":
            values = broker.values(told["targets"][kind])
            rows = [_plain(json.loads(value)) for value in values if value is not None]
        case "parquet":
            epochs = sorted(place.glob("epoch=*"), key=lambda path: int(path.name[6:]))
            files = [path for epoch in epochs for path in sorted(epoch.glob("*.parquet"))]
            rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
        case "delta":
            from deltalake import DeltaTable

            rows = DeltaTable(str(place)).to_pyarrow_table().to_pylist() if place.exists() else []
        case _:
            rows = _in_postgres(told["dsn"], told["targets"][kind])
    place_of_bad = ("partition", "offset") if told["topic"] else ("path",)
    names = (*place_of_bad, "value") if kind == "rejects" else _COLUMNS[kind]
    of = [tuple(_in_utc(row[name]) for name in names) for row in rows]
    return of, target in ("kafka", "parquet")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Values of a row as they were before they were JSON."""
    if "window_start" in row:
        row["window_start"] = dt.datetime.fromisoformat(row["window_start"])
    if "value" in row:
        row["value"] = base64.b64decode(row["value"])
    return row


def _in_utc(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _in_postgres(dsn: str, table: str) -> list[dict[str, Any]]:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.Connection.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
