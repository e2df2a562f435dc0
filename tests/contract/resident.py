"""A realization in which resident lanes run the epochs, each in a process of its own, no Spark.

The driver is this process.  Some epochs it works itself, lane by lane, which stands for the Spark
jobs beside which resident lanes live: other processes then write the same local stores.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import cache, partial
from itertools import count
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark import cloudpickle
from tests.contract.one_process import OneProcess, _Run
from tests.support.lane_tasks import slots

from godwit.local import run_lanes, ship_rows
from godwit.spark.resident.lanes import ResidentLanes
from godwit.spark.stages import pickling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from tests.contract.scenario import Policy

    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.messages import EpochInstruction, LaneReport, Place
    from godwit.local import LocalRows

__all__ = ["Processes", "Resident"]

_PATIENCE_S = 60.0


def _work(lane: bytes, number: int) -> None:
    for _ in pickle.loads(lane)(number):
        pass


class Processes:
    """Tasks that are processes of this machine; one that dies is tried again, as Spark does."""

    host = "127.0.0.1"

    def __init__(self, waits: Callable[[], bool]) -> None:
        self._context, self._waits = _forkserver(), waits
        self._started: list[BaseProcess] = []
        self.tried_again = 0

    def listen(self) -> socket.socket:
        return socket.create_server((self.host, 0))

    def run(self, lane: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        dumps: Any = cloudpickle.dumps
        pickled: bytes = dumps(lane)
        first = [self._start(pickled, number) for number in range(len(places))]
        for number, process in enumerate(first):
            process.join()
            if process.exitcode:
                self.tried_again += 1
                again = self._start(pickled, number)
                again.join()
                assert again.exitcode == 0

    def _start(self, lane: bytes, number: int) -> BaseProcess:
        process: BaseProcess = self._context.Process(target=_work, args=(lane, number), daemon=True)
        process.start()
        self._started.append(process)
        return process

    def waiting(self) -> int:
        return int(self._waits())

    def cancel(self) -> None:
        for process in self._started:
            process.kill()


@cache
def _forkserver() -> Any:
    """Start a process that forks lanes, with everything loaded that they need: 16 ms a lane."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])
    with pytest.MonkeyPatch.context() as patch:  # its path is not this process's by itself
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context


class _ResidentRun(_Run):
    owner: Resident

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[LocalRows] | None
    ) -> list[LaneReport]:
        rows = {} if batch is None or batch.rows is None else batch.rows
        boxes = ship_rows(self.lane_flow, instruction, rows)
        reports = self.owner.resident_stages(instruction, dict(enumerate(boxes)))
        if reports is None:
            instruction = pickle.loads(pickle.dumps(instruction))
            reports = run_lanes(self.lane_flow, instruction, boxes)
        number = None if batch is None else batch.ref.number
        operators = zip(self.flow.operators, instruction.operators, strict=True)
        self.reported = number, {o.name: told.time for o, told in operators}, reports
        return reports


class Resident(OneProcess):
    """See `OneProcess`.

    Parameters
    ----------
    seed
        Draws the epochs that go by themselves, and the lanes that are killed.
    kills
        Lanes are killed at any moment, about one in six epochs.
    num_slots
        Task slots: with fewer slots than lanes, and one to spare, a task runs several lanes.
    chosen
        The lanes are those that the system chooses, and other tasks wait for slots now and then.
    """

    run_type = _ResidentRun

    def __init__(
        self,
        directory: Path,
        *,
        deep: bool,
        policy: Policy,
        seed: int = 1,
        kills: bool = False,
        num_slots: int = 100,
        chosen: bool = False,
    ) -> None:
        super().__init__(directory, deep=deep, policy=policy)
        self._chosen = chosen
        self._slots = num_slots
        self._rng, self._kills = random.Random(seed), kills
        self._waits_rng = random.Random(seed)
        self.resident: ResidentLanes | None = None
        self.worked = 0  # epochs, by resident lanes
        self.announced: list[tuple[str, dict[str, Any]]] = []

    def start(self, executors: Mapping[str, int]) -> None:
        self.stop()
        super().start(executors)
        flow = pickling.dumps(self.run.lane_flow)
        clock = count(0, 1000)  # no pause after a loss lasts
        self.resident = ResidentLanes(
            partial(pickle.loads, flow),
            lambda _: cast("Any", Processes(waits=self._waits)),
            slots=slots(self._slots),
            chosen=self._chosen,
            announce=lambda kind, **values: self.announced.append((kind.__name__, values)),
            given_up=lambda: "",
            now_s=lambda: float(next(clock)),
        )
        self.resident.waits_s = _PATIENCE_S

    def stop(self) -> None:
        """End lanes, also those of a driver that has died, whose channels the system closes."""
        if self.resident is not None:
            self.worked += self.resident.epochs
            self.resident.close()
            self.resident = None

    def _waits(self) -> bool:
        """Return whether tasks of other jobs wait; called by a thread of the lanes."""
        return self._chosen and self._waits_rng.random() < 0.1

    def resident_stages(
        self, instruction: EpochInstruction, boxes: Mapping[int, Sequence[bytes]]
    ) -> list[LaneReport] | None:
        """Have resident lanes work an epoch, perhaps."""
        assert self.resident is not None
        if self._rng.random() < 0.3:
            return None
        lanes = sorted(self.resident.pids.items())
        if self._kills and lanes and self._rng.random() < 0.2:
            _, pid = self._rng.choice(lanes)
            delay_s = self._rng.choice((0.0, 0.002, 0.01, 0.03))
            if delay_s:
                threading.Timer(delay_s, _kill, (pid,)).start()
            else:
                _kill(pid)
        return self.resident.run(instruction, boxes)

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`; the processes of executors that are gone are gone before."""
        assert self.resident is not None
        for (executor, _), pid in self.resident.pids.items():
            if executor not in executors:
                _kill(pid)
        super().see(executors)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
