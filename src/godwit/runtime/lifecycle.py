"""Drivers of a query's epochs, and the end of a query: by itself, by a signal, or on request.

Epochs are called for by Spark's micro-batch engine where rows come as DataFrames, with a thread of
ours beside it (`godwit.spark.micro_batch_query`), and by a loop of ours where all
sources are Godwit's own (`godwit.runtime.source_loop`). A query needs little of either:
`EpochDriver`.

Invariants of the end: a query is closed once, on its own thread, however often ``stop`` is called
(`Ending`).  It closes the gate, waits for the running epoch, and only then closes every part, even
if another one fails to close; so the claim on the checkpoint is not released while an epoch commits
or delivers.  The threads of an epoch and of its delivery, and a listener, never wait
for the end.

Of requests that other processes leave in the checkpoint (`RequestWatch`): a thread beside the
epochs looks for them, so no epoch waits for a listing; `stop` lets the running epoch end, however
long that takes, and overrides `drain`; every request that the run sees is answered, at the latest
when it ends, while the checkpoint is still its own; and a checkpoint that cannot be listed for a
while costs nothing but a warning.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from godwit.checkpoint.requests import (
    Answer,
    look_s,
    remove_old_requests,
    requests_to,
    write_answer,
)
from godwit.model import events
from godwit.model.errors import EndingError, GodwitError, StopTimeoutError
from godwit.model.log_lines import add_to_log_context
from godwit.runtime.threads import GateClosedError, Guard, close_all, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from godwit.checkpoint.requests import EndRequest
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.source_positions import SourcePositions
    from godwit.runtime.dispatcher import EventDispatcher
    from godwit.runtime.run import QueryRun
    from godwit.runtime.threads import EpochGate


class EpochDriver(ABC):
    """Calls for the epochs of a run, with input and without, until no more are to come.

    It is made before the query, and begins (`begin`) once everything else is there. A thread of its
    own runs `_run_loop`: the query fails by what that raises, and ends when it returns.
    """

    what: str  # what it is called in errors, such as "Spark's query"
    stop_s = 10.0  # that the end of the loop is waited for, once no epoch is delivered

    def __init__(self, run: QueryRun) -> None:
        self._run, self._gate = run, run.gate
        self._ending: Ending
        # ends by source, and the function that takes the reason of a refusal; see `drain`
        self._drain_order: tuple[Mapping[str, Any], Callable[[str], None]] | None = None
        self.drained = False  # the input has ended, and everything of it is processed
        self._beat_s = time.monotonic()  # when the loop has last gone round
        self._over = threading.Event()  # no more epochs come, and the sources are closed
        self._thread = threading.Thread(target=self._run_thread, name="godwit-epochs", daemon=True)

    @abstractmethod
    def _run_loop(self) -> None:
        """Run epochs until no more are to come."""

    @abstractmethod
    def _close_sources(self) -> None:
        """Close the sources that Godwit reads itself; raises nothing."""

    @abstractmethod
    def _run_round(self, *, due: bool) -> bool:
        """Run an epoch over rows that wait in feedback loops, if any; return whether it ran.

        `due`: an epoch is due anyway, so it runs even if the loops pause.
        """

    def _is_stopped(self) -> bool:
        """Return whether Spark has stopped the query from outside; false without micro-batches."""
        return False

    def _status_of_end(self) -> dict[str, Any]:
        """Return the status of a query whose loop has ended, or whose session is gone."""
        message, failure = "Stopped", self._gate.failure
        if failure is not None:
            text = str(failure) if isinstance(failure, GodwitError) else one_line(failure)
            message = f"Terminated with exception: {text}"
        return {"message": message, "isDataAvailable": False, "isTriggerActive": self._gate.busy}

    def _run_quiet_epoch(self) -> bool:
        """Run an epoch without source rows if one is due; return whether it ran.

        It reads rows that wait in feedback loops, even if these pause.
        """
        if self._run.is_due:
            if not self._run_round(due=True):
                with suppress(GateClosedError):
                    self._run.without_input(self._is_stopped)
            return True
        if self._run.view.awaits:
            self._run.advance_clock()
        return False

    def begin(self, ending: Ending) -> None:
        """Start running epochs; `ending` is called once the loop returns."""
        self._ending = ending
        self._thread.start()

    def drain(self, ends: Mapping[str, Any], answered: Callable[[str], None]) -> None:
        """Let the input end where the sources are now, process everything, and end the query.

        Returns at once. `ends`: source → position at which it ends instead. `answered`: called once
        it has begun, with an empty text, or with the reason why it is refused.
        """
        self._drain_order = (ends, answered)

    @abstractmethod
    def _end_input_at(self, ends: Mapping[str, Any]) -> str:
        """Let the input end; return the reason why that is refused, or an empty text."""

    @property
    def silent_s(self) -> float:
        """Seconds since the loop has last gone round; 0 once it has ended."""
        return 0.0 if self._over.is_set() else time.monotonic() - self._beat_s

    def _go_round(self) -> None:
        """Note that the loop lives, and check the lease; on its thread, between epochs.

        Begins to drain the sources, if `drain` was called.
        """
        self._beat_s = time.monotonic()
        self._run.check_lease()
        if self._drain_order is not None:
            ends, answered = self._drain_order
            self._drain_order = None
            answered(self._end_input_at(ends))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the query has ended, failed or not; return whether it has."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _wait_for_end(self, positions: SourcePositions) -> None:
        """Wait until the loop has ended, once no epoch can begin; no-op on its own thread.

        Raises `StopTimeoutError` if it does not in time, since a source does not answer.
        """
        if threading.current_thread() is self._thread:
            return
        self._gate.wait_until_idle()  # however long a sink takes, that is none of the sources'
        if self._over.wait(self.stop_s):
            return
        call = positions.unanswered(0) or f"a source has not answered for {self.stop_s:.0f} s"
        raise StopTimeoutError(
            f"{call[0].upper()}{call[1:]}.",
            remedy="No further epoch begins. Look why it does not answer, and give what it waits "
            "for a time-out; its thread ends with the process.",
        )

    def _run_thread(self) -> None:
        """Run the loop, close its sources, and end the query; the body of the thread."""
        add_to_log_context(query=self._run.name)
        try:
            self._run.use_this_thread()
            self._run_loop()
        except GateClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  without this thread, rows would wait for ever
            self._gate.fail_unless_aborted(error)
        self._close_sources()
        self._over.set()
        self._ending.finish()

    @property
    @abstractmethod
    def id(self) -> str:
        """Identifier of the query, the same over restarts from one checkpoint."""

    @property
    def is_active(self) -> bool:
        """True while epochs may still be started."""
        return not self._over.is_set()

    def failure(self) -> BaseException | None:
        """Return the error that ended the driver outside of any epoch; ``None`` if there is none.

        An error in the loop does not count: it fails the query through the query's gate.
        """
        return None

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return ``message``, ``isDataAvailable`` and ``isTriggerActive``, as Spark does."""

    @abstractmethod
    def process_all_available(self) -> None:
        """Wait until available rows are processed and no rows wait, or the query has failed."""

    @abstractmethod
    def stop(self) -> None:
        """Stop reading rows, and wait for work in progress; called once no epoch can begin."""

    @abstractmethod
    def sources(self) -> dict[str, Any] | None:
        """Return ``batchId``, and lag by source in ``sources``; ``None`` before they are known."""

    @abstractmethod
    def rows_held_back(self) -> int | None:
        """Return the sources' backlog in rows; ``None`` if unknown."""

    @abstractmethod
    def add_source_figures(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the progress of epochs with figures of their sources added, if known."""


_GRACE_S = 5.0
_DRIVER_S = 10.0
_LISTENERS_S = 5.0


class Ending:
    """Ends a query exactly once, however often and from whatever thread it is called."""

    def __init__(
        self,
        *,
        gate: EpochGate,
        driver: EpochDriver,
        dispatcher: EventDispatcher,  # whose listeners hear of the end
        cancel: Callable[[], None],  # cancels our jobs that outlive the driver
        # Closes the run, once no epoch runs; from what could not be stopped to that and what could
        # not be closed either.
        close: Callable[[list[tuple[str, str]]], list[tuple[str, str]]],
    ) -> None:
        self._gate, self._driver, self._dispatcher = gate, driver, dispatcher
        self._cancel, self._close = cancel, close
        self._beginning = threading.Lock()
        self._thread: threading.Thread | None = None
        self._problems: list[tuple[str, str]] = []
        self._finished = False

    @property
    def finished(self) -> bool:
        """True if all parts of the query are closed."""
        return self._finished

    def stop(self) -> None:
        """End the query after the current epoch, which is aborted if it takes long.

        Raises `StopTimeoutError` if something in the epoch neither ends nor can be interrupted,
        `EndingError` if the query has stopped, but a part of it could not be stopped or closed.
        """
        if not self.finish(_GRACE_S + _DRIVER_S):
            raise StopTimeoutError(
                "The query is stopping, but an epoch is still being carried out or delivered "
                f"after {_GRACE_S + _DRIVER_S:.0f} s.",
                remedy="No further epoch begins, and the query stops once this one is over. See "
                "whether the read of a source, a function or a sink waits without a time-out; a "
                "sink that waits for this call would wait for ever.",
            )
        if self._finished and self._problems:
            problems = "; ".join(f"{what}: {error.rstrip('.')}" for what, error in self._problems)
            raise EndingError(
                f"The query has ended, but not everything went well: {problems}.",
                remedy="Committed epochs are safe, and the flow can be started again from its "
                "checkpoint.",
                problems=[list(problem) for problem in self._problems],
            )

    def finish(self, timeout_s: float | None = None) -> bool:
        """End the query, and wait until it is closed; return ``False`` after the time-out.

        The threads of an epoch, of its delivery and of listeners do not wait: closing waits for
        them.
        """
        self._gate.close()
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._close_in_order, name="godwit-stop", daemon=True
                )
                self._thread.start()
        if self._gate.is_own_thread or self._dispatcher.is_own_thread:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._dispatcher.flush(_LISTENERS_S)
        return True

    def finish_here(self) -> None:
        """End the query on the calling thread, as where no further thread can be started."""
        self._gate.close()
        with self._beginning:
            if self._thread is None:
                self._thread = threading.current_thread()
        if self._thread is threading.current_thread():
            self._close_in_order()
        else:
            self._thread.join(_GRACE_S + _DRIVER_S)

    def _close_in_order(self) -> None:
        """Wait for the running epoch, then close every part of the query in order."""
        # An epoch that is nearly over would have to be done again.
        self._gate.wait_for_epoch(_GRACE_S)
        problems: list[tuple[str, str]] = []
        parts = [(f"stopping {self._driver.what}", self._driver.stop)]
        if self._gate.interrupted:
            parts.insert(0, ("breaking off the epoch", self._cancel))
        for what, stop in parts:
            try:
                stop()
            except Exception as error:  # noqa: BLE001  raised once everything is closed
                problems.append((what, one_line(error)))
        # One without input, or whose thread Spark has given up, commits and delivers even now.
        self._gate.wait_until_idle()
        try:
            self._problems = self._close(problems)
        except BaseException as error:  # noqa: BLE001  raised as well
            self._problems = [*problems, ("closing the query", one_line(error))]
        finally:
            self._finished = True
            close_all([("the thread of events", self._dispatcher.close)])


_LOOK_S: Final = 0.1
_TERMINATED: Final = 128 + signal.SIGTERM


class EndingSignals:
    """Context of the main thread in which Ctrl-C and SIGTERM are noted; elsewhere a no-op.

    Left alone, the first raises in the middle of whatever the main thread does, while the query
    continues (and PySpark's handler cancels the jobs of its epoch); the second ends the process
    amid an epoch. A handler here only takes a note, which the thread that waits looks at; so no
    lock that the thread holds can be asked for again. A handler of the user's own stays in place.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []  # numbers of signals, in the order in which they came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if _is_default(before):
                    signal.signal(number, self._note)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _frame: object) -> None:
        """Note a signal; its handler."""
        self.asked.append(number)

    def wait(self, wait: Callable[[float | None], bool], timeout_s: float | None) -> bool:
        """Call `wait` with short time-outs until it returns true or a further signal comes.

        Returns false after `timeout_s`, or if a signal came.
        """
        if not self._before:
            return wait(timeout_s)
        signals = len(self.asked)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
            if wait(max(0.0, min(_LOOK_S, left_s))):
                return True
            if len(self.asked) > signals or left_s <= 0:
                return False

    def raise_asked(self) -> NoReturn:
        """Raise what the last signal asks for: `KeyboardInterrupt`, or `SystemExit` (143)."""
        if self.asked[-1] == signal.SIGTERM:
            raise SystemExit(_TERMINATED)
        interrupt = KeyboardInterrupt()
        interrupt.begins_at_user = True  # type: ignore[attr-defined]  # see `user_call`
        raise interrupt


def _is_default(handler: Any) -> bool:
    """Return whether a handler is Python's or the system's default, or PySpark's of Ctrl-C."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "pyspark"


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
