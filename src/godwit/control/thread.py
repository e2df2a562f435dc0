"""The controller's thread, which no epoch ever waits for.

Problem: planning may take a second, and a function of the user's any time; epochs go on meanwhile.

Invariant: an epoch hands over what it did and continues; the coordinator's lock is held only for as
long as one query or one command takes, never while anything is planned; errors of the controller
become events and stop neither the controller nor the stream.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.journal import read_last
from godwit.control.loop import Controller
from godwit.control.memory import ControllerMemory
from godwit.control.pending_files import PendingFiles
from godwit.engine.policies import topology_of
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from godwit.checkpoint.records import BatchRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.control.policy import PolicyLoop
    from godwit.control.settings import Control
    from godwit.engine.cluster import ExecutorPool
    from godwit.engine.policies import CommittedEpoch
    from godwit.migration.coordinator import Coordinator
    from godwit.model.latency import LatencyHistogram
    from godwit.plan.compiled import CompiledFlow

_LOOK_S = 0.25
_JOURNAL_ENTRIES = 2000
_NOTED_EVERY_S = 5.0
_MEMORY = "controller"
"""Kind of the journal's entries with the controller's memory."""


def last_memory(storage: CheckpointStorage) -> ControllerMemory | None:
    """Return the last controller's state from the journal; ``None`` if it has none."""
    memories = read_last(storage, _JOURNAL_ENTRIES, _MEMORY, ControllerMemory.from_dict)
    return memories[-1] if memories else None


class SteadyClock:
    """Unix time that never runs backwards: the scale of the journal's events."""

    def __init__(self) -> None:
        self._unix_offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Return a monotonic time in seconds."""
        return time.monotonic() + self._unix_offset_s


class ControllerThread:
    """Runs a controller on a separate thread."""

    # called after every epoch: backlog of the sources in rows, or ``None`` if they do not report
    # it. The driver of the epochs replaces this default.
    backlog_rows: Callable[[], int | None] = staticmethod(lambda: None)

    def __init__(
        self,
        settings: Control,
        flow: CompiledFlow,
        *,
        coordinator: Coordinator,
        pool: ExecutorPool | None,  # adds and removes executors; ``None``: their number is fixed
        # component → key group → bytes of state when the run begins
        state_bytes: Mapping[str, Mapping[int, int]],
        past: list[events.Event],  # events of earlier runs, oldest first
        memory: ControllerMemory | None = None,  # what the controller of the run before left
        # takes a kind of entry and a function that makes it, for the journal
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None] | None = None,
        trigger_s: float = 0.0,  # least time between the beginnings of epochs with input
        limits_epochs: bool = False,  # whether epochs of an overloaded stream get fewer rows
        stated: Iterable[str] = (),  # operators whose components the options of the start name
    ) -> None:
        longest_s = settings.longest_epoch_s(trigger_s) if limits_epochs else None
        self._topology_of = partial(
            topology_of,
            trigger_s=trigger_s,
            longest_epoch_s=math.inf if longest_s is None else longest_s,
        )
        self._clock = SteadyClock()
        self._coordinator = coordinator
        self._controller = Controller(
            settings,
            topology=self._topology_of(flow),
            migrations=coordinator,
            pool=pool,
            clock=self._clock,
            state_bytes=state_bytes,
            past=past,
            memory=memory,
            stated=stated,
        )
        self._note_memory, self._noted_s = note, self._clock.now_s()
        self._pending = PendingFiles()
        self._pending_rows = 0  # in files, as of the last time that they were looked at
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._status: Mapping[str, Any] = self._controller.status
        self._fault = ""
        self._thread = threading.Thread(
            target=self._run_thread, name="godwit-controller", daemon=True
        )
        self._thread.start()

    @property
    def policy_loop(self) -> PolicyLoop:
        """Loop that decides on the controller's proposals, and on those of other policies."""
        return self._controller.policy_loop

    @property
    def memory(self) -> ControllerMemory:
        """Memory that the controller of the next run continues from."""
        return self._controller.memory

    @property
    def status(self) -> Mapping[str, Any]:
        """State of the controller as of its last step."""
        return self._status

    def now_s(self) -> float:
        """Return the time by the controller's clock."""
        return self._clock.now_s()

    def epoch_begun(self, rows: int, backlog_rows: int) -> None:
        """Queue for the controller that an epoch of `rows` rows began, with this backlog."""
        at_s = self._clock.now_s()
        self._tasks.put(lambda: self._controller.begun(rows, backlog_rows, at_s))

    def epoch_committed(
        self,
        epoch: CommittedEpoch,
        batch: BatchRef | None = None,  # the epoch's micro-batch
        rows: int = 0,  # of the micro-batch
    ) -> None:
        """Queue an epoch's outcome for the controller; returns at once."""
        self._tasks.put(lambda: self._controller.observe(self._with_backlog(epoch, batch, rows)))

    def epoch_delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Queue latency and phases of a delivered epoch for the controller; returns at once."""
        self._tasks.put(lambda: self._controller.delivered(latency, spent_s))

    def _with_backlog(
        self, epoch: CommittedEpoch, batch: BatchRef | None, rows: int
    ) -> CommittedEpoch:
        """Return the epoch with the sources' backlog in rows: reported, or estimated from files.

        Unchanged if the backlog is unknown. `rows`: rows that the epoch read.
        """
        backlog_rows = self.backlog_rows()
        pending = None if batch is None else self._pending.estimate_rows(batch, rows)
        if pending is not None:
            self._pending_rows = pending
        elif backlog_rows is None:
            return epoch
        # Where a flow mixes both kinds of sources, files are looked at less often than asked for.
        backlog = self._pending_rows + (backlog_rows or 0)
        seen_s = epoch.backlog_s if pending is None else self._clock.now_s()
        return replace(epoch, backlog_rows=backlog, backlog_s=seen_s)

    def regrouped(self, flow: CompiledFlow) -> None:
        """Queue for the controller that components have changed, with the new topology."""
        topology = self._topology_of(flow)
        self._tasks.put(lambda: self._controller.regroup(topology))

    def close(self) -> None:
        """Stop the controller; queued notices are dropped."""
        self._tasks.put(None)
        self._thread.join(timeout=1)  # it may be planning, and is a daemon

    def _run_thread(self) -> None:
        """Step the controller whenever an epoch was observed; the body of a thread."""
        while self._process_notices():
            self._run_guarded(self._controller.step)
            self._status = self._controller.status
            self._run_guarded(self._save_memory)

    def _save_memory(self) -> None:
        """Write the controller's memory to the journal, at most every 5 seconds."""
        now_s = self._clock.now_s()
        if self._note_memory is None or now_s - self._noted_s < _NOTED_EVERY_S:
            return
        self._noted_s, values = now_s, self._controller.memory.to_dict()
        self._note_memory(_MEMORY, lambda: values)

    def _process_notices(self) -> bool:
        """Process all queued notices, waiting for the first; return ``False`` at the end."""
        wait = True
        with suppress(Empty):
            while True:
                task = self._tasks.get(wait, _LOOK_S if wait else None)
                if task is None:
                    return False
                self._run_guarded(task)
                wait = False
        return True

    def _run_guarded(self, step: Callable[[], None]) -> None:
        """Call a function of the controller; announce its error as an event, without raising it."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  reported; the stream continues
            fault = f"{type(error).__name__}: {error}"
            if fault != self._fault:
                self._fault = fault
                self._coordinator.announce(events.PlannerFailed, planner="controller", reason=fault)
