"""Drivers of a query's epochs, and the end of a query.

Epochs are called for by Spark's micro-batch engine where rows come as DataFrames, with a thread of
ours beside it (`godwit.spark.micro_batch_query`), and by a loop of ours where all
sources are Godwit's own (`godwit.runtime.source_loop`). A query needs little of either:
`EpochDriver`.

Invariants of the end: a query is closed once, on its own thread, however often ``stop`` is called
(`Ending`).  It closes the gate, waits for the running epoch, and only then closes every part, even
if another one fails to close; so the claim on the checkpoint is not released while an epoch commits
or delivers.  The threads of an epoch and of its delivery, and a listener, never wait
for the end.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from godwit.model.errors import EndingError, GodwitError, StopTimeoutError
from godwit.model.log_lines import add_to_log_context
from godwit.runtime.threads import GateClosedError, close_all, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
