"""A cluster and a stream in one process: executors come, go and die when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tests.oracles.recording_ports import RecordingPorts

from godwit.migration import Policy, messages
from godwit.migration.coordinator import Coordinator, Warmed
from godwit.migration.outcome import EpochOutcome
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import KeyGroupLoad
from godwit.plan.explain import UserNames
from godwit.runtime.placement import QueryPlacement
from godwit.runtime.threads import EpochGate
from godwit.spark.platform.executor_pool import SparkExecutorPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.model.assignment import Assignment

__all__ = ["FakeScheduler", "FakeStream"]

STATE = ("totals", "state")
KEY_GROUPS = 12


class FakeScheduler:
    """A cluster manager that notes what it is asked, and that a test can let refuse."""

    def __init__(self, *, refusal: str = "", most: int | None = None) -> None:
        self.unsupported_reason, self.max_executors = refusal, most
        self.requests: list[int] = []
        self.ended: list[str] = []
        self.busy: set[str] = set()  # executors on which lanes stay: they are not given back
        self.takes = True
        self.raises: Exception | None = None

    def request(self, total: int) -> bool:
        if self.raises is not None:
            raise self.raises
        self.requests.append(total)
        return self.takes

    def give_back(self, executors: Sequence[str]) -> bool:
        if not self.takes or self.busy.intersection(executors):
            return False
        self.ended.extend(executors)
        return True


class FakeStream:
    """A query of one component whose epochs a test carries out, with a pool beside it."""

    def __init__(self, executors: Sequence[str], scheduler: FakeScheduler) -> None:
        self.ports, self.scheduler, self.gate = RecordingPorts(), scheduler, EpochGate()
        self.there = dict.fromkeys(executors, 1)
        first = even_assignment(KEY_GROUPS, list(executors), [1] * len(executors))
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id="r", executors=self.there, assignments={"totals": first}, committed=-1
            ),
            states={"totals": [STATE]},
            policy=Policy(),
            ports=self.ports,
        )
        self.names = UserNames(())
        self.now_s = 0.0
        self.pool = SparkExecutorPool(
            cast("Any", scheduler),
            coordinator=self.coordinator,
            gate=self.gate,
            patience_s=60.0,
            now_s=lambda: self.now_s,
            before_return=scheduler.busy.clear,
        )
        self.placement = QueryPlacement("totals", cast("Any", self))
        self.fails_to_warm, self.answers = False, True
        self._warmed = 0

    # -- what the placement asks of it ----------------------------------------------------------

    def state_bytes(self, _component: str) -> Any:
        """Bytes of state of each key group."""
        return np.arange(10, 10 + KEY_GROUPS)

    def carry_on(self) -> None:
        """Do nothing: the test carries out the epochs."""

    # -- the world ----------------------------------------------------------------------------

    def come(self, *names: str) -> None:
        """Let executors join."""
        self.there |= dict.fromkeys(names, 1)
        self.look()

    def die(self, *names: str) -> None:
        """Let executors die."""
        for name in names:
            del self.there[name]
        self.look()

    def look(self) -> None:
        """Let the coordinator see who is there; those that were given back are not."""
        for name in self.scheduler.ended:
            self.there.pop(name, None)
        self.coordinator.see(dict(self.there), self.pool.returned)

    def run(self) -> None:
        """Carry out an epoch, and answer what was ordered meanwhile."""
        epoch = self.coordinator.view.committed + 1
        self.ports.clock_s += 1.0
        with self.gate.epoch():
            plans = self.coordinator.begin(epoch)
            assert plans is not None
            plan = plans["totals"]
            held: dict[str, dict[int, int]] = {}
            for g in range(KEY_GROUPS):
                if g not in plan.suspended:
                    held.setdefault(plan.assignment.executor(g), {})[g] = epoch - 1
            self.coordinator.commit(_outcome(epoch, held, sorted(plan.suspended)))
        while self.answers and self._warmed < len(self.ports.warmings):
            order = self.ports.warmings[self._warmed]
            self._warmed += 1
            versions = dict.fromkeys(order.key_groups, epoch)
            with self.coordinator.locked() as coordinator:
                if self.fails_to_warm:
                    coordinator.warming_failed(order, "no room")
                else:
                    coordinator.warmed(order, Warmed(tables={STATE: versions}, reach=versions))
        self.look()

    def owned(self) -> dict[str, int]:
        """Executor → key groups it owns, of those that own any."""
        assignment = self.assignment
        counts = {name: len(assignment.key_groups(name)) for name in assignment.executors}
        return {name: count for name, count in counts.items() if count}

    @property
    def assignment(self) -> Assignment:
        return self.coordinator.view.components["totals"].assignment


def _outcome(
    epoch: int, held: Mapping[str, Mapping[int, int]], waited: Sequence[int]
) -> EpochOutcome:
    ones = np.ones(KEY_GROUPS, np.int64)
    return EpochOutcome(
        epoch=epoch,
        batch=epoch,
        loads={
            "totals": KeyGroupLoad(
                key_groups=np.arange(KEY_GROUPS),
                rows=ones,
                keys=ones,
                cpu_ms=np.ones(KEY_GROUPS),
                state_bytes=np.arange(10, 10 + KEY_GROUPS),
            )
        },
        waited={"totals": tuple(waited)},
        reach={"totals": held},
        tables={executor: {STATE: versions} for executor, versions in held.items()},
    )
