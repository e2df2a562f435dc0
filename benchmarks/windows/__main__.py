"""Compare windows, sessions and timers with native Spark's.

    python -m benchmarks.windows ROW... [--rounds N] [--epochs N] [--rows N] [--keys N]

Programs take turns, round by round and every other round in the other order, each in a fresh
process; an epoch of five minutes of event time is one file.  Rows that begin with ``own-`` are over
sources of Godwit's own; ``own`` stands for all of them.  Figures are medians over the second half
of a run, and ratios are within one round.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.streaming.measure import Measurement, in_turns, measure
from benchmarks.windows.inputs import timed_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Programs that are compared; a slow rival may be given fewer epochs."""

    about: str
    subject: str
    rivals: tuple[str, ...]
    epochs: int
    rows: int
    keys: int
    rival_epochs: int | None = None


ROWS: dict[str, Row] = {
    "four": Row(
        about="windows of 5, 10, 15 and 20 minutes, 1 M rows an epoch, 100 k keys",
        subject="godwit-four",
        rivals=("native-four-in-one", "native-four-queries"),
        epochs=24,
        rows=1_000_000,
        keys=100_000,
    ),
    "one": Row(
        about="one window of 5 minutes, 1 M rows an epoch, 100 k keys",
        subject="godwit-one",
        rivals=("native-one-memory", "native-one-rocksdb"),
        epochs=24,
        rows=1_000_000,
        keys=100_000,
    ),
    "sessions": Row(
        about="sessions of a gap of 30 seconds, 1 M rows an epoch, 100 k keys",
        subject="godwit-sessions",
        rivals=("native-sessions-memory", "native-sessions-rocksdb"),
        epochs=16,
        rows=1_000_000,
        keys=100_000,
    ),
    "timers": Row(
        about="a timer per key and epoch, 200 k keys",
        subject="godwit-timers",
        rivals=("native-timers",),
        epochs=12,
        rows=200_000,
        keys=200_000,
        rival_epochs=4,
    ),
}


ROWS |= {
    f"own-{name}": replace(
        row,
        about=f"{row.about}; own sources",
        subject=row.subject.replace("godwit-", "godwit-own-"),
        rivals=(row.subject, *row.rivals),
    )
    for name, row in (
        ("window", ROWS["one"]),
        ("four-windows", ROWS["four"]),
        ("sessions", ROWS["sessions"]),
    )
}


def compare(rows: dict[str, Row], package: str, about: str | None) -> None:
    """Run the rows that the command line names, of the programs of a package beside this one."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("row", nargs="+", choices=[*rows, "own", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--inputs", type=Path, default=Path("artifacts/inputs"))
    parser.add_argument("--json", type=Path, default=Path(f"artifacts/{package}.jsonl"))
    given = parser.parse_args()
    given.json.parent.mkdir(parents=True, exist_ok=True)
    for name, row in rows.items():
        if not {name, "all", "own" if name.startswith("own-") else "all"} & {*given.row}:
            continue
        print(f"\n{name}: {row.about}", flush=True)
        epochs = given.epochs or row.epochs
        of_rivals = min(epochs, row.rival_epochs or epochs)
        runs: dict[str, list[Measurement]] = {}
        for turn in range(given.rounds):
            for program in in_turns((row.subject, *row.rivals), turn):
                source = timed_rows(
                    given.inputs,
                    epochs=epochs if program.startswith("godwit") else of_rivals,
                    rows=given.rows or row.rows,
                    keys=given.keys or row.keys,
                )
                done = measure(program, source, module=f"benchmarks.{package}.programs")
                runs.setdefault(program, []).append(done)
                done.tell(turn, steady_ms(done))
        with given.json.open("a") as out:
            out.write(json.dumps(summary(name, row, runs)) + "\n")


def steady_ms(run: Measurement) -> float:
    """Median time of an epoch in the second half of a run."""
    return run.epoch_ms(skip=len(run.epochs) // 2)


def summary(name: str, row: Row, runs: dict[str, list[Measurement]]) -> dict[str, object]:
    """Print the ratios of a row, and return all figures."""
    subject = runs[row.subject]
    result: dict[str, object] = {
        "row": name,
        "epoch_ms": {program: [steady_ms(run) for run in of] for program, of in runs.items()},
        "last_epoch": subject[-1].epochs[-1],
    }
    for rival in row.rivals:
        ratios = [
            steady_ms(theirs) / steady_ms(own)
            for own, theirs in zip(subject, runs[rival], strict=True)
        ]
        print(
            f"  {rival} / {row.subject}: {median(ratios):.2f} in time "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
        result[rival] = ratios
    return result


if __name__ == "__main__":
    compare(ROWS, "windows", __doc__)
