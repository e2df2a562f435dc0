"""The place of an aggregate in an operator: its columns, and calls of its methods, checked.

An aggregate may be the user's: what its methods return is checked where they are called, and what
they raise is told with the operator, the result and the user's own line.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of, differences, without_zones
from godwit.model.errors import (
    EpochFailedError,
    GodwitError,
    InvalidFlowError,
    UserFunctionError,
)
from godwit.model.frames import user_traceback
from godwit.operators.aggregates.aggregate import Aggregate, Aggregator, BoundAggregate, BuiltIn
from godwit.operators.aggregates.sums import SumOverflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from godwit.checkpoint.evolution import StateUpgrade

__all__ = ["Slot", "check_distinct", "key_named", "slots_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One aggregate's place in an operator."""

    # operator, name: names of the operator and of the result
    operator: str
    name: str
    aggregate: BoundAggregate  # the aggregate
    columns: tuple[str, ...]  # names of its columns among the operator's inputs
    first: int  # position of its first column among the operator's state columns
    fields: tuple[pa.Field, ...]  # its state columns, by the operator's names

    def of(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the aggregate's own columns, by its own names."""
        columns = [state.column(self.first + i) for i in range(len(self.fields))]
        return pa.RecordBatch.from_arrays(columns, schema=self.aggregate.state)

    @property
    def description(self) -> dict[str, object]:
        """What the checkpoint keeps of it."""
        return {
            "state": [field.name for field in self.fields],
            "aggregate": without_zones(self.aggregate.describe()),
        }

    def differences(self, stored: StateDescription) -> Iterator[str]:
        """Say in what way the aggregate is not the one that was stored."""
        where = f"result {self.name!r}: "
        found = list(differences(where, stored.type[self.name], self.description))
        yield from found
        types = dict(stored.columns)
        for name, dtype in () if found else columns_of(self.fields):
            if types.get(name) != dtype:
                yield f"{where}its state column {name!r} was {types.get(name)} and is {dtype}"

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """Bring the aggregate's columns forward where it is not the one that was stored."""
        if not isinstance(self.aggregate, BuiltIn):
            return None
        return self.aggregate.upgrade_from(stored.type[self.name]["aggregate"])

    def create(self, count: int) -> pa.RecordBatch:
        """Return new states."""
        return self.call("create", lambda: self.aggregate.create(count), count=count, keys=None)

    def call(
        self, method: str, function: Callable[[], Any], *, count: int, keys: pa.RecordBatch | None
    ) -> Any:
        """Call one of the aggregate's functions; say where it failed if it does."""
        try:
            result = function()
        except SumOverflowError as error:
            raise self._overflow(error, keys) from error
        except GodwitError:
            raise
        except (Exception, SystemExit) as error:
            if not isinstance(self.aggregate, Aggregator):
                raise
            raise self._failure(
                f"{method}() raised {type(error).__name__}: {error}",
                f"Correct the function; its traceback is:\n{user_traceback(error)}",
            ) from error
        if isinstance(self.aggregate, Aggregator):
            self._check(method, result, count)
        return result

    def _check(self, method: str, result: Any, count: int) -> None:
        """Check what a function of the user returned."""
        if method == "finish":
            wanted, kind, dtype = "pyarrow.Array", pa.Array, self.aggregate.output
            found = getattr(result, "type", None)
        else:
            wanted, kind, dtype = "pyarrow.RecordBatch", pa.RecordBatch, self.aggregate.state
            found = getattr(result, "schema", None)
        if not isinstance(result, kind):
            raise self._failure(
                f"{method}() returned a value of type {type(result).__name__}",
                f"Return a {wanted}.",
            )
        if found != dtype:
            raise self._failure(
                f"{method}() returned {_flat(found)} where {_flat(dtype)} is declared",
                "Cast the result, or correct the declaration.",
            )
        if len(result) != count:
            raise self._failure(
                f"{method}() returned {len(result)} rows for {count} states",
                "Return one row for every state, in their order.",
            )

    def _failure(self, what: str, remedy: str) -> UserFunctionError:
        kind = type(self.aggregate).__qualname__
        return UserFunctionError(
            f"Aggregate {self.name!r} ({kind}) of operator {self.operator!r}: {what}.",
            remedy=remedy,
            operator=self.operator,
            aggregate=self.name,
        )

    def _overflow(self, error: SumOverflowError, keys: pa.RecordBatch | None) -> EpochFailedError:
        key = (
            None if keys is None else tuple(column[error.group].as_py() for column in keys.columns)
        )
        whose = "a key" if key is None else f"key {key!r}"
        return EpochFailedError(
            f"Aggregate {self.name!r} of operator {self.operator!r}: the sum for {whose} does not "
            f"fit {error.dtype}.",
            remedy="Cast the column in a map: integers to decimal(28, 0), or anything to double.",
            operator=self.operator,
            aggregate=self.name,
            key=key,
            group=error.group,
        )


@contextmanager
def key_named(keys: Callable[[], pa.RecordBatch]) -> Iterator[None]:
    """Name the key in an error about one of several groups.

    Parameters
    ----------
    keys
        Gives the key of each group.
    """
    try:
        yield
    except EpochFailedError as error:
        group = error.context.pop("group", None)
        if group is None or error.context.get("key") is not None:
            raise
        key = tuple(column[group].as_py() for column in keys().columns)
        message = error.message.replace("for a key", f"for key {key!r}")
        raise EpochFailedError(
            message, remedy=error.remedy, **{**error.context, "key": key}
        ) from error


def slots_of(operator: str, inputs: pa.Schema, aggregates: Mapping[str, Aggregate]) -> list[Slot]:
    """Bind an operator's aggregates, and lay their state columns side by side.

    Raises
    ------
    InvalidFlowError
        If an aggregate cannot be bound to the columns; names the result.
    """
    slots = []
    first = 0
    for name, aggregate in aggregates.items():
        try:
            bound = aggregate.bind(inputs)
        except InvalidFlowError as error:
            raise InvalidFlowError(
                f"Result {name!r} of operator {operator!r}: {error.message}",
                remedy=error.remedy,
                **{**error.context, "operator": operator, "result": name},
            ) from error
        single = len(bound.state) == 1
        fields = tuple(
            pa.field(name if single else f"{name}__{field.name}", field.type)
            for field in bound.state
        )
        slots.append(
            Slot(
                operator=operator,
                name=name,
                aggregate=bound,
                columns=tuple(aggregate.columns),
                first=first,
                fields=fields,
            )
        )
        first += len(fields)
    return slots


def check_distinct(operator: str, names: list[str]) -> None:
    """Refuse columns of the same name.

    Raises
    ------
    InvalidFlowError
        If there are any.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidFlowError(
            f"Operator {operator!r} would have several columns named {twice[0]!r}.",
            remedy="Give its results names that differ from the key columns and from each other.",
            operator=operator,
            columns=twice,
        )


def _flat(declared: object) -> str:
    """Return a schema on one line."""
    if isinstance(declared, pa.Schema):
        return "columns " + ", ".join(f"{field.name}: {field.type}" for field in declared)
    return f"type {declared}"
