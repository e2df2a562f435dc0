"""CPU time of an epoch in this process, by who spent it."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.manual_run import ManualRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.manual_run import Rows

    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink


class NoSinks(ManualRun):
    """A run whose lanes stage no output, which costs more than the operators of some flows."""

    def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:  # noqa: ARG002
        """Return no sinks."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """CPU milliseconds of an epoch; `phases` are wall milliseconds of the lanes' phases."""

    plan: float
    source: float
    lanes: float
    commit: float
    phases: Mapping[str, float]


def timed_epoch(run: ManualRun, rows: Rows) -> Took:
    """Run an epoch, and return what it took."""
    at_ms = {"begun": time.process_time() * 1e3}

    def mark(step: str, _epoch: int) -> None:
        at_ms[step] = time.process_time() * 1e3

    run.loop.at_step = mark
    _, reports = run.play(rows)
    phases: dict[str, float] = defaultdict(float)
    for report in reports:
        for phase, spent in report.took_ms.items():
            phases[phase] += spent
    return Took(
        plan=at_ms["planned"] - at_ms["begun"],
        source=at_ms["shipped"] - at_ms["planned"],
        lanes=at_ms["staged"] - at_ms["shipped"],
        commit=at_ms["committed"] - at_ms["staged"],
        phases=phases,
    )
