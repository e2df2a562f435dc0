"""Events of the run itself: query, epochs, executors, checkpoint, listeners."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  events are read by the types of their fields
from dataclasses import dataclass, field

from godwit.model.event import Event
from godwit.model.text import counted, human_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted(Event):
    """A query started, or resumed from its checkpoint.

    Attributes
    ----------
    name
        Name of the query.
    resumed
        True if the checkpoint already had committed epochs.

    Examples
    --------
    >>> event = gw.events.QueryStarted(epoch=-1, at_s=1.0, name="delays")
    >>> print(event.describe())
    query delays started
    """

    name: str
    resumed: bool = False

    def _one_line_text(self) -> str:
        how = f"resumed after epoch {self.epoch}" if self.resumed else "started"
        return f"query {self.name} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateWritten(Event):
    """A new checkpoint begins with the state of an operator that ``initial=`` gives.

    Attributes
    ----------
    operator, state
        Names of the operator and of its state.
    entries
        Number of keys (and panes or windows) that have state.
    size_bytes
        Size of the entries in the checkpoint.
    duration_s
        Time that reading and writing took, in seconds.
    """

    operator: str
    state: str
    entries: int
    size_bytes: int
    duration_s: float

    def _one_line_text(self) -> str:
        return (
            f"{self.operator} begins with {counted(self.entries, 'row')} of state "
            f"({human_bytes(self.size_bytes)}), written in {self.duration_s:.1f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateIgnored(Event):
    """A query was started with ``initial=``, and continues from the state in its checkpoint.

    The checkpoint has epochs, and began with the same operators and columns of state.
    """

    _TEXT = "initial state ignored: the query goes on after epoch {event.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFromEpoch(Event):
    """A query was started with ``from_epoch=`` or ``as_of=``.

    Attributes
    ----------
    asked
        The argument, as text.
    after
        The epoch that it names.
    last
        The last epoch that was taken back; `after`, if there was none.
    goes_on_after
        The last committed epoch, if nothing was taken back, since an earlier start did so, or it
        was the last one; else ``None``.
    again
        Sinks that do not keep epochs: they get rows of the epochs again that were taken back.
    """

    asked: str
    after: int
    last: int
    goes_on_after: int | None
    again: tuple[str, ...]

    def _one_line_text(self) -> str:
        if self.goes_on_after is not None:
            return f"start from {self.asked}: it goes on after epoch {self.goes_on_after}"
        text = f"start from {self.asked}: epochs {self.after + 1} to {self.last} are taken back"
        if self.again:
            text += f"; {', '.join(self.again)} will get their rows again"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsChanged(Event):
    """A start has placed all state of a checkpoint in another number of key groups.

    Attributes
    ----------
    before, after
        Number of key groups of every operator.
    entries
        Number of keys (and panes or windows) that have state.
    size_bytes
        Size of the entries in the checkpoint.
    duration_s
        Time that reading and writing took, in seconds.
    """

    before: int
    after: int
    entries: int
    size_bytes: int
    duration_s: float

    def _one_line_text(self) -> str:
        return (
            f"{self.after} key groups instead of {self.before}: {counted(self.entries, 'row')} of "
            f"state ({human_bytes(self.size_bytes)}) rewritten in {self.duration_s:.1f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChanged(Event):
    """A query was started on a checkpoint that an earlier version of its flow has written.

    Attributes
    ----------
    added
        Operators that are new and start without state.
    returned
        Operators that an earlier version of the flow had removed, and that continue with the state
        that they had then.
    removed
        Operators that are no longer in the flow; the checkpoint keeps their state until it is
        dropped.
    renamed
        Old name of an operator → its new name.
    results
        Changes of aggregated results, of sinks and of their columns, as sentences.
    """

    added: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    results: tuple[str, ...] = ()

    def _one_line_text(self) -> str:
        changes = [f"{name} starts empty" for name in self.added]
        changes += [f"{name} is back, with the state it left" for name in self.returned]
        changes += [f"{name} is gone, its state is kept" for name in self.removed]
        changes += [f"{old} is now {new}" for old, new in self.renamed.items()]
        return f"flow changed after epoch {self.epoch}: {'; '.join((*changes, *self.results))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequested(Event):
    """Someone has asked for the end of the query, by `godwit stop` or `godwit drain`.

    Attributes
    ----------
    action
        ``"stop"``: it ends after the running epoch. ``"drain"``: its sources end where they are
        now, and it ends once everything is processed.
    by
        Process and host that asked.
    """

    action: str
    by: str

    _TEXT = "{event.action} requested by {event.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopped(Event):
    """A query ended because it was stopped, or because its input ended.

    Attributes
    ----------
    name
        Name of the query.
    """

    name: str

    _TEXT = "query {event.name} stopped after epoch {event.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed(Event):
    """A query ended because of an error; committed epochs stay committed.

    Attributes
    ----------
    name
        Name of the query.
    error
        Kind and text of the error.
    """

    name: str
    error: str

    _TEXT = "query {event.name} failed after epoch {event.epoch}: {event.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted(Event):
    """An epoch was committed: its commit record is durable.

    Attributes
    ----------
    rows_in, rows_out
        Number of rows read from the sources, and of rows for the sinks.
    duration_ms
        Time from the start of the epoch to its commit, in milliseconds.
    watermarks
        Source → its watermark after the epoch, in milliseconds since 1970-01-01 UTC. If maps
        compute a new event time, the key is ``<source>/<operator>``.
    waiting_key_groups
        Number of key groups whose rows had to wait in this epoch, because their executor did not
        have their state yet.
    latency_ms
        ``p50``, ``p95``, ``p99``, ``max`` and ``mean`` of the latency of its rows, from their
        arrival to the end of their delivery, in milliseconds. Empty if the epoch had no rows.
    """

    rows_in: int = 0
    rows_out: int = 0
    duration_ms: float = 0.0
    watermarks: Mapping[str, int] = field(default_factory=dict)
    waiting_key_groups: int = 0
    latency_ms: Mapping[str, float] = field(default_factory=dict)

    def _one_line_text(self) -> str:
        waiting = self.waiting_key_groups
        waits = f", {counted(waiting, 'key group')} waiting" if waiting else ""
        return (
            f"epoch {self.epoch} committed: {counted(self.rows_in, 'row')} in, "
            f"{self.rows_out} out, {self.duration_ms:.0f} ms{waits}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLeftOut(Event):
    """An event-time operator left rows of an epoch out: they are in none of its results.

    Also logged as a warning, unless a sink gets these rows.

    Attributes
    ----------
    operator
        Name of the operator.
    late
        Number of rows that came too late. For windows: earlier epochs had closed all windows of the
        row. For interval joins and ``drop_duplicates``: the row is older than the watermark after
        the previous epoch.
    ahead
        Number of rows whose event time was ahead of the driver's clock by more than the source's
        ``max_ahead``.
    untimed
        Number of rows without an event time.
    sink
        Name of the sink that got these rows (``late=`` of the operator); empty if they are lost.
    no_slack
        Sources of the operator whose slack is 0, so that any row out of order may be late.
    """

    operator: str
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    sink: str = ""
    no_slack: tuple[str, ...] = ()

    _WARNS = True

    def _one_line_text(self) -> str:
        reasons = {
            "late": self.late,
            "ahead of the clock": self.ahead,
            "without an event time": self.untimed,
        }
        counts = ", ".join(f"{counted(n, 'row')} {reason}" for reason, n in reasons.items() if n)
        where = f"; sink {self.sink} has them" if self.sink else ""
        slack = ""
        if self.late and self.no_slack:
            slack = (
                f"; the watermark of {', '.join(self.no_slack)} has no slack, so rows out of order "
                'may be late: give flow.source(..., slack="10 minutes")'
            )
        return f"operator {self.operator} left out in epoch {self.epoch}: {counts}{where}{slack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsUnreadable(Event):
    """A source could not read some rows of an epoch, or skipped rows that it no longer has.

    Also logged as a warning, unless a sink gets these rows.

    Attributes
    ----------
    source
        Name of the source.
    rows
        Number of these rows.
    sink
        Name of the sink that got these rows; empty if they are lost.
    """

    source: str
    rows: int
    sink: str = ""

    _WARNS = True

    def _one_line_text(self) -> str:
        where = f"sink {self.sink} has them" if self.sink else "they are left out"
        rows = counted(self.rows, "row")
        return f"source {self.source} could not read {rows} in epoch {self.epoch}; {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReported(Event):
    """A source reported a fact about its data that does not fail the query, by `Source.report`.

    Also logged as a warning. For example a column that is new in a table, and is not read before
    the query was started again; or a version of a table that the source's options leave out.

    Attributes
    ----------
    source
        Name of the source.
    message
        What it reported.
    """

    source: str
    message: str

    _WARNS = True

    _TEXT = "source {event.source} reported: {event.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsFailed(Event):
    """Calls of a user's function failed in an epoch, and their rows were diverted.

    Only of functions that `Flow.divert_errors` names.

    Attributes
    ----------
    operator
        Name of the operator; of a map, the operator or source before it.
    function
        Name of the function.
    calls
        Number of failed calls.
    rows
        Number of their rows; calls of timers have none.
    error
        First error: its type and message.
    key
        Key of that call, as JSON; empty for a map.
    sink
        Name of the sink that got the rows.
    """

    operator: str
    function: str
    calls: int
    rows: int
    error: str
    key: str = ""
    sink: str = ""

    def _one_line_text(self) -> str:
        key = f" for key {self.key}" if self.key else ""
        return (
            f"function {self.function} of operator {self.operator} failed in epoch {self.epoch} in "
            f"{counted(self.calls, 'call')}, first{key} with {self.error}; sink {self.sink} has "
            f"the {counted(self.rows, 'row')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletesWaited(Event):
    """An operator got more deletes of some keys than rows: the deletes wait for their rows.

    Also logged as a warning. Only of changes, with ``on_missing="wait"``.

    Attributes
    ----------
    operator
        Name of the operator.
    deletes
        Number of deletes that wait, of the keys with changes in the epoch.
    """

    operator: str
    deletes: int

    _WARNS = True

    def _one_line_text(self) -> str:
        deletes = counted(self.deletes, "delete")
        return f"operator {self.operator}: {deletes} of epoch {self.epoch} wait for their rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvicted(Event):
    """State of an operator has left the local store for the first time, by the bound on its memory.

    From now on, entries of keys that have rows are read from the checkpoint if they are not in the
    local store. Later evictions are in the metrics alone.

    Attributes
    ----------
    operator
        Name of the operator.
    key_groups
        Number of key groups whose entries left.
    table_bytes
        Size of the local stores of all executors after the epoch.
    """

    operator: str
    key_groups: int
    table_bytes: int

    def _one_line_text(self) -> str:
        return (
            f"state of {self.operator} exceeds the bound on memory: entries of "
            f"{counted(self.key_groups, 'key group')} left the local store in epoch {self.epoch}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackPaused(Event):
    """A feedback loop has run its maximum number of epochs without other input.

    Also logged as a warning.

    Attributes
    ----------
    loop
        Name of the loop.
    rounds
        Number of consecutive epochs that had only rows of loops.
    rows
        Number of rows that wait in the loop, for the next epoch with other input.
    """

    loop: str
    rounds: int
    rows: int

    _WARNS = True

    def _one_line_text(self) -> str:
        return (
            f"the loop {self.loop} pauses after {counted(self.rounds, 'round')} without other "
            f"rows; {counted(self.rows, 'row')} in it go on with the next epoch that has others"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAborted(Event):
    """An attempt to run an epoch failed; nothing of it was committed.

    Attributes
    ----------
    reason
        Reason of the failure.
    """

    reason: str

    _TEXT = "epoch {event.epoch} aborted: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsHeld(Event):
    """No further epoch can start, for example because no executor is left.

    `EpochsReleased` reports when epochs run again.

    Attributes
    ----------
    reason
        Reason why no epoch can run.
    """

    reason: str

    _TEXT = "epochs held after epoch {event.epoch}: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsReleased(Event):
    """Epochs can run again; `EpochsHeld` reported before why they could not."""

    _TEXT = "epochs released after epoch {event.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAdded(Event):
    """An executor joined; it owns no key groups until a migration moves some to it.

    Attributes
    ----------
    executor
        Name of the executor.
    lanes
        Number of its lanes (task slots).
    """

    executor: str
    lanes: int

    def _one_line_text(self) -> str:
        return f"executor {self.executor} added with {counted(self.lanes, 'lane')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDraining(Event):
    """An executor is to be removed: its key groups move away, and none moves to it any more.

    Attributes
    ----------
    executor
        Name of the executor.
    """

    executor: str

    _TEXT = "executor {event.executor} is draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLost(Event):
    """An executor died; its key groups go to other executors, which load their state.

    Attributes
    ----------
    executor
        Name of the executor.
    reason
        Reason, if it is known.
    """

    executor: str
    reason: str = ""

    def _one_line_text(self) -> str:
        return f"executor {self.executor} lost" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMaintained(Event):
    """The table of a sink was maintained: small files compacted, old versions removed.

    Attributes
    ----------
    sink
        Name of the sink.
    compacted, written
        Number of small files that were replaced, and of those that replace them.
    expired
        Number of versions that were removed; 0 where a log keeps them (Delta).
    removed
        Number of files that were deleted, since only old versions had them.
    """

    sink: str
    compacted: int = 0
    written: int = 0
    expired: int = 0
    removed: int = 0

    def _one_line_text(self) -> str:
        return (
            f"the table of sink {self.sink} was maintained: {counted(self.compacted, 'small file')}"
            f" in {self.written}, {counted(self.expired, 'version')} and "
            f"{counted(self.removed, 'file')} removed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCollected(Event):
    """Files of the checkpoint that no retained epoch needs were deleted.

    Attributes
    ----------
    files
        Number of deleted files.
    freed_bytes
        Size of the deleted files in bytes.
    """

    files: int
    freed_bytes: int = 0

    def _one_line_text(self) -> str:
        return f"{counted(self.files, 'file')} collected, {human_bytes(self.freed_bytes)} freed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesStarted(Event):
    """Resident lanes (tasks that stay alive between epochs) process small epochs from now on.

    Attributes
    ----------
    lanes
        Number of resident lanes.
    took_ms
        Time from the request of the lanes until they were ready, in milliseconds.
    """

    lanes: int
    took_ms: float

    def _one_line_text(self) -> str:
        return f"{counted(self.lanes, 'resident lane')} ready after {self.took_ms:.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesEnded(Event):
    """Resident lanes (tasks that stay alive between epochs) ended, though none had failed.

    If the query continues, its epochs run as Spark jobs until new resident lanes are ready.

    Attributes
    ----------
    reason
        Reason why they ended, such as ``"an epoch has many rows"``,
        ``"operators are repartitioned"`` or ``"the query ends"``.
    """

    reason: str

    _TEXT = "resident lanes ended: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesFailed(Event):
    """Resident lanes were lost or did not start; epochs run as Spark jobs meanwhile.

    Also logged as a warning.

    Attributes
    ----------
    reason
        Reason of the failure.
    pause_s
        Seconds until they are started again.
    """

    reason: str
    pause_s: float

    _WARNS = True

    _TEXT = (
        "resident lanes failed: {event.reason}; epochs run as Spark jobs, and lanes are "
        "started again after {event.pause_s:g} s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A listener raised an exception; it still gets later events. Once per kind of error.

    Attributes
    ----------
    listener
        Name of the listener's function.
    error
        Kind and text of the error, in one line.
    heard
        Kind of the event that the listener was called with.
    """

    listener: str
    error: str
    heard: str

    _TEXT = "listener {event.listener} failed on {event.heard}: {event.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundFailed(Event):
    """A background task failed and continues, or a part could not be closed at the end.

    Attributes
    ----------
    what
        What the task does, such as ``"watching executors"``.
    error
        Kind and text of the error, in one line.
    """

    what: str
    error: str

    _TEXT = "{event.what} failed: {event.error}"
