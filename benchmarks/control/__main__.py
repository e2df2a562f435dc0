"""The controller beside nobody controlling: ``python -m benchmarks.control ROW [--small]``.

Rows: ``peers`` (no Spark, seconds), ``steps`` (no Spark, two seconds a step), ``days`` (no Spark,
some minutes), ``simulated`` (thirteen minutes), ``idle``, ``twice``, ``slow`` (two minutes each),
``predicted``, ``shuffled``, ``shuffled-zipf-1``, ``scale``, ``copies`` (up to five). Each prints a
table of figures beside their targets, and appends it to a file of JSON lines. ``--small`` only
shows that a row runs; its figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.control.days import days
from benchmarks.control.peers import peers
from benchmarks.control.predicted import predicted
from benchmarks.control.rows import idle, shuffled, slow, twice
from benchmarks.control.scaling import copies, scale
from benchmarks.control.simulated import simulated
from benchmarks.control.steps import steps

from godwit.placement.preview import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.control.figure import Figure

ROWS: dict[str, Callable[[], list[Figure]]] = {
    "peers": peers,
    "steps": steps,
    "days": days,
    "predicted": predicted,
    "simulated": simulated,
    "idle": idle,
    "twice": twice,
    "slow": slow,
    "shuffled": shuffled,
    "shuffled-zipf-1": partial(shuffled, zipf=1.0),
    "scale": scale,
    "copies": copies,
}
SMALL: dict[str, Callable[[], list[Figure]]] = {
    "peers": partial(peers, seeds=2),
    "steps": partial(steps, seeds=range(2)),
    "days": partial(days, day_s=60.0, num_days=3.0),
    "predicted": partial(predicted, phase_s=12.0),
    "simulated": partial(simulated, run_s=30.0, autoscalers=("ds2",)),
    "idle": partial(idle, seconds=8.0),
    "twice": partial(twice, period_s=4.0),
    "slow": partial(slow, period_s=4.0),
    "shuffled": partial(shuffled, seconds=15.0),
    "shuffled-zipf-1": partial(shuffled, seconds=15.0, zipf=1.0),
    "scale": partial(scale, keys=200_000, native=False),
    "copies": partial(copies, keys=200_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=sorted(ROWS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the first step in the rate")
    parser.add_argument("--steps", type=int, default=500, help="number of steps in the rate")
    parser.add_argument("--json", type=Path, default=Path("artifacts/control.jsonl"))
    given = parser.parse_args()
    began_s = time.monotonic()
    drawn = partial(steps, seeds=range(given.seed, given.seed + given.steps))
    figures = (SMALL if given.small else ROWS | {"steps": drawn})[given.row]()
    print(table(("figure", "measured", "target", ""), [f.row() for f in figures]))
    took_s = time.monotonic() - began_s
    print(f"{given.row}: {took_s:.0f} s")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    with given.json.open("a") as out:
        row = {"row": given.row, "small": given.small, "took_s": round(took_s, 1)}
        out.write(json.dumps({**row, "figures": [asdict(f) for f in figures]}) + "\n")


if __name__ == "__main__":
    main()
