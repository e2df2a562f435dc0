"""Bringing a key's state from what its type was to what it is."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.checkpoint.evolution import plain
from godwit.model.errors import CheckpointMismatchError, StateEncodingError, UserFunctionError
from godwit.model.faults import user_traceback
from godwit.values.changes import changes_between, let_go, read_plain
from godwit.values.codec import MsgpackCodec, UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.values.codec import StateCodec

__all__ = ["StatesBroughtForward", "nothing_beside", "upgrade_between"]

_NO_MOMENT = 2**61
"""In a column of moments: none; as `godwit.operators.windows.grid.END`."""


def nothing_beside(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Give state columns as they begin: no timers, no expiry, nothing noted of a list or map."""
    columns = [
        pa.array([_NO_MOMENT] * count, field.type)
        if pa.types.is_integer(field.type)
        else pa.array([b""] * count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def upgrade_between(
    operator: str,
    written: WrittenState,
    today: StateDescription,
    codec: StateCodec,
    function: Callable[[Any], Any] | None,
    *,
    option: str = ".process(state_upgrade=...)",
) -> StateUpgrade | None:
    """Say how state of one description becomes state of another.

    Returns ``None`` where today's codec reads the old state as it is.
    """
    stored = written.description
    if (stored.codec, plain(stored.type)) == (today.codec, plain(today.type)):
        return None
    reader = codec
    if function is None:
        refused, rewritten = [], False
        if stored.codec != today.codec:
            refused = [f"codec: {stored.codec} → {today.codec}"]
        elif not isinstance(codec, MsgpackCodec):
            refused = [f"class: {stored.type['class']} → {today.type['class']}"]
        else:
            changes = changes_between(stored.type, today.type)
            refused = changes.refused
            if stored.type["form"] == "native" and not codec.reads_native:
                refused = [*refused, "it was written in a form that today's type does not have"]
            rewritten = changes.widened or bool(changes.renamed) or bool(written.gone)
            reader = codec.with_names(changes.renamed)
        if refused:
            raise CheckpointMismatchError(
                f"The state of operator {operator!r} in the checkpoint does not fit its type of "
                f"today: {'; '.join(refused)}.",
                remedy=f"Give {option} a function that makes today's state of "
                "the old one, undo the change, or give the operator a new name, under which it "
                "starts empty.",
                operator=operator,
                differences=refused,
            )
        if not rewritten:
            return None
    return StatesBroughtForward(
        operator=operator,
        stored=stored.type,
        gone=written.gone,
        reader=reader,
        codec=codec,
        function=function,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesBroughtForward:
    """A `StateUpgrade` of Python state; every state is written anew."""

    operator: str  # whose state, for messages
    stored: dict[str, Any]  # description of the type as it was; of a pickle, its class
    # name of a record → fields that some version of it in between did not have
    gone: Mapping[str, frozenset[str]]
    # reads what was written as today's type; of no use where there is a `function`
    reader: StateCodec
    codec: StateCodec  # writes today's type
    # what the user gave: the old state, as plain values, to the new one
    function: Callable[[Any], Any] | None

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Give as many states; those that were removed, which have no bytes, stay so."""
        at = values.schema.get_field_index("state")
        blobs = values.column(at).to_pylist()
        made = [self._upgraded(row, blob) if blob else blob for row, blob in enumerate(blobs)]
        field = values.schema.field(at)
        return values.set_column(at, field, pa.array(made, field.type))

    def _upgraded(self, row: int, blob: bytes) -> bytes:
        if self.gone:
            blob = let_go(blob, self.stored, self.gone)
        try:
            state = self._read(row, blob)
            (written,) = self.codec.encode([state])
        except UnencodableError as error:
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot take up its old state as what it is today: "
                f"{error}.",
                remedy="Let state_upgrade= return a state of today's type.",
                operator=self.operator,
                row=row,
            ) from error
        if self.function is None and not _agree(
            old := read_plain(blob, self.stored), read_plain(written, self.codec.describe())
        ):
            raise StateEncodingError(
                f"Operator {self.operator!r} has old state with a number that today's type does "
                f"not have: {old!r:.200}.",
                remedy="Say with state_upgrade= what is to become of whole numbers that no float "
                "is equal to.",
                operator=self.operator,
                row=row,
            )
        return written

    def _read(self, row: int, blob: bytes) -> Any:
        if self.function is None:
            return self.reader.decode([memoryview(blob)])[0]
        is_pickle = "class" in self.stored  # which was asked for by name
        old = pickle.loads(blob) if is_pickle else read_plain(blob, self.stored)  # noqa: S301
        try:
            return self.function(old)
        except Exception as error:
            raise UserFunctionError(
                f"The state_upgrade function of operator {self.operator!r} raised "
                f"{type(error).__qualname__}: {error}.",
                remedy="Correct the function: an old state may be of any earlier version that is "
                f"still in the checkpoint; this one was {old!r:.200}. Its traceback is:\n"
                f"{(text := user_traceback(error))}",
                operator=self.operator,
                row=row,
                traceback=text,
            ) from error


def _agree(old: Any, new: Any) -> bool:
    """Whether what was there before is the same; there may be more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_agree(held, new[key]) for key, held in old.items() if key in new)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_agree, old, new))
    return bool(old == new) or (old != old and new != new)  # noqa: PLR0124 - NaN alone
