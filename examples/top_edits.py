"""Articles with most edits of every minute, by the place of the edit and in all.

    python examples/top_edits.py                      # edits of a generator
    python examples/top_edits.py wiki_edits.parquet   # columns ts and page

This is Real Job 1 of "Integrative Dynamic Reconfiguration in a Parallel Stream Processing Engine"
(Madsen et al.): GeoHash, the most edited articles of each cell, the most edited articles of all.
Nobody says where an edit of Wikipedia was made, so places are drawn evenly from Denmark, as there.
Key groups move while it runs, executors die, and both results are compared with those of pandas.
"""

import argparse
import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw

EDITS = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("page", pa.string()),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
    ]
)
LOCATED = pa.schema([("at", EDITS.field("at").type), ("page", pa.string()), ("cell", pa.string())])
DENMARK = ((54.5, 57.8), (8.0, 12.7))  # degrees of latitude and longitude
LETTERS = "0123456789bcdefghjkmnpqrstuvwxyz"
CELL = 4  # letters of a cell, which is some 20 by 39 km
TOP = 10


# -- the flow -------------------------------------------------------------------------------------


def geohash(latitude: np.ndarray, longitude: np.ndarray, letters: int = CELL) -> np.ndarray:
    """Encode places: bits of longitude and latitude in turn, five of them a letter."""
    bits = 5 * letters
    x = ((longitude + 180) / 360 * 2 ** (bits - bits // 2)).astype(np.int64)
    y = ((latitude + 90) / 180 * 2 ** (bits // 2)).astype(np.int64)
    code = np.zeros(len(x), np.int64)
    for at in range(bits):
        axis, length = (y, bits // 2) if at % 2 else (x, bits - bits // 2)
        code = code << 1 | (axis >> (length - 1 - at // 2) & 1)
    digits = code[:, None] >> np.arange(bits - 5, -1, -5) & 31
    codes: np.ndarray = np.array(list(LETTERS))[digits].astype(object).sum(axis=1)
    return codes


def locate(edits: pa.Table) -> pa.Table:
    """Put edits into cells."""
    cells = geohash(edits["latitude"].to_numpy(), edits["longitude"].to_numpy())
    return edits.select(["at", "page"]).append_column("cell", pa.array(cells, pa.string()))


def ranked(counts: Counter) -> list[tuple[str, int]]:
    """Return the most frequent articles; of several with as many edits those first in the order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP]


def top_of_cell(key: tuple[str], rows: gw.types.KeyRows, window: gw.types.Window) -> Iterator[Any]:
    for page, edits in ranked(Counter({row.page: row.edits for row in rows})):
        yield key[0], window.start, page, edits


def top_of_all(
    key: tuple[dt.datetime], rows: gw.types.KeyRows, _window: gw.types.Window
) -> Iterator[Any]:
    counts: Counter = Counter()
    for row in rows:
        counts[row.page] += row.edits
    yield from ((key[0], page, edits) for page, edits in ranked(counts))


def build(source: Any, store: Callable[[str], Any]) -> gw.Flow:
    """Describe the flow: a map, which has no state, and three operators.

    `store` makes the sink of a result.
    """
    flow = gw.Flow("top_edits", num_key_groups=100)
    minute = gw.tumbling("1 minute")
    edits = flow.source("edits", source, event_time="at", max_ahead="36500 days")
    located = edits.map(locate, schema=LOCATED)
    of_page = located.key_by("cell", "page").window(minute, name="pages").compute(edits=gw.count())
    of_cell = (
        of_page.key_by("cell")
        .window(minute, name="cells")
        .process(
            top_of_cell,
            output=gw.types.Output(
                "cell string, minute timestamp, page string, edits long", event_time="minute"
            ),
        )
    )
    top = (
        of_cell.key_by("minute")
        .window(minute, name="top")
        .process(top_of_all, output="minute timestamp, page string, edits long")
    )
    flow.sink("cells", of_cell, store("cells"))
    flow.sink("top", top, store("top"))
    return flow


# -- the oracle -----------------------------------------------------------------------------------


def halved(latitude: float, longitude: float) -> str:
    """Encode one place by halving the world, as GeoHash is defined."""
    low, high, code = [-180.0, -90.0], [180.0, 90.0], 0
    for at in range(5 * CELL):
        axis, value = (1, latitude) if at % 2 else (0, longitude)
        middle = (low[axis] + high[axis]) / 2
        (low if value >= middle else high)[axis] = middle
        code = 2 * code + (value >= middle)
    return "".join(LETTERS[code >> 5 * at & 31] for at in reversed(range(CELL)))


def expected(edits: pa.Table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compute the articles of cells, and of all, in pandas."""
    rows = edits.to_pandas()
    rows["minute"] = rows["at"].dt.floor("min")
    rows["cell"] = [halved(*place) for place in zip(rows.latitude, rows.longitude, strict=True)]
    order = {"by": ["edits", "page"], "ascending": [False, True]}
    counts = rows.groupby(["cell", "minute", "page"]).size().reset_index(name="edits")
    cells = counts.sort_values(**order).groupby(["cell", "minute"]).head(TOP)
    sums = cells.groupby(["minute", "page"], as_index=False).edits.sum()
    return cells, sums.sort_values(**order).groupby("minute").head(TOP)


# -- edits ----------------------------------------------------------------------------------------


def placed(at: Any, pages: Any, dice: np.random.Generator) -> pa.Table:
    """Make edits, at places that are drawn from Denmark."""
    (south, north), (west, east) = DENMARK
    columns = [at, pages, dice.uniform(south, north, len(at)), dice.uniform(west, east, len(at))]
    return pa.table(columns, names=EDITS.names).cast(EDITS)


def invented(count: int, per_second: float = 40, seed: int = 1) -> pa.Table:
    """Make edits of a generator: articles by Zipf's law."""
    dice = np.random.default_rng(seed)
    weights = 1 / np.arange(3, 2003)
    pages = dice.choice(2000, count, p=weights / weights.sum())
    micros = np.cumsum(dice.exponential(1e6 / per_second, count)).astype("timedelta64[us]")
    at = pa.array(np.datetime64("2008-01-01", "us") + micros)
    return placed(at, pa.array([f"article {page}" for page in pages]), dice)


def recorded(path: Path, count: int | None) -> pa.Table:
    """Read the first edits of a Parquet file, in the order of their times."""
    table = pq.read_table(path, columns=["ts", "page"]).sort_by("ts").slice(0, count)
    return placed(table["ts"], table["page"], np.random.default_rng(1))


# -- what runs it ---------------------------------------------------------------------------------


def play(edits: pa.Table, epochs: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Play the flow while key groups move and executors die; return both results."""
    dice, share = random.Random(seed), -(-len(edits) // epochs)
    flow = build(gw.sources.memory(EDITS), lambda _name: gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2) as run:
        for number in range(epochs):
            run.epoch({"edits": edits.slice(number * share, share)})
            if number % 3 == 2:
                run.add(f"new-{number}")
                run.kill(dice.choice([name for name in run.executors if name != f"new-{number}"]))
            else:
                run.migrate(
                    dice.choice(list(run.executors)),
                    component=dice.choice(list(run.placement.assignments)),
                )
        run.end_input()
        assert not run.late
        return run.rows("cells").to_pandas(), run.rows("top").to_pandas()


def check(edits: pa.Table, results: tuple[pd.DataFrame, pd.DataFrame]) -> tuple[int, int]:
    """Compare the articles of cells, and of all, with those of pandas; count articles, minutes."""
    for found, of_pandas in zip(results, expected(edits), strict=True):
        names = list(found.columns)
        pd.testing.assert_frame_equal(
            *(t[names].sort_values(names).reset_index(drop=True) for t in (found, of_pandas)),
            check_dtype=False,
        )
    return len(found), found.minute.nunique()


def main() -> None:
    """Read the command line, count, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("edits", nargs="?", help="a Parquet file; by default edits are invented")
    options.add_argument("--count", type=int, help="edits that are taken; by default 4000, or all")
    options.add_argument("--epochs", type=int, default=10)
    given = options.parse_args()
    path = given.edits or os.environ.get("GODWIT_EDITS")
    if path and not Path(path).exists():
        options.error(f"There is no {path}: name a Parquet file, or none for edits of a generator.")
    edits = recorded(Path(path), given.count) if path else invented(given.count or 4000)
    rows, minutes = check(edits, play(edits, given.epochs))
    print(f"{len(edits):,} edits of {minutes} minutes; {rows} articles are those of pandas")


if __name__ == "__main__":
    main()
