"""``initial=`` as users give it: rows of the state of operators, in any form that has columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.checkpoint.records import StateId
from godwit.columns.tables import is_pandas, micros
from godwit.engine.initial_state import InitialPosition, InitialRows, InitialState
from godwit.model.errors import InvalidInputError
from godwit.model.naming import listing, type_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

    from godwit.plan.compiled import CompiledFlow

_ROWS: Final = 1 << 17
"""Rows that are converted at a time."""


def initial_state_of(
    given: Any,
    watermark: dt.datetime | str | None,
    flow: CompiledFlow,
    # returns the rows of a value that only the caller knows, such as a DataFrame; or ``None``
    known: Callable[[Any], InitialRows | None] = lambda _: None,
) -> InitialState | None:
    """Return the state that ``initial=`` gives for operators of a flow; ``None`` if it gives none.

    Raises `InvalidInputError` if it is not a mapping of operators to rows, or to states and rows.
    """
    if given is None or isinstance(given, InitialState):
        if watermark is not None:
            raise InvalidInputError(
                "The option initial_watermark was given without initial.",
                remedy="Give the state that it belongs to, or leave it out.",
            )
        return given
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"The option initial is of type {type_name(given)}.",
            remedy='Give operator → rows of its state, as in initial={"totals": table}.',
        )
    operators = {operator.name: operator for operator in flow.operators}
    rows: dict[StateId, InitialRows] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and not is_pandas(value):
            rows.update(
                (StateId(name, state), _rows_of(name, v, known)) for state, v in value.items()
            )
            continue
        states = [s.state for s in operators[name].states] if name in operators else []
        if len(states) > 1:
            raise InvalidInputError(
                f"Operator {name!r} has the states {listing(states)}, and initial= one table.",
                remedy=f'Give a table for each: initial={{"{name}": {{"{states[-1]}": table}}}}.',
                operator=name,
            )
        rows[StateId(name, states[0] if states else "state")] = _rows_of(name, value, known)
    passed = None if watermark is None else micros(watermark, "initial_watermark")
    return InitialState(rows=rows, position=InitialPosition(watermark_us=passed))


def _rows_of(operator: str, value: Any, known: Callable[[Any], InitialRows | None]) -> InitialRows:
    """Return the rows of one state; raise if a value has no rows."""
    rows = known(value)
    if rows is not None:
        return rows
    if isinstance(value, str | os.PathLike):
        import pyarrow.dataset  # noqa: PLC0415  loads Arrow's file formats

        try:
            data = pyarrow.dataset.dataset(value, format="parquet")
        except (OSError, pa.ArrowException) as error:
            raise InvalidInputError(
                f"The initial state of operator {operator!r} cannot be read from "
                f"{os.fspath(value)!r}: {error}.",
                remedy="Give a directory or file in the Parquet format.",
                operator=operator,
            ) from error
        return InitialRows(schema=data.schema, batches=partial(data.to_batches, batch_size=_ROWS))
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif is_pandas(value):
        value = pa.Table.from_pandas(value, preserve_index=False)
    elif isinstance(value, Sequence) and all(isinstance(row, Mapping) for row in value):
        value = pa.Table.from_pylist(list(value))
    if not isinstance(value, pa.Table):
        raise InvalidInputError(
            f"The initial state of operator {operator!r} is of type {type_name(value)}.",
            remedy="Give a pyarrow.Table, a DataFrame, a list of dicts, or a Parquet directory.",
            operator=operator,
        )
    return InitialRows(schema=value.schema, batches=partial(_batches_of, value))


def _batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches."""
    yield from table.to_batches(max_chunksize=_ROWS)
