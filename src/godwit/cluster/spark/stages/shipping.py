"""What travels to executors, unpacked once per Python process: a flow's program, an epoch's orders.

A Python process runs many lanes, one after the other, and unpacking what all of them are told takes
longer than many a lane.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from godwit.cluster.spark.platform.worker_memory import settle
from godwit.cluster.spark.stages import by_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark import Broadcast, SparkContext

    from godwit.cluster.spark.run.feeds import FeedInput
    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction

__all__ = ["Program", "ShippedEpoch", "ShippedProgram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What executors need of a flow.

    Attributes
    ----------
    feeds
        How source rows are laid out: the inputs of each feed.
    lanes
        The operators.
    schema
        Arrow schema of the source rows.
    """

    feeds: tuple[tuple[FeedInput, ...], ...]
    lanes: LaneFlow
    schema: pa.Schema


class ShippedProgram:
    """A program on its way to executors, by broadcast.

    Attributes
    ----------
    here
        The program itself, on the driver; ``None`` elsewhere.
    """

    def __init__(self, program: Program, key: str, spark: SparkContext) -> None:
        self.here: Program | None = program
        self._key = key
        # Functions and classes of the user may live in __main__, or in other functions.
        self._broadcast: Broadcast[bytes] = spark.broadcast(by_value.dumps(program))

    def get(self) -> Program:
        """Give the program to a task of this process."""
        if self._key not in _programs:
            _programs.clear()
            _programs[self._key] = pickle.loads(self._broadcast.value)  # noqa: S301  our own driver's
        settle(self._key)
        return _programs[self._key]

    def destroy(self) -> None:
        """Remove it from the executors."""
        self._broadcast.destroy()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "here": None}


Arrived: TypeAlias = "Mapping[int, Sequence[bytes]]"
"""Place → payloads for it."""


class ShippedEpoch:
    """What the lanes of one attempt at an epoch are told, on its way with their tasks.

    Parameters
    ----------
    instruction
        The instruction.
    arrived
        Payloads that come with it, in place of an exchange.
    """

    def __init__(self, instruction: EpochInstruction, arrived: Arrived) -> None:
        self._key = (instruction.run_id, next(_attempts))
        self._data = pickle.dumps((instruction, arrived))

    @property
    def instruction(self) -> EpochInstruction:
        """What the lanes are told; nobody may change it."""
        return self._unpacked()[0]

    def arrived(self, place: int) -> list[bytes]:
        """Payloads that came along for one place."""
        return list(self._unpacked()[1].get(place, ()))

    def _unpacked(self) -> tuple[EpochInstruction, Arrived]:
        if self._key not in _epochs:
            _epochs.clear()
            _epochs[self._key] = pickle.loads(self._data)  # noqa: S301  our own driver's
        return _epochs[self._key]


_programs: dict[str, Program] = {}
_epochs: dict[tuple[str, int], tuple[EpochInstruction, Arrived]] = {}
_attempts = count()
