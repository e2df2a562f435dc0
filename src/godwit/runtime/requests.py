"""A query's look-out for requests to end it, which others leave in its checkpoint.

Invariants: a thread beside the epochs looks, so no epoch waits for a listing; `stop` lets the
running epoch end, however long that takes, and overrides `drain`; every request that the run sees
is answered, at the latest when it ends, while the checkpoint is still its own; and a checkpoint
that cannot be listed for a while costs nothing but a warning.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from godwit.checkpoint.requests import (
    Answer,
    look_s,
    remove_old_requests,
    requests_to,
    write_answer,
)
from godwit.model import events
from godwit.runtime.threads import Guard, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.checkpoint.requests import EndRequest
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.runtime.lifecycle import Ending, EpochDriver
    from godwit.runtime.run import QueryRun

_WAIT_S: Final = 1.0
_stopped: set[str] = set()
"""Runs of this process that were stopped or drained on request."""
_others: set[str] = set()
"""Runs of this process that still run, or have failed."""


def stopped_on_request() -> bool:
    """Return whether queries of this process were stopped on request, and no other is wanted."""
    return bool(_stopped) and not _others


class RequestWatch:
    """Looks for requests to a run, carries them out, and answers them."""

    def __init__(self, run: QueryRun, driver: EpochDriver, ending: Ending) -> None:
        self._run, self._driver, self._ending = run, driver, ending
        self._gate = run.gate
        self._storage: CheckpointStorage = run.log.storage
        _others.add(run.lease_run_id)
        self._over = threading.Event()
        self._writing = threading.Lock()  # answers, which end with that of `close`
        self._seen: dict[str, EndRequest] = {}
        self._drain_answer: str | None = None
        self._look = Guard("looking for requests to end the query", run.background_failed)
        self._thread = threading.Thread(
            target=self._run_thread, name="godwit-requests", daemon=True
        )
        self._thread.start()

    def close(self, failure: BaseException | None) -> None:
        """Answer all requests, now that the query has ended; `failure`: what it failed with."""
        self._over.set()
        if failure is None:
            _others.discard(self._run.lease_run_id)
        self._look(self._answer_all, failure)

    def _answer_all(self, failure: BaseException | None) -> None:
        """Give all requests their last answer."""
        with self._writing:
            for request in requests_to(self._storage, self._run.lease_run_id):
                if request.answer is None or request.answer.state == "accepted":
                    self._write(request, *self._outcome(request, failure))

    def _outcome(self, request: EndRequest, failure: BaseException | None) -> tuple[str, str]:
        """Return state and text of the last answer to a request."""
        if failure is not None:
            return "cut short", f"the query failed: {one_line(failure)}"
        if request.action == "drain" and not self._driver.drained:
            return "cut short", "the query was stopped before all rows were processed"
        self._note_stopped()
        return "ended", ""

    def _write(self, request: EndRequest, state: str, text: str = "") -> None:
        """Write an answer to a request."""
        answer = Answer(state=state, epoch=self._run.log.latest_epoch, text=text)  # type: ignore[arg-type]
        write_answer(self._storage, request, answer)

    def _note_stopped(self) -> None:
        """Note that the run is not wanted any more, even if it should fail while it ends."""
        _stopped.add(self._run.lease_run_id)
        _others.discard(self._run.lease_run_id)

    # -- the thread -------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Look for requests until the query ends; the body of the thread."""
        self._look(remove_old_requests, self._storage)
        pause_s = look_s(self._storage)
        while not self._over.wait(pause_s):
            self._look(self._carry_out_requests)

    def _carry_out_requests(self) -> None:
        """Carry out the requests that are new, and answer them."""
        self._answer_drain()
        for request in self._new(requests_to(self._storage, self._run.lease_run_id)):
            with self._run.coordinator.locked() as coordinator:
                coordinator.announce(events.EndRequested, action=request.action, by=request.by)
            if request.action == "stop":
                self._note_stopped()
                self._accept(request)
                self._gate.close_after_epoch()
                while not (self._gate.wait_until_idle(_WAIT_S) or self._over.is_set()):
                    pass
                self._ending.finish(0)
                return
            self._driver.drain(request.ends, self._note_drain)

    def _new(self, requests: Iterable[EndRequest]) -> Iterable[EndRequest]:
        """Yield the requests that were not seen before."""
        for request in requests:
            if request.answer is None and self._seen.get(request.action) != request:
                self._seen[request.action] = request
                yield request

    def _note_drain(self, problem: str) -> None:
        """Note that the driver drains the sources, or cannot, since there is a `problem`."""
        self._drain_answer = problem

    def _answer_drain(self) -> None:
        """Answer the request to drain once the driver has begun, or has refused."""
        problem, self._drain_answer = self._drain_answer, None
        if problem:
            with self._writing:
                if not self._over.is_set():
                    self._write(self._seen["drain"], "refused", problem)
        elif problem is not None:
            self._accept(self._seen["drain"])

    def _accept(self, request: EndRequest) -> None:
        """Answer that a request is being carried out."""
        with self._writing:
            if not self._over.is_set():
                self._write(request, "accepted")
