"""Key groups with little state move: copied in the background, or loaded by the next epoch.

Three executors with a lane each, in one process, as in `benchmarks.moved_state`; some key groups of
one of them move to the others, `live` and `disruptive` in turns.

    python -m benchmarks.small_state [--keys 10000 100000 500000] [--moves 20 86] [--rounds 3]

Printed are medians of CPU milliseconds: `median`, of an epoch before; `extra`, by which the next
eight epochs together are longer, all lanes together; `copies`, in the background; `both`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.moved_state import start
from benchmarks.options import read_options, temporary_directory

from godwit.migration import Strategy
from godwit.migration.messages import MigrationRequested

_BEFORE, _AFTER, _PARTS = 24, 8, 4


def played(keys: int, touched: int, moves: int, strategy: str) -> tuple[float, float, float]:
    """Move key groups; return CPU milliseconds of an epoch before, of longer ones, of copies."""
    rng = np.random.default_rng(1)
    with temporary_directory() as directory:
        run = start(Path(directory))
        for part in np.array_split(np.arange(keys), _PARTS):
            run.play(part)

        def epoch_ms() -> float:
            return 1000 * run.play(rng.integers(0, keys, touched))[0]

        before_ms = median([epoch_ms() for _ in range(_BEFORE)][_PARTS:])
        (name,) = run.view.components
        assignment = run.view.components[name].assignment
        moving = assignment.key_groups("a").tolist()[:moves]
        target = assignment.moved({g: "bc"[i % 2] for i, g in enumerate(moving)})
        run.between_s = 0.0
        run.coordinator.migrate(
            MigrationRequested(id="m", component=name, target=target, strategy=Strategy(strategy))
        )
        after_ms = sum(epoch_ms() for _ in range(_AFTER))
        return before_ms, after_ms - _AFTER * before_ms, 1000 * run.between_s


def main() -> None:
    arguments = read_options(
        __doc__, keys=[10_000, 100_000, 500_000], touched=50_000, moves=[20, 86], rounds=3
    )
    for keys in arguments.keys:
        for moves in arguments.moves:
            rows: dict[str, list[tuple[float, float, float]]] = {"live": [], "disruptive": []}
            for _ in range(arguments.rounds):
                for strategy, figures in rows.items():
                    figures.append(played(keys, arguments.touched, moves, strategy))
            for strategy, figures in rows.items():
                ms, extra, copies = (median(column) for column in zip(*figures, strict=True))
                both = median(a + b for _, a, b in figures)
                print(
                    f"{keys:>8,} keys, {moves:>3} moves, {strategy:>10}: median {ms:.0f}, "
                    f"extra {extra:.0f}, copies {copies:.0f}, both {both:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
