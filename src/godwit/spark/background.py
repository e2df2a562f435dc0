"""What goes on beside the epochs: warming, dropping copies, watching executors, collecting files.

Carries out the orders of the migration protocol.  Nothing here is needed for correctness: whatever
is late, fails or is lost is reported to the protocol, which orders it again or does without.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from godwit.migration import commands, inputs, narrate
from godwit.model import events
from godwit.model.errors import MigrationError
from godwit.spark.warming import drop_copies, warm_copies
from godwit.state.collection import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.model.assignment import Assignment
    from godwit.spark.run import Run
    from godwit.state.commit_log import CommitLog

__all__ = ["Background"]

_WATCH_S = 0.25


class Background:
    """Threads of one run.

    Parameters
    ----------
    run
        The run they serve.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stopping = threading.Event()
        self._outcomes: dict[str, commands.EndMigration] = {}
        self._ended = threading.Condition()
        # One thread per executor: its copies are warmed and dropped in the order it was ordered.
        self._errands: dict[str, ThreadPoolExecutor] = {}
        self._chores = ThreadPoolExecutor(1, thread_name_prefix="godwit-chores")
        self._watcher: threading.Thread | None = None

    def close(self) -> None:
        """Take no more work; what runs may finish by itself."""
        self._stopping.set()
        for pool in [*self._errands.values(), self._chores]:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._watcher is not None:
            self._watcher.join(timeout=5)
        with self._ended:
            self._ended.notify_all()

    # -- orders of the protocol ---------------------------------------------------------------

    def carry_out(self, command: commands.Command, before: Mapping[str, Assignment]) -> None:
        """Do what the protocol orders; returns at once."""
        run = self._run
        component = getattr(command, "component", None)
        event = narrate(
            command,
            epoch=run.log.latest_epoch,
            at_s=time.time(),
            before=before.get(component) if component is not None else None,
        )
        if event is not None:
            run.emit(event)
        match command:
            case commands.StartWarming():
                self._errand(command.executor, lambda: self._warm(command))
            case commands.DropCopies():
                self._errand(command.executor, lambda: self._drop(command))
            case commands.EndMigration():
                with self._ended:
                    self._outcomes[command.id] = command
                    self._ended.notify_all()
            case _:
                pass  # concerns the next epoch, which asks the protocol for its plan

    def outcome(self, migration: str, timeout_s: float | None) -> commands.EndMigration | None:
        """How a migration ended, once it has; ``None`` if it has not by then."""
        with self._ended:
            self._ended.wait_for(
                lambda: migration in self._outcomes or self._stopping.is_set(), timeout_s
            )
            return self._outcomes.get(migration)

    def _errand(self, executor: str, work: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        pool = self._errands.get(executor)
        if pool is None:
            pool = self._errands[executor] = ThreadPoolExecutor(
                1, thread_name_prefix=f"godwit-copies-{executor}"
            )
        pool.submit(inheritable_thread_target(self._run.spark)(work))

    def _warm(self, command: commands.StartWarming) -> None:
        run = self._run
        started = time.perf_counter()
        try:
            versions = self._warmed(command)
        except Exception as error:  # noqa: BLE001  whatever it is, the protocol deals with it
            if not self._stopping.is_set():
                run.handle(
                    inputs.WarmingFailed(
                        component=command.component,
                        executor=command.executor,
                        attempt=command.attempt,
                        key_groups=command.key_groups,
                        reason=str(error).split("\n", 1)[0],
                    )
                )
            return
        run.emit(
            run.event(
                events.KeyGroupsWarmed,
                component=command.component,
                executor=command.executor,
                key_groups=command.key_groups,
                state_bytes=run.size_bytes(command.component, command.key_groups),
                duration_ms=(time.perf_counter() - started) * 1e3,
            )
        )
        run.handle(
            inputs.WarmingFinished(
                component=command.component,
                executor=command.executor,
                attempt=command.attempt,
                versions=versions,
            )
        )

    def _warmed(self, command: commands.StartWarming) -> dict[int, int]:
        """Warm the copies; return the version that each key group has in all its states."""
        run = self._run
        executor = run.executor(command.executor)
        if executor is None:
            raise MigrationError(f"Executor {command.executor} is gone.")
        reached = []
        for state in run.states_of(command.component):
            told, committed = run.warming_instruction(state, command.executor, command.key_groups)
            versions = warm_copies(
                run.errand(state, executor),
                command.key_groups,
                told,
                layout=run.layout_of(state),
                storage=run.storage,
                committed=committed,
                spark=run.spark.sparkContext,
            )
            run.saw(command.executor, state, versions)
            # A key group that has no state at all is as warm as can be: its copy misses nothing.
            reached.append({g: max(versions.get(g, -1), committed) for g in command.key_groups})
        return {g: min(versions[g] for versions in reached) for g in command.key_groups}

    def _drop(self, command: commands.DropCopies) -> None:
        run = self._run
        executor = run.executor(command.executor)
        if executor is None:
            return
        for state in run.states_of(command.component):
            run.forget(command.executor, state, command.key_groups)
            with suppress(Exception):  # a copy too many costs room, nothing else
                drop_copies(run.errand(state, executor), command.key_groups, run.spark.sparkContext)

    # -- chores -------------------------------------------------------------------------------

    def collect(self, log: CommitLog) -> None:
        """Delete files that nothing needs any more, beside the epochs."""

        def work() -> None:
            removed = collect(log)
            if removed:
                self._run.emit(self._run.event(events.FilesCollected, files=len(removed)))

        if not self._stopping.is_set():
            self._chores.submit(work)

    def watch_executors(self) -> None:
        """Begin to look for executors that come and go."""

        def watch() -> None:
            while not self._stopping.wait(_WATCH_S):
                try:
                    self._run.executors_now()
                except Exception:  # noqa: BLE001  the context may be stopping under us
                    if self._run.spark.sparkContext._jsc is None:  # noqa: SLF001
                        return

        self._watcher = threading.Thread(target=watch, name="godwit-executors", daemon=True)
        self._watcher.start()
