"""Maintenance of targets runs beside epochs, at its interval, and its failures are events."""

from __future__ import annotations

import threading
from typing import Any

import godwit as gw
from godwit.model import events
from godwit.runtime.run import TargetMaintenance
from godwit.sinks.sink import Maintained


class Target(gw.sinks.Sink):
    """A sink that does what it is told at each maintenance."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.began, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    @property
    def maintenance(self) -> gw.sinks.Maintenance:
        return gw.sinks.Maintenance(every="10 s")

    def maintain(self) -> Maintained:
        self.began.release()
        assert self.goes_on.acquire(timeout=60)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return Maintained(compacted=step, written=min(step, 1))

    def open(self, context: Any) -> None:
        """Open nothing."""

    def deliver(self, output: Any) -> None:
        """Deliver nothing."""


class Run:
    """Maintenance with a clock of the test, and what it announces."""

    def __init__(self, **sinks: gw.sinks.Sink) -> None:
        self.now_s = 0.0
        self.said: list[Any] = []
        self.heard = threading.Semaphore(0)
        self.maintenance = TargetMaintenance(
            sinks.items(), announce=self._announce, failed=self._failed, now_s=lambda: self.now_s
        )

    def _announce(self, kind: type[events.Event], **values: Any) -> None:
        self.said.append((kind, values))
        self.heard.release()

    def _failed(self, what: str, error: str) -> None:
        self.said.append((what, error))
        self.heard.release()

    def after(self, now_s: float) -> None:
        self.now_s = now_s
        self.maintenance.delivered()


def test_a_target_is_maintained_at_its_interval_and_never_twice_at_once() -> None:
    target = Target(3, ValueError("no"), 2)
    run = Run(out=target, plain=gw.sinks.noop())
    run.after(9.9)
    assert not target.began.acquire(blocking=False)
    run.after(10.0)
    assert target.began.acquire(timeout=60)
    run.after(30.0)  # it is still at work, and the epoch did not wait
    assert target.steps == [3, target.steps[1], 2]
    target.goes_on.release()
    assert run.heard.acquire(timeout=60)
    kind, values = run.said[0]
    assert kind is events.TargetMaintained
    assert values == {"sink": "out", "compacted": 3, "written": 1, "expired": 0, "removed": 0}
    for step, now_s in ((1, 50.0), (2, 70.0)):
        while not target.began.acquire(blocking=False):  # the last one has ended, or does so now
            run.after(now_s)
        target.goes_on.release()
        assert run.heard.acquire(timeout=60)
        assert len(run.said) == step + 1
    assert run.said[1] == ("maintaining the target of sink 'out'", "ValueError: no")
    assert run.said[2][1]["compacted"] == 2
    run.maintenance.close()
    run.after(1000.0)
    assert not target.began.acquire(blocking=False)


def test_what_changes_nothing_is_no_event() -> None:
    target = Target(0, 1)
    run = Run(out=target)
    for now_s in (10.0, 20.0):
        while not target.began.acquire(blocking=False):
            run.after(now_s)
        target.goes_on.release()
    assert run.heard.acquire(timeout=60)
    assert [values["compacted"] for _, values in run.said] == [1]
