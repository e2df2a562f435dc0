"""``async def`` functions per key: keys run side by side, the calls for one key in order.

A call that waits for another system leaves the lane to other keys: up to ``capacity`` of them are
under way at once.  Rows come out in the order of keys and calls whatever was answered first, so an
epoch's output is that of plain functions that get the same answers.

An attempt at a key that raises, or takes too long, is done again from the beginning: all calls for
the key in this epoch, with the state and timers that it had before the epoch.  So nothing of a
failed attempt is left.

Source: asynchronous I/O of Flink (capacity, time-out, retries); here with state, so the order is by
key.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import GodwitError
from godwit.model.frames import function_failed
from godwit.model.naming import type_name
from godwit.model.signatures import awaiting_hint
from godwit.operators.event_loop import cancel_all, lane_loop

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from godwit.operators.asynchronous import Async
    from godwit.operators.calls import Call, Calls, KeysToCall, Meter


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

    async def _run_all_keys(self, work: KeysToCall, named: Mapping[str, Any]) -> list[_Finished]:
        """Run the calls of all keys concurrently; the first error cancels the others."""
        finished = [_Finished() for _ in work.keys]
        waiting = iter(range(len(finished)))

        async def some() -> None:
            """Run keys one after another, as one of the concurrent workers."""
            for group in waiting:
                started_s = time.perf_counter()
                steps = _Steps(self._run_key(work, group, named))
                finished[group].rows = await steps
                finished[group].cpu_s = steps.cpu_s
                finished[group].took_s = time.perf_counter() - started_s

        count = min(self._settings.capacity, len(finished))
        workers = [asyncio.create_task(some()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            await cancel_all(workers)
            raise
        return finished

    async def _run_key(self, work: KeysToCall, group: int, named: Mapping[str, Any]) -> list[Any]:
        """Run all calls for key number `group`, with retries; return the emitted rows."""
        settings, of_key = self._settings, work.called[group]
        timers = list(of_key.timers)
        attempt = 1
        while True:
            try:
                rows = await self._attempt_key(work, group, named)
            except _FailedCall as failed:
                error = failed.error
                again = isinstance(error, settings.retry_on) and not isinstance(error, GodwitError)
                if attempt > settings.retries or not again:
                    raise function_failed(
                        self._calls.operator,
                        failed.call.function,
                        work.keys[group],
                        error,
                        called=failed.call.text(named),
                        attempts=attempt,
                    ) from error
            else:
                work.done(group)
                return rows
            work.reset(group)
            of_key.restart(timers)
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
    """An error of a user's function, until it is known whether it is tried again."""

    def __init__(self, call: Call, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error


@dataclass(slots=True)
class _Finished:
    """Rows of a key, and what they took."""

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
        return self._run(steps)

    def _run(self, steps: Any) -> Generator[Any, None, Any]:
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
