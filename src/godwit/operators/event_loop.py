"""The event loop of a lane process, and the resources that stay open on it between epochs.

A client of another system, such as a session or a connection pool, belongs to the loop on which it
was created, and is expensive to open.  So a process has one loop, on a thread of its own, for as
long as it lives; a lane waits while the loop runs its calls.  The lane's thread may have another
loop, as in a notebook, which is not used.

Invariant: an interrupt ends the wait of a lane at once, and cancelled calls get a bounded time to
end.  A loop whose calls do not end is discarded, and the next epoch creates another.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from concurrent.futures import TimeoutError as NotDoneError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from godwit.model.errors import UserFunctionError
from godwit.model.frames import user_traceback
from godwit.model.naming import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

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
    """Resources of one operator, opened and closed by one task, as some of them demand."""

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
