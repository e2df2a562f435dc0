"""What the driver knows of an executor."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Executor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One executor.

    Attributes
    ----------
    name
        Spark's executor id, or ``local-<n>``.
    lanes
        Lanes it runs: its cores divided by ``spark.task.cpus``.
    location
        How a task's preferred location names it; ``None`` in local mode.
    """

    name: str
    lanes: int
    location: str | None
