"""Common base of sinks whose target stores epochs, such as Parquet's and those of databases.

Such a target gets the rows of an epoch and the epoch's `HistoryPoint` in one atomic step.  That
makes a second delivery change nothing, and lets a start compare target and checkpoint
(`godwit.sinks.continuity`).  A new sink of this kind derives from `TargetSink` and implements
`_fit`, `_try_target`, `open`, `deliver`, `last_delivered`, `roll_back` and `continue_after`; it
says itself if epochs may be delivered beside lanes (`delivers_concurrently`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import pyarrow as pa

from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.sinks.rows import column_names
from godwit.sinks.sink import Sink, SinkContext
from godwit.sinks.writing import TargetLayout, Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.model.secrets import Secrets
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import CommittedEpochs


RESERVED_NAMES: Final = frozenset(["_staging", "_godwit"])
"""Names in a target's directory that sinks use beside the rows."""


class TargetSink(Sink):
    """Sink whose target stores epochs; subclasses set `_context` in `_fit`."""

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError,)  # errors of the target's library
    takes_other_writers: ClassVar[bool] = False  # several sinks may write to one target
    # names in the target's directory that are not for others
    reserved_names: ClassVar[frozenset[str]] = RESERVED_NAMES
    deletes: ClassVar[bool] = False  # the target can delete rows by key: see `_set_layout`
    _writing: Writing = Writing()  # how the user says that rows are written
    _context: SinkContext
    _layout: TargetLayout

    def __init__(self, kind: str, *, secrets: Secrets, rejects: Sink | None, **place: str) -> None:
        self._kind = kind  # as in "Parquet sink"
        self._place = place  # where rows go, for errors: ``path=`` or ``table=``
        self._secrets = secrets
        self._rejects = checked_rejects(rejects)
        self._retry_policy = RetryPolicy()  # of commits that lose against other writers

    @property
    def rejects(self) -> Sink | None:
        return self._rejects

    @property
    def row_keys(self) -> tuple[str, ...]:
        return () if self._writing.keys is None else column_names(self._writing.keys)

    @property
    def keeps_epochs(self) -> bool:
        return True

    def _fit(self, context: SinkContext) -> None:
        """Set what follows from configuration and columns, or raise; the first step of `open`."""
        self._context = context

    def _try_target(self) -> RowCheck | None:
        """Check a target as `open` does, but leave it as it is; called after `_fit`, on a copy."""
        return None

    def check_columns(self, context: SinkContext) -> None:
        """Raise if the configuration does not fit the rows."""
        copy.copy(self)._fit(context)  # noqa: SLF001  the sink itself may be open

    def check(self, context: SinkContext) -> RowCheck | None:
        """Check the target as `open` does, but leave it as it is; return the rows' check."""
        trial = copy.copy(self)
        trial._fit(context)  # noqa: SLF001  of the same class
        return trial._try_target()  # noqa: SLF001

    @staticmethod
    def text_of(error: Exception) -> str:
        """Return the text of an error of the target's library."""
        return str(error)

    def _set_layout(self, context: SinkContext) -> SinkContext:
        """Set `_layout` and `_context`, which has the columns of the target; return the latter.

        The context's kind is ``"rows"`` unless rows are deleted by key.
        """
        self._context = context
        self._layout = self._writing.layout(context, deletes=self.deletes)
        self._context = self._layout.context
        for key in self._layout.row_keys:
            dtype = self._context.schema.field(key).type
            if pa.types.is_nested(dtype):
                raise self._target_error(
                    f"column {key!r} of type {dtype} cannot be a key",
                    "Identify rows by columns of primitive types (keys=[...]).",
                )
        return self._context

    @contextlib.contextmanager
    def _translating_errors(self, what: str, remedy: str, **context: Any) -> Iterator[None]:
        """Context that turns errors of the target's library into `SinkError`, without secrets.

        `what`: the action that fails, as text. `context`: further fields of the error.
        """
        try:
            yield
        except SinkError:
            raise
        except self.failures as error:
            raise self._target_error(
                f"{what}: {self.text_of(error)}", remedy, **context
            ) from self._secrets.cause(error)

    def _target_error(self, what: str, remedy: str, **context: Any) -> SinkError:
        """Return an error about the target, without secrets; `what`: the problem as text."""
        on_table = f" on table {self._place['table']}" if "table" in self._place else ""
        return SinkError(
            f"{self._kind} sink {self._context.name!r}{on_table}: {self._secrets.hide(what)}.",
            remedy=remedy,
            sink=self._context.name,
            **self._place,
            **context,
        )

    def _conflict_error(self, epoch: int, retries: CommitRetries) -> SinkError:
        """Return the error that other writers commit too often for an epoch to be committed."""
        return self._target_error(
            f"epoch {epoch} cannot be committed: {retries.story()}",
            "Let the others commit less often, or write to a table of your own. Nothing is lost: "
            "the epoch is delivered after the next start.",
            epoch=epoch,
        )

    def _rollback_error(self, last_epoch: int, min_epoch: int) -> SinkError:
        """Return the error that a roll-back would remove epochs that cannot be delivered again."""
        return self._target_error(
            f"cannot be rolled back: it would have epochs up to {last_epoch}, and epochs up to "
            f"{min_epoch} were delivered to it and are not delivered again",
            "Restore the target as it was with this checkpoint; start from a backup of the "
            "checkpoint that is as old as what both have; or continue anyway, "
            'on_divergence="new_writer".',
        )


