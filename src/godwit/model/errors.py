"""Every error Godwit raises on purpose.

An error says what is wrong, where, and what to do about it, and nothing confidential.  Context
travels as fields, not only as text, and survives pickling: most errors are born in a Python worker
on an executor and are read on the driver.
"""

from __future__ import annotations

from typing import Any

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
    "ScalingError",
    "SinkError",
    "SourceError",
    "StateEncodingError",
    "StopTimeoutError",
    "StorageFullError",
    "UserFunctionError",
]


class GodwitError(Exception):
    """Root of all errors raised by Godwit.

    Parameters
    ----------
    message
        What is wrong and where, in one sentence.
    remedy
        What the reader can do about it; appended to the text.
    **context
        Facts about the failure (operator, key group, path, ...), readable as ``error.context``.
    """

    def __init__(self, message: str, *, remedy: str = "", **context: Any) -> None:
        self.message = hidden(message)
        self.remedy = hidden(remedy)
        self.context = hidden_values(context)
        super().__init__(f"{self.message} {self.remedy}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.remedy, self.context)


def _rebuild(
    cls: type[GodwitError], message: str, remedy: str, context: dict[str, Any]
) -> GodwitError:
    """Make an error again from its pickled parts."""
    return cls(message, remedy=remedy, **context)


class InvalidFlowError(GodwitError):
    """The flow itself is wrong: an unknown column, a key of an unsupported type, a reused name."""


class InvalidInputError(GodwitError):
    """Rows given to `godwit.testing` are no rows of a source: a column is missing, a type wrong."""


class InvalidProblemError(GodwitError):
    """A planner's input is wrong: a field is missing, negative, NaN or of the wrong size."""


class InvalidControlError(GodwitError):
    """Settings of the controller that make no sense, or contradict each other."""


class PlannerFailedError(GodwitError):
    """A planner raised, returned no valid plan, or did not return in time."""


class InvalidPlanError(GodwitError):
    """A plan or an assignment is not total, or names something that does not exist."""


class CheckpointError(GodwitError):
    """The checkpoint cannot be used."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another flow, or the flow has changed since it was written."""


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is missing, truncated, or fails its checksum."""


class EpochCollectedError(CheckpointError):
    """A read epoch was collected meanwhile: a running query retains its last epochs only."""


class CheckpointInUseError(CheckpointError):
    """Another query is running on this checkpoint; it goes on, and this one does not start."""


class ConcurrentRunError(CheckpointError):
    """Another run has taken over this checkpoint."""


class LocalStoreError(GodwitError):
    """An executor's local store cannot be where it should; nothing was changed there."""


class StorageFullError(GodwitError):
    """There is no room left for the local store or the checkpoint."""


class StateEncodingError(GodwitError):
    """A state object cannot be written with the codec of its operator, or read back."""


class UserFunctionError(GodwitError):
    """A function of the user raised; nothing of its epoch was committed."""


class EpochFailedError(GodwitError):
    """An epoch could not be carried out; nothing of it was committed."""


class ExecutorEnvironmentError(GodwitError):
    """The executors' Python cannot be started, or is not fit to run the flow."""


class ClusterError(GodwitError):
    """A local cluster, or a process of it, could not be started or found."""


class StopTimeoutError(GodwitError):
    """A query has been asked to stop and has not stopped yet; it will after its epoch."""


class EndingError(GodwitError):
    """A query has ended, and a part of it could not be stopped or closed."""


class SinkError(GodwitError):
    """A sink could not be opened or written."""


class SourceError(GodwitError):
    """A source could not be opened or read, or does not keep the contract of sources."""


class MigrationError(GodwitError):
    """A migration could not be carried out; the assignment is what it was."""


class ScalingError(GodwitError):
    """Executors could not be added or removed; the stream goes on with those there are."""
