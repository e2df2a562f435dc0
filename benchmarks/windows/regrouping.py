"""Standstill of windows that are split and combined, and the cost of key groups that migrate.

    python -m benchmarks.windows.regrouping [--keys 10000 100000]

A window is open that has a row of every key, on three executors of a lane each: the real
coordinator, lanes, stores and checkpoint in one process without Spark.  Pauses are CPU time
of an epoch beyond the median of three before; background copies are not counted, as they run
beside epochs.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import read_options
from benchmarks.windows.instant import Stream
from tests.contract.windows_apart import WindowsApart

from godwit.control.windows import components_for
from godwit.migration import Strategy

if TYPE_CHECKING:
    from godwit.control.planners.splitting import WindowLayout

_PATIENCE = 200


class _Stream(Stream):
    """Such windows, whose copies in the background are not counted."""

    def __init__(self, directory: Path, keys: int, **options: Any) -> None:
        super().__init__(directory, keys, **options)
        self._copies, self._beside_s = self.run.run.run_background_copies, 0.0
        self.run.run.run_background_copies = self._copy  # type: ignore[method-assign]

    def _copy(self) -> None:
        """Make copies in the background, and note their time."""
        cpu = time.process_time()
        self._copies()
        self._beside_s += time.process_time() - cpu

    def epoch_ms(self) -> float:
        """CPU milliseconds of an epoch, without copies in the background."""
        beside_s = self._beside_s
        return super().epoch_ms() - (self._beside_s - beside_s) * 1e3

    def move(self, component: str, share: float, strategy: Strategy) -> None:
        """Let a share of the key groups of executor ``a`` take their rows at ``b``."""
        own = self.own_key_groups(component)
        own = own[: round(share * len(own))]
        if own:
            self.run.send(component, dict.fromkeys(own, "b"), strategy)

    def regroup(self, layout: WindowLayout) -> tuple[float, int]:
        """Change the layout; return the longest pause of an epoch, and how many it took."""
        usual, took = self.usual_ms(3), []
        part: Any = self.run.flow.operator("w_windows")
        components = components_for(self.run.flow, part, layout)
        WindowsApart.regroup(self.run, components)
        for _ in range(_PATIENCE):
            took.append(self.epoch_ms() - usual)
            if ("w_second" in self.run.view.components) == (layout == "split"):
                return max(0.0, *took), len(took)
        message = f"The windows are not {layout} after {_PATIENCE} epochs."
        raise AssertionError(message)


def pauses_ms(directory: Path, keys: int) -> dict[str, tuple[float, int]]:
    """Pause and epochs of splitting windows, and of combining them after their slots have moved."""
    stream = _Stream(directory, keys, consolidate="measured")
    split = stream.regroup("split")
    stream.move("w", 1.0, Strategy.INSTANT)
    return {"split": split, "combine": stream.regroup("combined")}


def spent_ms(directory: Path, keys: int, share: float, strategy: Strategy) -> float:
    """CPU milliseconds of two windows, in the first of which a share of the state migrates."""
    stream = _Stream(directory, keys)
    cpu = time.process_time()
    stream.move("w", share, strategy)
    stream.fill(2)
    stream.fill(70)  # closes the windows
    stream.run.settle()
    return (time.process_time() - cpu) * 1e3


def main() -> None:
    """Measure and print."""
    given = read_options(__doc__, keys=[10_000, 100_000])
    print("| keys | split: pause, epochs | combine: pause, epochs |")
    print("|---|---|---|")
    for keys in given.keys:
        with tempfile.TemporaryDirectory() as directory:
            pauses = pauses_ms(Path(directory), keys)
        cells = " | ".join(f"{pause:.0f} ms, {epochs}" for pause, epochs in pauses.values())
        print(f"| {keys:,} | {cells} |")


if __name__ == "__main__":
    main()