def checked_rejects(sink: Sink | None) -> Sink | None:
    """Return the user's sink of rejected rows; raise if it is not valid."""
    if sink is None or (callable(getattr(sink, "deliver", None)) and sink.rejects is None):
        return sink
    what = "has a sink of rejected rows itself" if hasattr(sink, "rejects") else "is not a sink"
    raise SinkError(
        f"rejects={sink!r} {what}.",
        remedy='Give a plain sink, such as gw.sinks.parquet("out/rejected").',
    )


def is_shared(point: HistoryPoint, epochs: CommittedEpochs) -> bool:
    """Return whether an epoch in a target belongs to the checkpoint's history.

    A point without a digest, from earlier versions, is compared by its number.
    """
    if point.epoch > epochs.latest_epoch:
        return False
    return not point.digest or epochs.relation(point) in {"shared", "unknown"}


def point_of_epoch(epochs: CommittedEpochs, epoch: int) -> HistoryPoint:
    """Return an epoch with its history and digest, which are empty if its record is gone."""
    return epochs.point(epoch) if epoch in epochs.retained_epochs else point_without_history(epoch)


def point_without_history(epoch: int, query_id: str = "") -> HistoryPoint:
    """Return an epoch of unknown history as a point; -1 stands for no epoch."""
    return HistoryPoint(query_id=query_id, history="", epoch=epoch, digest="")


def point_text(point: HistoryPoint, writer: str, **facts: object) -> str:
    """Return a writer's last epoch as JSON text for a target; `facts`: further fields."""
    return json.dumps({**msgspec.to_builtins(point), "writer": writer, **facts}, sort_keys=True)


def read_point_text(
    text: Any, query_id: str, writer: str
) -> tuple[HistoryPoint, dict[str, Any]] | None:
    """Return the epoch and all fields of a text of `point_text`; ``None`` for another writer's."""
    try:
        fields = json.loads(text)
        point = msgspec.convert(fields, HistoryPoint)
    except (TypeError, ValueError):
        return None
    is_own = (point.query_id, fields.get("writer")) == (query_id, writer)
    return (point, fields) if is_own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Time, waits, clock and random source of the attempts to commit an epoch."""

    max_s: float = 300.0  # no attempt begins later, unless there were fewer than `min_attempts`
    min_attempts: int = 10  # however long they take
    min_wait_bound_s: float = 0.05
    max_wait_bound_s: float = 8.0  # or the duration of an attempt, if it takes longer
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    # Of a generator of its own: two drivers must not wait in step.
    uniform: Callable[[float, float], float] = field(
        default_factory=lambda: random.Random().uniform  # noqa: S311
    )


class CommitRetries:
    """Attempts to commit one epoch: `begin` each one, and `wait_after_conflict` if it lost.

    A table format commits optimistically: a commit that was prepared for version n is refused if
    another writer has committed version n + 1 meanwhile. An attempt that takes `a` seconds beside a
    writer that commits every `i` seconds wins with probability 1 - a / i if it begins at a random
    time, and may never win if it begins when the other writer has just committed. So an epoch is
    tried for a time, not a number of times, with random waits between the attempts whose bound
    grows exponentially ("full jitter"). The first bound is the duration of an attempt: slow merges
    wait longer.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._start_s = self._attempt_start_s = policy.clock()
        self._num_attempts = 0
        self._first_version: int | None = None
        self._version = 0
        self._last_writer = ""
        self._attempt_s = 0.0  # duration of the last attempt

    def begin(self, version: int, last_writer: str = "") -> None:
        """Begin an attempt on version `version` of the table, which `last_writer` committed."""
        if self._first_version is None:
            self._first_version = version
        self._version, self._last_writer = version, last_writer
        self._attempt_start_s = self._policy.clock()
        self._num_attempts += 1

    def wait_after_conflict(self) -> bool:
        """Wait after an attempt that lost; return ``False`` if there is no time for another."""
        policy, now_s = self._policy, self._policy.clock()
        self._attempt_s = now_s - self._attempt_start_s
        if now_s - self._start_s >= policy.max_s and self._num_attempts >= policy.min_attempts:
            return False
        unit_s = max(policy.min_wait_bound_s, self._attempt_s)
        growth = 2.0 ** min(self._num_attempts - 1, 30)
        bound_s = min(unit_s * growth, max(policy.max_wait_bound_s, unit_s))
        policy.sleep(policy.uniform(0.0, bound_s))
        return True

    def story(self) -> str:
        """Return the attempts and the commits of the other writers, as text for errors."""
        elapsed_s = self._policy.clock() - self._start_s
        num_others = self._version - (self._first_version or 0) + 1
        last = f", the last one {self._last_writer}" if self._last_writer else ""
        return (
            f"{self._num_attempts} attempts in {elapsed_s:.0f} s met commits of other writers. "
            f"They committed {num_others} times, every {elapsed_s / max(num_others, 1):.1f} s"
            f"{last}; an attempt takes {self._attempt_s:.1f} s"
        )
