"""Calls of ``async def`` functions: keys run concurrently, the calls for one key in order.

A call that waits for another system leaves the lane to other keys: up to ``capacity`` of them are
in flight at once.  Rows are emitted in the order of keys and calls, regardless of the order of
answers, so an epoch's output is that of plain functions that get the same answers.

An attempt at a key that raises, or takes too long, is repeated from the beginning: all calls for
the key in this epoch, with the state and timers from before the epoch.  So nothing of a failed
attempt remains.

Calls run on the event loop of the lane's process (`LaneLoop`).  A client of another system, such as
a session or a connection pool, belongs to the loop on which it was created, and is expensive to
open.  So a process has one loop, on a thread of its own, for its lifetime; a lane waits while the
loop runs its calls.  The lane's thread may have another loop, as in a notebook, which is not used.

Invariant: an interrupt ends the wait of a lane at once, and cancelled calls get a bounded time to
end.  A loop whose calls do not end is discarded, and the next epoch creates another.

Source: asynchronous I/O of Flink (capacity, time-out, retries); here with state, so the order is by
key.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import TimeoutError as NotDoneError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from godwit.model.errors import GodwitError, UserFunctionError
from godwit.model.frames import function_failed, user_traceback
from godwit.model.naming import error_line, type_name
from godwit.model.signatures import awaiting_hint
from godwit.operators.failed_calls import is_divertible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping

    from godwit.library.calls import Call, Calls, KeysToCall, Meter
    from godwit.operators.asynchronous import Async


class AsyncCalls:
    """Calls an operator's functions, of which some are asynchronous, for the keys of one epoch."""

    def __init__(self, calls: Calls, settings: Async) -> None:
        self._calls, self._settings = calls, settings
        self._timeout_s, self._backoff_s = settings.timeout_s, settings.backoff_s

    def run(self, work: KeysToCall, meter: Meter) -> tuple[list[Any], list[int]]:
        """Call the functions for every key; return emitted rows, and their total after each key."""
        loop, started_s = lane_loop(), time.perf_counter()
        meter.skip()

        async def every_key() -> list[_Finished]:
            """Run the calls of all keys on the lane's event loop."""
            operator, settings = self._calls.operator, self._settings
            resources = await loop.resources(self, operator, settings.resources)
            return await self._run_all_keys(work, {**work.named, **resources})

        gc.enable()  # other keys' rubbish must not wait for the slowest answer
        try:
            finished = loop.run(every_key())
        finally:
            gc.disable()  # as the operator has it
        cpu_s = np.array([key.cpu_s for key in finished])
        waits_s = np.array([key.took_s for key in finished]) - cpu_s
        # Keys wait together: the time that passed is shared out by how long each one waited.
        idle_s = max(time.perf_counter() - started_s - float(cpu_s.sum()), 0.0)
        meter.add_concurrent(cpu_s, cpu_s + idle_s * waits_s / max(float(waits_s.sum()), 1e-9))
        emitted = [row for key in finished for row in key.rows]
        return emitted, np.cumsum([len(key.rows) for key in finished]).tolist()

    async def _run_all_keys(
        self, work: KeysToCall, broadcast_tables: Mapping[str, Any]
    ) -> list[_Finished]:
        """Run the calls of all keys concurrently; the first error cancels the others."""
        finished = [_Finished() for _ in work.keys]
        waiting_groups = iter(range(len(finished)))

        async def run_waiting() -> None:
            """Run keys one after another, as one of the concurrent workers."""
            for group in waiting_groups:
                started_s = time.perf_counter()
                steps = _Steps(self._run_key(work, group, broadcast_tables))
                finished[group].rows = await steps
                finished[group].cpu_s = steps.cpu_s
                finished[group].took_s = time.perf_counter() - started_s

        num_workers = min(self._settings.capacity, len(finished))
        workers = [asyncio.create_task(run_waiting()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            await cancel_all(workers)
            raise
        return finished

    async def _run_key(
        self, work: KeysToCall, group: int, broadcast_tables: Mapping[str, Any]
    ) -> list[Any]:
        """Run all calls for key number `group`, with retries; return the emitted rows."""
        settings, key_calls = self._settings, work.called[group]
        timers = list(key_calls.timers)
        key_calls.left_out = None if work.failed is None else ()
        attempt = 1
        while True:
            try:
                rows = await self._attempt_key(work, group, broadcast_tables)
            except _FailedCall as failed:
                error = failed.error
                may_retry = isinstance(error, settings.retry_on) and not isinstance(
                    error, GodwitError
                )
                if attempt > settings.retries or not may_retry:
                    if work.failed is not None and is_divertible(error):
                        work.divert(group, failed.call, error, timers)
                        attempt = 1
                        continue
                    raise function_failed(
                        self._calls.operator,
                        failed.call.function,
                        work.keys[group],
                        error,
                        called=failed.call.text(broadcast_tables),
                        attempts=attempt,
                    ) from error
            else:
                work.done(group)
                return rows
            work.reset(group)
            key_calls.restart(timers)
            await asyncio.sleep(self._backoff_s * 2 ** (attempt - 1))
            attempt += 1

    async def _attempt_key(
        self, work: KeysToCall, group: int, named: Mapping[str, Any]
    ) -> list[Any]:
        """Run all calls for key number `group` once; return the emitted rows."""
        emitted: list[Any] = []
        for call in self._calls.of_key(work, group):
            limit = asyncio.timeout(self._timeout_s)
            try:
                async with limit:
                    emitted += await _await_call(call, work.keys[group], named)
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # by us: another key has failed, or the query stops
                if isinstance(error, TimeoutError) and limit.expired():
                    error.args = (f"it took longer than timeout={self._settings.timeout!r}",)
                raise _FailedCall(call, error) from error
        return emitted


class _FailedCall(Exception):  # noqa: N818 - never seen outside
    """An error of a user's function, until it is known whether the call is retried."""

    def __init__(self, call: Call, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error


@dataclass(slots=True)
class _Finished:
    """Rows emitted for a key, and the time that they took."""

    rows: list[Any] = field(default_factory=list)
    cpu_s: float = 0.0
    took_s: float = 0.0


async def _await_call(call: Call, key: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    """Call a user's function, plain or asynchronous; return the rows that it emits."""
    result = call.function(key, call.argument, call.state, **named)
    if hasattr(result, "__aiter__"):
        return [row async for row in result]
    if hasattr(result, "__await__"):
        result = await result
    if result is not None and not isinstance(result, Iterable):
        awaiting_hint(result)  # closes a coroutine that nothing will await
        raise TypeError(
            f"it returned a value of type {type_name(result)}; rows are a list of tuples or dicts"
        )
    return [] if result is None else list(result)


class _Steps:
    """Awaitable that runs a coroutine, and adds up the CPU time of its steps."""

    __slots__ = ("_coroutine", "cpu_s")

    def __init__(self, coroutine: Any) -> None:
        self._coroutine, self.cpu_s = coroutine, 0.0

    def __await__(self) -> Generator[Any, None, Any]:
        steps: Iterator[Any] = self._coroutine.__await__()
        return self._run_measured(steps)

    def _run_measured(self, steps: Any) -> Generator[Any, None, Any]:
        """Drive a coroutine to its end, and measure the CPU time of its steps."""
        thrown: BaseException | None = None
        while True:
            started_s = time.thread_time()
            try:
                waits_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value
            finally:
                self.cpu_s += time.thread_time() - started_s
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - such as its cancellation, passed on
                thrown = error


T = TypeVar("T")

_GRACE_S: Final = 5.0
"""Time that cancelled calls may take to end."""

_current: LaneLoop | None = None


class LaneLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.is_usable = True
        self._loop = asyncio.new_event_loop()
        self._kept: weakref.WeakKeyDictionary[Any, _Resources] = weakref.WeakKeyDictionary()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="godwit-lane-loop", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the lane's event loop; block until it ends, and return its result."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            if not future.done():  # interrupted
                future.cancel()
                self._wait_for_tasks()

    def _wait_for_tasks(self) -> None:
        """Block until cancelled tasks have ended; discard the event loop if they do not.

        A cancelled future is done at once, but its task may still run.
        """

        async def end_all() -> None:
            """Wait for the cancelled tasks on the loop."""
            others = asyncio.all_tasks() - {resources.task for resources in self._kept.values()}
            await cancel_all([task for task in others if task is not asyncio.current_task()])

        try:
            asyncio.run_coroutine_threadsafe(end_all(), self._loop).result(2 * _GRACE_S)
        except NotDoneError:
            self.is_usable = False  # something holds the thread, and does not await

    async def resources(
        self, owner: Any, operator: str, factories: Mapping[str, Callable[[], Any]]
    ) -> Mapping[str, Any]:
        """Return an operator's resources (name → object), created at the first call.

        They are kept while `owner`, the operator's caller, lives. `factories`: name → user's
        function that creates the resource.
        """
        if not factories:
            return {}
        resources = self._kept.get(owner)
        if resources is None or resources.task.done():
            resources = self._kept[owner] = _Resources(operator, factories)
            weakref.finalize(owner, _close_resources, weakref.ref(self), resources).atexit = False
        return await asyncio.shield(resources.opened)

    def close(self) -> None:
        """Close all resources and the event loop, within a time limit."""
        if not self.is_usable or self.process != os.getpid() or self._loop.is_closed():
            return
        self.is_usable = False

        async def close_resources() -> None:
            """Close the resources of all operators."""
            every = list(self._kept.values())
            for resources in every:
                resources.over.set()
            if every:
                await asyncio.wait({resources.task for resources in every}, timeout=_GRACE_S)

        with contextlib.suppress(NotDoneError):
            asyncio.run_coroutine_threadsafe(close_resources(), self._loop).result(2 * _GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GRACE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule a call of `function` on the event loop; no-op if the loop is closed."""
        if self.process == os.getpid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended; discard the event loop if some do not end."""
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    ended, others = await asyncio.wait(tasks, timeout=_GRACE_S)
    for task in ended:
        if not task.cancelled():
            task.exception()  # is known: it is why all of them end, or follows from that
    if others and _current is not None:
        _current.is_usable = False


class _Resources:
    """Resources of one operator, opened and closed by one task, as some libraries require."""

    def __init__(self, operator: str, factories: Mapping[str, Callable[[], Any]]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self.over = asyncio.Event()
        self.task = loop.create_task(self._hold_open(operator, dict(factories)))

    async def _hold_open(self, operator: str, factories: Mapping[str, Callable[[], Any]]) -> None:
        """Create the operator's resources, wait until they are released, then close them.

        One task does all three, since some context managers must be left by the task that entered
        them. `factories`: name → user's function that creates the resource.
        """
        async with contextlib.AsyncExitStack() as stack:
            opened = {}
            for name, factory in factories.items():
                try:
                    opened[name] = await _open_resource(factory(), stack)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - of the user's
                    failed = _resource_error(operator, name, error)
                    failed.__cause__ = error
                    self.opened.set_exception(failed)
                    return
            self.opened.set_result(opened)
            await self.over.wait()


async def _open_resource(resource: Any, stack: contextlib.AsyncExitStack) -> Any:
    """Return the resource that a factory's result stands for, and register its closing in `stack`.

    `made`: the result: a context manager, which is entered; an awaitable, which is awaited; or the
    resource.
    """
    if hasattr(resource, "__aenter__"):
        return await stack.enter_async_context(resource)
    if hasattr(resource, "__enter__"):
        return stack.enter_context(resource)
    return await resource if hasattr(resource, "__await__") else resource


def _resource_error(operator: str, name: str, error: BaseException) -> UserFunctionError:
    """Return the error that the resource `name` of an operator could not be opened."""
    return UserFunctionError(
        f"Resource {name!r} of operator {operator!r} could not be opened: {error_line(error)}.",
        remedy="The epoch fails. Correct the factory, or check that the system it connects to is "
        f"available. Its traceback is:\n{user_traceback(error)}",
        operator=operator,
        resource=name,
    )


def _close_resources(loop: weakref.ref[LaneLoop], resources: _Resources) -> None:
    """Close the resources of an operator after it was garbage-collected."""
    lane_loop = loop()
    if lane_loop is not None:
        lane_loop.call_soon(resources.over.set)


def lane_loop() -> LaneLoop:
    """Return the event loop for asynchronous functions in this process."""
    global _current
    if _current is None or not _current.is_usable or _current.process != os.getpid():
        _current = LaneLoop()
        atexit.register(_current.close)
    return _current
