"""Threads of the driver beside the epochs, and the gate through which epochs begin.

The problem: an uncaught exception ends a thread, and its work stops while the query continues as if
nothing had happened. And Python waits for the threads of its own pools before it
exits, so a process whose work is done may stay for minutes.

The invariants: an error in a step of such a thread is reported, as a warning in the log and as an
event, once for each kind of error, and the thread continues with its next step; no thread keeps the
process from exiting; and one thread at a time carries out an epoch, while another may deliver the
one before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from godwit.model.errors import GodwitError
from godwit.model.naming import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

_MAX_KINDS = 100
_logger = logging.getLogger("godwit")


def one_line(error: BaseException) -> str:
    """Return an error's type and text in one line; only its type if the text fails."""
    try:
        return error_line(error)
    except Exception:  # noqa: BLE001  an error of the user's may raise where it is told
        return type(error).__name__


class Guard:
    """Carries out steps of a thread, and tells what they raise."""

    def __init__(
        self,
        what: str,  # the steps do, as in "watching executors"
        # takes `what` and the error in one line, for an event; ``None``: there is only the log
        announce: Callable[[str, str], None] | None = None,
    ) -> None:
        self._what, self._announce = what, announce
        self._reported: set[str] = set()

    def __call__(self, step: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Carry out a step; returns whether it raised nothing."""
        try:
            step(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  any error is reported
            self.report(error)
            return False
        return True

    def report(self, error: BaseException) -> None:
        """Log and announce an error, unless the same error was announced before."""
        line = one_line(error)
        if line in self._reported or len(self._reported) >= _MAX_KINDS:
            return
        self._reported.add(line)
        with suppress(Exception):  # a log handler of the user's
            _logger.warning(
                "%s failed with %s. It continues; this is reported once.",
                self._what,
                line,
                exc_info=error,
            )
        if self._announce is not None:
            with suppress(Exception):  # the log has it
                self._announce(self._what, line)


class DaemonPool:
    """Threads that carry out calls in the order in which they come, and that no exit waits for.

    At most `threads` of them are started, as calls come.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._name, self._max = name, threads
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle = self._threads = 0
        self._closed = False

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call for the next free thread, and return its future; `close` cancels that."""
        future: Future[R] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._calls.append((future, lambda: function(*args, **kwargs)))
            if self._idle < len(self._calls) and self._threads < self._max:
                self._threads += 1
                threading.Thread(
                    target=self._run_thread, name=f"{self._name}-{self._threads}", daemon=True
                ).start()
            self._changed.notify()
        return future

    def close(self, *, cancel: bool = True) -> None:
        """Accept no more calls, and cancel queued ones; running calls are not waited for.

        `cancel`: ``False``: queued calls are still run.
        """
        with self._changed:
            self._closed = True
            if cancel:
                for future, _ in self._calls:
                    future.cancel()
                self._calls.clear()
            self._changed.notify_all()

    def _run_thread(self) -> None:
        """Run submitted calls one after the other; the body of a thread."""
        while (call := self._next_call()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  raised where the future is asked
                future.set_exception(error)
            else:
                future.set_result(result)
            del call, future, function  # what they hold is not kept until the next call

    def _next_call(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for the next call; ``None`` once the pool is closed and no call is queued."""
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(lambda: self._calls or self._closed)
                return self._calls.popleft() if self._calls else None
            finally:
                self._idle -= 1


def close_all(parts: Iterable[tuple[str, Callable[[], object]]]) -> list[tuple[str, str]]:
    """Close parts one after the other; an error in one does not stop the rest.

    Returns the parts that could not be closed, each with its error in one line.
    """
    problems = []
    for what, close in parts:
        try:
            close()
        except Exception as error:
            problems.append((f"closing {what}", one_line(error)))
            with suppress(Exception):  # a log handler of the user's
                _logger.warning("Closing %s failed: %s", what, one_line(error))
                _logger.debug("Closing %s failed", what, exc_info=error)
    return problems


class GateClosedError(Exception):
    """The query is to stop: no epoch begins any more."""


class EpochGate:
    """Lets one thread at a time carry out an epoch, until it is closed.

    Threads that wait to enter are refused when the gate closes, so closing it and then joining
    them cannot block for ever.
    """

    def __init__(
        self,
        # turns an error of an epoch into the one that the query fails with
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        *,
        # returns whether an error was caused by the cancellation of the epoch's jobs
        is_cancellation: Callable[[BaseException], bool] = lambda error: (
            not isinstance(error, GodwitError)
        ),
    ) -> None:
        self.explain, self._is_cancellation = explain, is_cancellation
        self._changed = threading.Condition()
        self._closed = False
        self._closes_after_epoch = False
        self._interrupted = False
        self._inside: int | None = None
        self._inside_since_s = 0.0
        self._deliveries = 0  # that other threads carry out, or are to
        self._delivering: int | None = None
        self._stopped: Callable[[], bool] = lambda: False
        self.failure: BaseException | None = None  # of an epoch; one that was cut short has none
        # an epoch was turned away, or ended in the middle, because the query is to stop
        self.cut_short = False

    @property
    def interrupted(self) -> bool:
        """True if the running epoch is being aborted."""
        return self._interrupted

    @property
    def closed(self) -> bool:
        """True if no further epoch can begin, and none runs that is to be finished first."""
        return self._closed or (self._closes_after_epoch and self._inside is None)

    @property
    def busy(self) -> bool:
        """True if an epoch is running."""
        return self._inside is not None

    @property
    def epoch_runs_s(self) -> float:
        """Seconds for which the running epoch has run or been held; 0 if none runs."""
        return time.monotonic() - self._inside_since_s if self._inside is not None else 0.0

    @property
    def is_own_thread(self) -> bool:
        """True if the calling thread runs or delivers an epoch."""
        return threading.get_ident() in {self._inside, self._delivering}

    def is_stopped(self) -> bool:
        """Return whether Spark is stopping the query of the current epoch."""
        return self._stopped()

    @contextmanager
    def epoch(
        self,
        stopped: Callable[[], bool] = lambda: False,
        *,
        broken_off: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Context in which one epoch runs at a time; an error inside fails the query.

        Raises `GateClosedError` if the gate is closed, or closes while waiting for other epochs.
        `stopped`: returns whether Spark is stopping the query. `broken_off`: returns whether it
        cancels the epoch's jobs, whose errors do not fail the query then.
        """
        try:
            with self.between_epochs(stopped):
                yield
        except BaseException as error:
            if isinstance(error, GateClosedError) or (
                (self._interrupted or broken_off()) and self._is_cancellation(error)
            ):
                self.cut_short = True
            else:
                self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Fail the query with an error, unless it has failed already."""
        if self.failure is None:
            self.failure = self.explain(error)
        # No later epoch may be committed: only the last one is delivered again.
        self.close()

    def fail_unless_aborted(self, error: BaseException) -> None:
        """Fail the query with an error of its loop, unless it comes of an epoch's abortion."""
        if not (self._interrupted and self._is_cancellation(error)):
            self.fail(error)

    @contextmanager
    def between_epochs(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Context during which no epoch runs or begins.

        Raises `GateClosedError` as `epoch` does.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_closing or self._inside is None)
            if self.is_closing:
                raise GateClosedError
            self._inside, self._stopped = threading.get_ident(), stopped
            self._inside_since_s = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._inside = None
                self._changed.notify_all()

    def register_delivery(self, deliver: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls `deliver`; the delivery is in progress from now to its end.

        Another thread calls it, once. Epochs do not wait for it, but the end of the query does.
        """
        with self._changed:
            self._deliveries += 1

        def carry_out() -> None:
            """Carry out the delivery, on the calling thread."""
            self._delivering = threading.get_ident()
            try:
                deliver()
            finally:
                with self._changed:
                    self._deliveries -= 1
                    self._delivering = None
                    self._changed.notify_all()

        return carry_out

    def pause(self, seconds: float) -> None:
        """Wait for `seconds` within an epoch that cannot begin yet.

        Raises `GateClosedError` if the gate closes meanwhile, or Spark's query is stopped.
        """
        if self.wait_for_close(seconds) or self._stopped():
            raise GateClosedError

    def wait_for_close(self, seconds: float) -> bool:
        """Wait up to `seconds` until the gate closes, or is about to; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_closing, seconds)

    @property
    def is_closing(self) -> bool:
        """True if no further epoch can begin; one may still run."""
        return self._closed or self._closes_after_epoch

    def close(self) -> None:
        """Close the gate: no further epoch begins."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close_after_epoch(self) -> None:
        """Let no further epoch begin; the running one ends as if nothing had been asked.

        Returns at once. An epoch that is held has not begun.
        """
        with self._changed:
            self._closes_after_epoch = True
            self._changed.notify_all()

    def open_again(self) -> None:
        """Let epochs begin after `close_after_epoch`, unless the gate was closed meanwhile."""
        with self._changed:
            self._closes_after_epoch = False
            self.cut_short = False
            self._changed.notify_all()

    def wait_for_epoch(self, patience_s: float) -> None:
        """Wait up to `patience_s` seconds until no epoch runs.

        If one still runs then, mark it as aborted.
        """
        with self._changed:
            self._interrupted = not self._changed.wait_for(lambda: self._inside is None, patience_s)

    def wait_until_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no epoch runs or is delivered; return whether none is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._inside is None and not self._deliveries, timeout_s
            )
