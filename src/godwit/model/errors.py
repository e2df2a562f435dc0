"""Errors that Godwit raises on purpose.

An error states the problem, its place and the remedy, and nothing confidential. Its context is
in fields as well as in the text, and survives pickling: most errors are raised in a Python worker
on an executor and read on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.model.secrets import hidden, hidden_values

__all__ = [
    "CheckpointError",
    "CheckpointInUseError",
    "CheckpointMismatchError",
    "ClusterError",
    "ConcurrentRunError",
    "CorruptCheckpointError",
    "EndingError",
    "EpochCollectedError",
    "EpochFailedError",
    "ExecutorEnvironmentError",
    "GodwitError",
    "InvalidControlError",
    "InvalidFlowError",
    "InvalidInputError",
    "InvalidPlanError",
    "InvalidProblemError",
    "LocalStoreError",
    "MigrationError",
    "PlannerFailedError",
    "PluginError",
    "ScalingError",
    "SinkError",
    "SourceError",
    "StateEncodingError",
    "StateMemoryError",
    "StopTimeoutError",
    "StorageFullError",
    "UnsupportedQueryError",
    "UserFunctionError",
]


class GodwitError(Exception):
    """Base class of all errors that Godwit raises.

    Parameters
    ----------
    message
        One sentence: the problem and its place.
    remedy
        What to do about it; appended to the error's text.
    **context
        Facts about the error (operator, key group, path, ...), available as ``error.context``.

    Examples
    --------
    >>> try:
    ...     gw.Flow("a flow")
    ... except gw.errors.GodwitError as error:
    ...     print(error.message)
    ...     print(error.remedy)
    'a flow' cannot be the name of a flow.
    Use letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_', but not
    with '__godwit'.
    """

    def __init__(self, message: str, *, remedy: str = "", **context: Any) -> None:
        self.message = hidden(message)
        self.remedy = hidden(remedy)
        self.context = hidden_values(context)
        super().__init__(f"{self.message} {self.remedy}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_error, (type(self), self.message, self.remedy, self.context)


def _unpickle_error(
    cls: type[GodwitError], message: str, remedy: str, context: dict[str, Any]
) -> GodwitError:
    """Return an error made again from its pickled parts; used by `GodwitError.__reduce__`."""
    return cls(message, remedy=remedy, **context)


class InvalidFlowError(GodwitError):
    """A flow or an option is wrong: an unknown column, an unsupported type, a reused name.

    Examples
    --------
    >>> gw.Flow("a flow")
    Traceback (most recent call last):
        ...
    godwit.model.errors.InvalidFlowError: 'a flow' cannot be the name of a flow. Use...
    """


class UnsupportedQueryError(InvalidFlowError):
    """A Spark query, or a setting of its writer, cannot be adopted.

    ``context`` has ``node``, the part of Spark's plan, and ``place``, its place in the program.

    Examples
    --------
    >>> error = gw.errors.UnsupportedQueryError("No.", remedy="Do this.", node="Aggregate")
    >>> error.context["node"]
    'Aggregate'
    """


class InvalidInputError(GodwitError):
    """Rows given to `godwit.testing`, or as initial state, do not fit: a column or type is wrong.

    Examples
    --------
    >>> gw.testing.run(delays, {"trains": []})
    Traceback (most recent call last):
        ...
    godwit.model.errors.InvalidInputError: The flow has no source 'trains'. Its...
    """


class InvalidProblemError(GodwitError):
    """A planner's input is wrong, such as a negative load; or the planner cannot be used.

    Examples
    --------
    >>> error = gw.errors.InvalidProblemError(
    ...     "The loads have a NaN.",
    ...     remedy="Measure them again.",
    ...     field="loads",
    ... )
    >>> error.context["field"]
    'loads'
    """


class InvalidControlError(GodwitError):
    """A setting of the controller is invalid, or contradicts another one.

    Examples
    --------
    >>> gw.Control(planner="the best")
    Traceback (most recent call last):
        ...
    godwit.model.errors.InvalidControlError: The controller cannot use plan...
    """


class PluginError(GodwitError):
    """A part that comes with another package is not installed, or cannot be imported.

    Examples
    --------
    >>> error = gw.errors.PluginError(
    ...     "The planner 'albic' comes with godwit-lab, which is not installed.",
    ...     remedy="pip install godwit-lab",
    ...     package="godwit-lab",
    ... )
    >>> error.context["package"]
    'godwit-lab'
    """


class PlannerFailedError(GodwitError):
    """A planner raised an exception, returned no valid plan, or did not return in time.

    Examples
    --------
    >>> error = gw.errors.PlannerFailedError(
    ...     "The planner 'milp' did not return in 5 s.",
    ...     remedy="Give it more time.",
    ...     planner="milp",
    ... )
    >>> error.context["planner"]
    'milp'
    """


class InvalidPlanError(GodwitError):
    """A plan names a key group, executor or component that does not exist, or is incomplete.

    Examples
    --------
    >>> gw.testing.cluster(delays, executors=2).migrate({9999: "2"})
    Traceback (most recent call last):
        ...
    godwit.model.errors.InvalidPlanError: Key group 9999 does not exist. Key groups...
    """


class CheckpointError(GodwitError):
    """The checkpoint cannot be used; the message names the reason and a remedy.

    Examples
    --------
    >>> error = gw.errors.CheckpointError(
    ...     "The checkpoint 'ck' cannot be used.",
    ...     remedy="Start with a new one.",
    ...     uri="ck",
    ... )
    >>> error.context["uri"]
    'ck'
    """


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another flow, or the flow has changed since it was written.

    Examples
    --------
    >>> error = gw.errors.CheckpointMismatchError(
    ...     "The checkpoint 'ck' is of flow 'trains'.",
    ...     remedy="Give that of this flow.",
    ...     flow="trains",
    ... )
    >>> error.context["flow"]
    'trains'
    """


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is missing, truncated, or fails its checksum.

    Examples
    --------
    >>> error = gw.errors.CorruptCheckpointError(
    ...     "The file 'commits/4.rec' is truncated.",
    ...     remedy="Restore it from a copy.",
    ...     file="commits/4.rec",
    ... )
    >>> error.context["file"]
    'commits/4.rec'
    """


class EpochCollectedError(CheckpointError):
    """An epoch's files were removed while it was read: a query retains only its last epochs.

    Examples
    --------
    >>> error = gw.errors.EpochCollectedError(
    ...     "Epoch 4 is not retained any more.",
    ...     remedy="Read a newer one.",
    ...     epoch=4,
    ... )
    >>> error.context["epoch"]
    4
    """


class CheckpointInUseError(CheckpointError):
    """Another query is running on this checkpoint; this one does not start.

    Examples
    --------
    >>> error = gw.errors.CheckpointInUseError(
    ...     "Another query runs on the checkpoint 'ck'.",
    ...     remedy="Stop it first.",
    ...     uri="ck",
    ... )
    >>> error.context["uri"]
    'ck'
    """


class ConcurrentRunError(CheckpointError):
    """Another run has taken over this query's checkpoint, so the query cannot commit any more.

    Examples
    --------
    >>> error = gw.errors.ConcurrentRunError(
    ...     "Another run has taken over the checkpoint 'ck'.",
    ...     remedy="Stop this one.",
    ...     uri="ck",
    ... )
    >>> error.context["uri"]
    'ck'
    """


class LocalStoreError(GodwitError):
    """The directory for local stores (``local_dir`` of `godwit.Lanes`) cannot be used.

    Examples
    --------
    >>> error = gw.errors.LocalStoreError(
    ...     "The directory '/tmp/godwit' is a file.",
    ...     remedy="Give another one.",
    ...     path="/tmp/godwit",
    ... )
    >>> error.context["path"]
    '/tmp/godwit'
    """


class StorageFullError(GodwitError):
    """The disk of the local store or the checkpoint is full.

    Examples
    --------
    >>> error = gw.errors.StorageFullError(
    ...     "There is no room left for the checkpoint.",
    ...     remedy="Free some space.",
    ...     uri="ck",
    ... )
    >>> error.context["uri"]
    'ck'
    """


class StateMemoryError(GodwitError):
    """An epoch needs more state at once than `godwit.Lanes` ``(state_memory=...)`` allows.

    Examples
    --------
    >>> error = gw.errors.StateMemoryError(
    ...     "An epoch needs 3.0 GiB of state at once in one of 2 lanes.",
    ...     remedy="Give more state_memory, or add executors.",
    ...     operator="sessions",
    ... )
    >>> error.context["operator"]
    'sessions'
    """


class StateEncodingError(GodwitError):
    """The state of a key cannot be encoded for the checkpoint, or decoded from it.

    Examples
    --------
    >>> error = gw.errors.StateEncodingError(
    ...     "A state of class Order cannot be written.",
    ...     remedy="Use a dataclass.",
    ...     operator="orders",
    ... )
    >>> error.context["operator"]
    'orders'
    """


class UserFunctionError(GodwitError):
    """A user's function raised an exception, or returned a wrong result.

    Its epoch was not committed.

    Examples
    --------
    >>> def divide(key, rows, state):
    ...     return [(1 // 0,)]
    >>> gw.testing.process(divide, [{"delay": 5}], state=int)
    Traceback (most recent call last):
        ...
    godwit.model.errors.UserFunctionError: Function 'divide' of operator 'process'...
    """


class EpochFailedError(GodwitError):
    """An epoch failed and was not committed; after a restart it is run again.

    Examples
    --------
    >>> error = gw.errors.EpochFailedError(
    ...     "Epoch 4 failed: an executor was lost.",
    ...     remedy="Start the query again.",
    ...     epoch=4,
    ... )
    >>> error.context["epoch"]
    4
    """


class ExecutorEnvironmentError(GodwitError):
    """Python does not start on an executor, or lacks a package that the flow needs.

    Examples
    --------
    >>> error = gw.errors.ExecutorEnvironmentError(
    ...     "The executors' Python has no godwit.",
    ...     remedy="Install it there.",
    ...     executor="2",
    ... )
    >>> error.context["executor"]
    '2'
    """


class ClusterError(GodwitError):
    """A local cluster, or a process of it, could not be started or found.

    Examples
    --------
    >>> error = gw.errors.ClusterError(
    ...     "A worker of the cluster ended.",
    ...     remedy="Read its log.",
    ...     log="worker-2.log",
    ... )
    >>> error.context["log"]
    'worker-2.log'
    """


class StopTimeoutError(GodwitError):
    """A query has not stopped within the time-out of ``stop``; it stops when its epoch ends.

    Examples
    --------
    >>> error = gw.errors.StopTimeoutError(
    ...     "The query has not stopped within 10 s.",
    ...     remedy="Wait for its epoch.",
    ...     timeout_s=10.0,
    ... )
    >>> error.context["timeout_s"]
    10.0
    """


class EndingError(GodwitError):
    """A query has ended, but a part of it, such as a sink, could not be closed.

    Examples
    --------
    >>> error = gw.errors.EndingError(
    ...     "The query has ended, and a sink could not be closed.",
    ...     remedy="Look at the cause.",
    ...     query="delays",
    ... )
    >>> error.context["query"]
    'delays'
    """


class SinkError(GodwitError):
    """A sink's target could not be opened or written, or has diverged from the checkpoint.

    Examples
    --------
    >>> gw.sinks.parquet("")
    Traceback (most recent call last):
        ...
    godwit.model.errors.SinkError: The Parquet sink has an empty path. Give a...
    """


class SourceError(GodwitError):
    """A source could not be opened or read, or breaks the contract of sources.

    Examples
    --------
    >>> gw.sources.rate(rows_per_second=-1)
    Traceback (most recent call last):
        ...
    godwit.model.errors.SourceError: rows_per_second is -1. Give at least 0.
    """


class MigrationError(GodwitError):
    """A migration could not start, or was cancelled; key groups that had moved are not moved back.

    Examples
    --------
    >>> error = gw.errors.MigrationError(
    ...     "The migration m1 was cancelled.",
    ...     remedy="Ask for it again.",
    ...     migration="m1",
    ... )
    >>> error.context["migration"]
    'm1'
    """


class ScalingError(GodwitError):
    """Executors could not be added or removed; the query continues with the present ones.

    Examples
    --------
    >>> error = gw.errors.ScalingError(
    ...     "No executor came within 60 s.",
    ...     remedy="Ask the cluster's operator.",
    ...     wanted=4,
    ... )
    >>> error.context["wanted"]
    4
    """


if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Raise an error that suggests a known name close to the unknown one."""
        if name.startswith("_"):
            raise AttributeError(name)
        from godwit.model.naming import no_such_name  # noqa: PLC0415  it imports this module

        raise no_such_name("gw.errors", name, __all__, {})
