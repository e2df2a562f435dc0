"""Lives of a flow over event time, and what they must have left: plain values and plain Python.

A round writes the flow down in another way that means the same (order of columns and of results,
the session's time zone), starts it, lets it end in one way or another, and may take a backup or go
back to one.  The last round closes everything.  Rows are never late, so whatever happened, each
window, session and pair comes out once.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["draw_rounds", "problems", "rows_of_file", "written_down"]

S = 1_000_000
BASE = 1_729_983_600 * S
"""An hour before summer time ends in Europe, so that windows lie on both sides."""
SLACK_S, WINDOW_S, GAP_S, BEFORE_S, AFTER_S, FILE_S = 300, 900, 400, -120, 240, 420
KEYS, ROWS = 12, 40
ZONES = ("UTC", "Etc/UTC", "Europe/Berlin", "America/St_Johns", "+05:30")
DEEDS = {"drain": 2, "available": 2, "held": 3, "handle": 3, "stop": 2, "kill": 3}


def draw_rounds(seed: int, count: int) -> list[dict[str, Any]]:
    """Draw what happens in so many rounds."""
    rng = random.Random(seed)
    rounds = []
    for number in range(count):
        last = number == count - 1
        rounds.append(
            {
                "files": rng.randint(0 if number else 1, 4),
                "deed": "close" if last else rng.choices([*DEEDS], [*DEEDS.values()])[0],
                "after_s": rng.uniform(0.0, 6.0),
                "migrations": rng.randint(0, 2),
                "backup": rng.choice(["", "", "before", "meanwhile"]),
                "restore": number > 1 and rng.random() < 0.35,
                "wait": rng.choice(["drain", "no"]),
                "zone": rng.choice(ZONES),
                "order": rng.randrange(2**32),
            }
        )
    return rounds


def written_down(names: list[str], order: int) -> list[str]:
    """Give names in the order of a round."""
    return random.Random(f"{order}{names}").sample(names, len(names))


def rows_of_file(seed: int, source: str, number: int) -> list[dict[str, int]]:
    """Rows of a source's file; those of a key are numbered on, moments are at most slack behind."""
    rng = random.Random(f"{seed} {source} {number}")
    seen: Counter[int] = Counter()
    rows = []
    for _ in range(ROWS):
        k = rng.randrange(KEYS)
        moment = number * FILE_S + rng.randrange(FILE_S + SLACK_S) - SLACK_S
        rows.append(
            {
                "k": k,
                "ts": BASE + moment * S,
                "number": number * ROWS + seen[k],
                "v": rng.randint(-50, 50),
            }
        )
        seen[k] += 1
    return rows


def problems(seed: int, directory: Path, files: int) -> Iterator[str]:
    """Say everything that is wrong with what a life left in ``directory/out``."""
    put = {
        source: [row for n in range(files) for row in rows_of_file(seed, source, n)]
        for source in ("left", "right")
    }
    wanted = {
        "windows": _windows(put["left"]),
        "sessions": _sessions(put["left"]),
        "pairs": _pairs(put["left"], put["right"]),
        "seen": _seen(put["left"]),
    }
    for name, expected in wanted.items():
        found = Counter(tuple(_plain(row)) for row in _rows(directory / "out" / name))
        if found != expected:
            lost, more = expected - found, found - expected
            yield (
                f"{name}: {lost.total()} of {expected.total()} lost, as {list(lost)[:2]},"
                f" {more.total()} more, as {list(more)[:2]}"
            )
    last: dict[int, tuple[int, int]] = {}
    for path in sorted(
        (directory / "out" / "totals").glob("epoch=*"), key=lambda path: int(path.name[6:])
    ):
        for part in path.glob("*.parquet"):
            for row in pq.ParquetFile(part).read().to_pylist():
                last[row["k"]] = (row["n"], row["s"])
    totals: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in put["left"]:
        totals[row["k"]] = (totals[row["k"]][0] + 1, totals[row["k"]][1] + row["v"])
    if last != totals:
        yield f"totals: {sorted(totals.items() - last.items())[:2]} expected of {len(totals)}"


def _rows(directory: Path) -> Iterator[dict[str, Any]]:
    if (directory / "_delta_log").exists():
        from deltalake import DeltaTable

        yield from DeltaTable(directory).to_pyarrow_table().to_pylist()
        return
    for part in directory.glob("epoch=*/*.parquet"):
        yield from pq.ParquetFile(part).read().to_pylist()


def _plain(row: dict[str, Any]) -> Iterator[Any]:
    for name in sorted(row):
        value = row[name]
        yield round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


def _made(**columns: int) -> tuple[int, ...]:
    return tuple(columns[name] for name in sorted(columns))


def _ms(moment: int) -> int:
    return moment // 1000


def _windows(rows: list[dict[str, int]]) -> Counter[tuple[int, ...]]:
    length = WINDOW_S * S
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        held[row["k"], row["ts"] // length * length].append(row["v"])
    return Counter(
        _made(k=k, window_start=_ms(at), window_end=_ms(at + length), n=len(v), s=sum(v))
        for (k, at), v in held.items()
    )


def _sessions(rows: list[dict[str, int]]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for k in range(KEYS):
        mine = sorted((row["ts"], row["v"]) for row in rows if row["k"] == k)
        open_: list[tuple[int, int]] = []
        for at, v in [*mine, (2**62, 0)]:
            if open_ and at > open_[-1][0] + GAP_S * S:  # a pause as long as the gap is in it
                bounds = {
                    "window_start": _ms(open_[0][0]),
                    "window_end": _ms(open_[-1][0] + GAP_S * S),
                }
                found[_made(k=k, n=len(open_), s=sum(v for _, v in open_), **bounds)] += 1
                open_ = []
            open_.append((at, v))
    return found


def _pairs(left: list[dict[str, int]], right: list[dict[str, int]]) -> Counter[tuple[int, ...]]:
    return Counter(
        _made(
            k=one["k"],
            number=one["number"],
            number_right=other["number"],
            ts=_ms(one["ts"]),
            ts_right=_ms(other["ts"]),
            v=one["v"],
            v_right=other["v"],
        )
        for one in left
        for other in right
        if one["k"] == other["k"] and BEFORE_S * S <= other["ts"] - one["ts"] <= AFTER_S * S
    )


def _seen(rows: list[dict[str, int]]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    sums: Counter[int] = Counter()
    for row in rows:
        sums[row["k"]] += row["v"]
        found[_made(k=row["k"], number=row["number"], so_far=sums[row["k"]])] += 1
    return found
