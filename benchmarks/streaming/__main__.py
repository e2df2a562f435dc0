"""Compare Godwit with native Spark: ``python -m benchmarks.streaming WORKLOAD [--rounds N]``.

Programs take turns, round by round and every other round in the other order, each in a fresh
process and once what the one before has written is on the disk; figures are medians over the steady
epochs of all rounds, and ratios are within one round.

Rows that begin with ``own-`` are over sources of Godwit's own; ``own`` stands for all of them.
Windows over own sources are rows of ``python -m benchmarks.windows``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.streaming.inputs import held_keys, keyed_rows
from benchmarks.streaming.measure import Measurement, in_turns, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Programs over inputs that are compared, and the number of warm-up epochs."""

    about: str
    subjects: tuple[tuple[str, dict[str, object]], ...]
    rivals: tuple[tuple[str, dict[str, object]], ...]
    skip: int


AGGREGATES = ("native-memory", "native-rocksdb")
PYTHON = ("transform-with-state", "apply-in-pandas")


def _same(programs: tuple[str, ...], **source: object) -> tuple[tuple[str, dict[str, object]], ...]:
    return tuple((program, source) for program in programs)


def _workload(
    about: str,
    subject: str,
    rivals: tuple[str, ...],
    skip: int,
    *,
    own_epochs: int | None = None,
    **source: object,
) -> Workload:
    """Compare over one kind of input; slow rivals may be given fewer epochs of it."""
    own = source if own_epochs is None else {**source, "epochs": own_epochs}
    return Workload(
        about=about, subjects=_same((subject,), **own), rivals=_same(rivals, **source), skip=skip
    )


_UNIFORM = {"epochs": 20, "rows": 1_000_000, "keys": 1_000_000}
_ZIPF = {"epochs": 30, "rows": 1_000_000, "keys": 100_000, "zipf": 1.0}
_SMALL = {"epochs": 60, "rows": 1_000, "keys": 1_000_000}

WORKLOADS = {
    "uniform": _workload(
        "sum and count, 1 M uniform string keys, 1 M rows an epoch",
        "godwit",
        AGGREGATES,
        10,
        **_UNIFORM,
    ),
    "zipf": _workload(
        "sum and count, 100 k Zipf(1) string keys, 1 M rows an epoch",
        "godwit",
        AGGREGATES,
        15,
        **_ZIPF,
    ),
    "small": _workload(
        "sum and count, 1,000 rows an epoch",
        "godwit",
        AGGREGATES,
        30,
        **_SMALL,
    ),
    "python-20k": _workload(
        "a Python function per key with state, 20 k keys, 1 M rows an epoch",
        "godwit-process",
        PYTHON,
        1,
        own_epochs=20,
        epochs=3,
        rows=1_000_000,
        keys=20_000,
    ),
    "python-200k": _workload(
        "a Python function per key with state, 200 k keys, 200 k rows an epoch",
        "godwit-process",
        PYTHON,
        1,
        own_epochs=20,
        epochs=2,
        rows=200_000,
        keys=200_000,
    ),
    "sinks": _workload(
        "into Parquet and Delta, beside no sink: 1 M uniform keys, 1 M rows (630 k out) an epoch",
        "godwit",
        ("godwit-parquet", "godwit-delta"),
        10,
        epochs=20,
        rows=1_000_000,
        keys=1_000_000,
    ),
    "key-groups": _workload(
        "20 k rows an epoch over 100 k keys, two lanes: 4,096 and 32,768 key groups beside 256",
        "godwit-256-key-groups",
        ("godwit-4096-key-groups", "godwit-32768-key-groups"),
        10,
        epochs=20,
        rows=20_000,
        keys=100_000,
    ),
    "lanes": _workload(
        "20 k rows an epoch over 100 k keys, two cores: many lanes beside two",
        "godwit-2-lanes",
        ("godwit-8-lanes", "godwit-32-lanes", "godwit-128-lanes", "godwit-256-lanes"),
        8,
        epochs=16,
        rows=20_000,
        keys=100_000,
    ),
    **{
        f"own-{name}": _workload(
            f"{about}; own sources", "godwit-own", ("godwit", *AGGREGATES), skip, **source
        )
        for name, about, skip, source in (
            ("uniform", "1 M uniform keys", 10, _UNIFORM),
            ("zipf", "100 k Zipf(1) keys", 15, _ZIPF),
            ("small", "1,000 rows an epoch", 30, _SMALL),
        )
    },
    **{
        f"own-python-{name}": Workload(
            about=f"a Python function per key with state, {about}; own sources",
            subjects=_same(("godwit-own-process",), epochs=20, **source),
            rivals=(
                *_same(("godwit-process",), epochs=20, **source),
                *_same(PYTHON, epochs=rival_epochs, **source),
            ),
            skip=5,
        )
        for name, about, rival_epochs, source in (
            ("20k", "20 k keys, 1 M rows an epoch", 3, {"rows": 1_000_000, "keys": 20_000}),
            ("200k", "200 k keys, 200 k rows an epoch", 2, {"rows": 200_000, "keys": 200_000}),
        )
    },
    "held": Workload(
        about="100 k keys touched an epoch, 10 M held against 1 M held (Godwit against itself)",
        subjects=(("godwit", {"held": 10_000_000, "touched": 100_000, "epochs": 12}),),
        rivals=(("godwit", {"held": 1_000_000, "touched": 100_000, "epochs": 12}),),
        skip=-10,
    ),
}


def _input(directory: Path, source: dict[str, object]) -> Path:
    make = held_keys if "held" in source else keyed_rows
    return make(directory, **source)  # type: ignore[operator]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="+", choices=[*WORKLOADS, "own", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inputs", type=Path, default=Path("artifacts/inputs"))
    parser.add_argument("--json", type=Path, default=Path("artifacts/streaming.jsonl"))
    given = parser.parse_args()
    names = [
        name
        for name in WORKLOADS
        if {name, "all", "own" if name.startswith("own-") else "all"} & {*given.workload}
    ]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        workload = WORKLOADS[name]
        print(f"\n{name}: {workload.about}", flush=True)
        runs: dict[int, list[Measurement]] = {}
        parties = [*workload.subjects, *workload.rivals]
        for turn in range(given.rounds):
            for i, (program, source) in in_turns(list(enumerate(parties)), turn):
                done = measure(program, _input(given.inputs, source))
                runs.setdefault(i, []).append(done)
                done.tell(turn, done.epoch_ms(skip=workload.skip))
        summary = _summary(name, workload, runs)
        with given.json.open("a") as out:
            out.write(json.dumps(summary) + "\n")


def _summary(
    name: str, workload: Workload, runs: dict[int, list[Measurement]]
) -> dict[str, object]:
    subject = runs[0]
    result: dict[str, object] = {
        "workload": name,
        "epoch_ms": {"subject": [m.epoch_ms(skip=workload.skip) for m in subject]},
        "last_epoch": subject[-1].epochs[-1],
    }
    for i, (program, _) in enumerate(workload.rivals, 1):
        ratios = [
            rival.epoch_ms(skip=workload.skip) / own.epoch_ms(skip=workload.skip)
            for own, rival in zip(subject, runs[i], strict=True)
        ]
        memory = median(r.peak_bytes / o.peak_bytes for o, r in zip(subject, runs[i], strict=True))
        print(
            f"  {program} / {workload.subjects[0][0]}: {median(ratios):.2f} in time "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {memory:.2f} in peak memory"
        )
        result[program] = {"time_ratios": ratios, "memory_ratio": memory}
    return result


if __name__ == "__main__":
    main()
