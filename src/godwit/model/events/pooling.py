"""Events of the pool of executors: asked for, given back, and what came of a scaling by hand."""

from __future__ import annotations

from dataclasses import dataclass

from godwit.model.events.event import Event
from godwit.model.wording import counted

__all__ = [
    "ExecutorKept",
    "ExecutorRemoved",
    "ExecutorsMissing",
    "ExecutorsRequested",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsRequested(Event):
    """The cluster was asked for more executors; each that comes is an `ExecutorAdded`.

    Attributes
    ----------
    count
        How many more.
    total
        How many there are to be then.
    """

    count: int
    total: int

    def _line(self) -> str:
        return f"asked the cluster for {counted(self.count, 'more executor')}, {self.total} in all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsMissing(Event):
    """Executors that the cluster was asked for do not come, and are not waited for any more."""

    count: int
    reason: str

    def _line(self) -> str:
        return f"{counted(self.count, 'executor')} did not come: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRemoved(Event):
    """An executor that owned nothing any more was given back to the cluster, and is gone."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKept(Event):
    """An executor that was draining stays: key groups may move onto it again."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStarted(Event):
    """Somebody asked for another number of executors.

    Attributes
    ----------
    before, wanted
        Executors there are, without those that drain, and executors there are to be.
    """

    before: int
    wanted: int

    def _line(self) -> str:
        return f"scaling from {counted(self.before, 'executor')} to {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFinished(Event):
    """There are as many executors as were asked for, and key groups are where they are to be.

    Attributes
    ----------
    executors
        Those there are.
    moved
        Key groups that changed executor for it.
    """

    executors: tuple[str, ...]
    moved: int

    def _line(self) -> str:
        return (
            f"scaled to {counted(len(self.executors), 'executor')} "
            f"({', '.join(self.executors)}), {counted(self.moved, 'key group')} moved"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFailed(Event):
    """A scaling ended early; what had been done stays, and no executor drains because of it."""

    wanted: int
    reason: str

    def _line(self) -> str:
        return f"scaling to {counted(self.wanted, 'executor')} failed: {self.reason}"
