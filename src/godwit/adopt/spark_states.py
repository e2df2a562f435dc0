"""The state of an operator in terms of Spark's plan, for importing Spark's state.

The handlers of nodes note these parts, and `godwit.adopt.spark_checkpoint` reads Spark's state by
them. All expressions are of the JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.group_state import GroupFunctionSpec
    from godwit.adopt.stateful_processor import ProcessorSpec

Columns: TypeAlias = "tuple[tuple[str, Any], ...]"
"""Columns of an operator, each with its Spark expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateState:
    """An aggregate's operator, and the parts of Spark's plan that are in its state."""

    operator: str
    grouping: tuple[Any, ...]  # group keys of Spark's
    keys: Columns  # of the operator, over group keys
    # columns of the end of a group, and of start and end of a session, if it has them
    removed_by: str | None
    by_window: bool  # the keys have start and end of a window
    session: tuple[str, str] | None
    results: Columns  # results of the operator, and the aggregates of Spark's

    @property
    def spark_operator(self) -> str:
        """Spark's name of the operator that keeps groups, or sessions."""
        return "stateStoreSave" if self.session is None else "sessionWindowStateStoreSaveExec"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRowsState:
    """The operator of a node that drops duplicates."""

    operator: str
    grouping: tuple[Any, ...]  # key columns of Spark's
    keys: Columns  # of the operator, over these
    within: bool  # Spark's state has the time at which a key is forgotten
    expires: Any = None  # that time, over the key columns, if it is a key itself; else ``None``

    @property
    def spark_operator(self) -> str:
        """Spark's name of the operator."""
        return "dedupeWithinWatermark" if self.within else "dedupe"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSideState:
    """Rows of one side of a join."""

    keys: Columns
    columns: Columns
    expires: Any  # time that says from which watermark on no row can meet a row
    reach_us: int  # how long before that time rows expire


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinState:
    """The operator of a join of two streams."""

    operator: str
    how: str
    sides: tuple[JoinSideState, JoinSideState]  # over the columns of the side's plan
    # returns the columns that rows have in Spark's state: of the left side, and of the right one
    stored: Callable[[], tuple[list[Any], list[Any]]]

    @property
    def spark_operator(self) -> str:
        """Spark's name of the operator."""
        return "symmetricHashJoin"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionState:
    """The operator of a function with state: a processor, or one with a ``GroupState``."""

    operator: str
    spark_operator: str
    grouping: tuple[Any, ...]  # key columns of Spark's
    keys: Columns  # of the operator, over these
    spec: ProcessorSpec | GroupFunctionSpec

    @property
    def metrics(self) -> dict[str, int]:
        """Figures that the progress of Spark's operator has beside those of all operators."""
        return dict(getattr(self.spec, "metrics", {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """The operator of a limit."""

    operator: str
    spark_operator: str = "globalLimit"


OperatorState: TypeAlias = AggregateState | FirstRowsState | JoinState | FunctionState | LimitState
