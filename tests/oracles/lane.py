"""A lane in a dozen lines: runs an operator over epochs, with a dict for the local store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.columns.groups import group_rows
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.library.compute import ComputeOperator
from godwit.operators.operator import STATE, OperatorInput
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from godwit.columns.groups import Groups
    from godwit.operators.operator import KeyedOperator
    from godwit.store.changes import EntryRange
    from godwit.store.columns import StateSchema

__all__ = ["DictView", "Lane", "Processed", "grouped"]

Key = tuple[Any, ...]


def grouped(keys: pa.RecordBatch, num_key_groups: int = 16) -> tuple[Groups, pa.RecordBatch]:
    """Group rows by key, and give the key of each group."""
    keys = canonical_keys(keys)
    groups = group_rows(hash_keys(keys), keys, num_key_groups)
    return groups, keys.take(pa.array(groups.first_row))


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """An `OperatorOutput` without absent parts."""

    output: pa.RecordBatch
    state: pa.RecordBatch
    removed: npt.NDArray[np.bool_] | None
    cpu_ms: npt.NDArray[np.float64] | None
    busy_ms: npt.NDArray[np.float64] | None


@dataclass
class DictView:
    """A `godwit.operators.operator.StateView` of a dict: key → its state columns."""

    store: Mapping[Key, Mapping[str, Any]]
    schema: StateSchema

    def find(
        self,
        keys: pa.RecordBatch,
        key_groups: npt.NDArray[np.integer],
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look every key up."""
        stored = [self.store.get(key) for key in _tuples(keys)]
        blank = dict.fromkeys(self.schema.values.names)
        values = [dict(state) if state else blank for state in stored]
        known = np.array([state is not None for state in stored], np.bool_)
        return known, pa.RecordBatch.from_pylist(values, schema=self.schema.values)

    def scan(self, entry_range: EntryRange | None = None) -> StateRows:
        """Give all of them."""
        assert entry_range is None, "there are no moments"
        names = self.schema.keys.names
        keys = pa.RecordBatch.from_pylist(
            [dict(zip(names, key, strict=True)) for key in self.store], schema=self.schema.keys
        )
        values = pa.RecordBatch.from_pylist(
            [dict(state) for state in self.store.values()], schema=self.schema.values
        )
        return StateRows(hashes=hash_keys(keys), keys=keys, values=values)

    def select(self, columns: object, part: object, choose: object) -> StateRows:
        """Not asked for without moments."""
        raise NotImplementedError(columns, part, choose)

    def min_after(self, column: int, after: int) -> int:
        """There are no moments."""
        return 2**61


class Lane:
    """Runs one operator.

    Batches hold the key columns, then the operator's inputs.
    """

    def __init__(self, operator: KeyedOperator, num_key_groups: int = 16) -> None:
        self.operator = operator
        self.num_key_groups = num_key_groups
        self.store: dict[Key, dict[str, Any]] = {}

    def epoch(self, batch: pa.RecordBatch) -> Processed:
        """Run an epoch on raw rows."""
        keys, rows = self._split(batch)
        return self._process(canonical_keys(keys), rows, partial=False)

    def epoch_of_partials(self, batches: Sequence[pa.RecordBatch]) -> Processed:
        """Run an epoch whose batches were combined at the source, one by one."""
        all_keys, partials = [], []
        for batch in batches:
            keys, rows = self._split(batch)
            groups, keys = grouped(keys, self.num_key_groups)
            all_keys.append(keys)
            partials.append(self._mergeable.combine(groups, keys, rows))
        return self._process(pa.concat_batches(all_keys), pa.concat_batches(partials), partial=True)

    def results(self) -> dict[Key, dict[str, Any]]:
        """Return what a mergeable operator gives for every key that it holds."""
        if not self.store:
            return {}
        columns = list(zip(*self.store, strict=True))
        keys = pa.RecordBatch.from_arrays(
            [
                pa.array(list(column), field.type)
                for column, field in zip(columns, self.operator.schema.keys, strict=True)
            ],
            schema=self.operator.schema.keys,
        )
        states = pa.RecordBatch.from_pylist(
            list(self.store.values()), schema=self.operator.schema.values
        )
        output = self._mergeable.finish(keys, states)
        output.validate(full=True)
        results = output.select(output.schema.names[keys.num_columns :])
        return dict(zip(self.store, results.to_pylist(), strict=True))

    @property
    def _mergeable(self) -> ComputeOperator:
        assert isinstance(self.operator, ComputeOperator)
        return self.operator

    def _process(self, keys: pa.RecordBatch, rows: pa.RecordBatch, *, partial: bool) -> Processed:
        done = self.operator.process(
            OperatorInput(
                rows=StateRows(hashes=hash_keys(keys), keys=keys, values=rows),
                is_partial=partial,
                states={STATE: DictView(self.store, self.operator.schema)},
                num_key_groups=self.num_key_groups,
            )
        )
        output = done.output
        if output is None:
            output = pa.RecordBatch.from_pylist([], schema=self.operator.output)
        output.validate(full=True)
        assert output.schema == self.operator.output
        state, removed = pa.RecordBatch.from_pylist([], schema=self.operator.schema.values), None
        if STATE in done.changed:
            changed, _ = done.changed[STATE]
            state, removed = changed.values, changed.removed
            state.validate(full=True)
            assert state.schema == self.operator.schema.values
            names = _tuples(changed.keys)
            for index, (name, of) in enumerate(zip(names, state.to_pylist(), strict=True)):
                if removed is not None and removed[index]:
                    self.store.pop(name, None)
                else:
                    self.store[name] = of
        return Processed(
            output=output, state=state, removed=removed, cpu_ms=done.cpu_ms, busy_ms=done.busy_ms
        )

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        keys = batch.select(self.operator.schema.keys.names)
        return keys, batch.select(self.operator.inputs.names)


def _tuples(keys: pa.RecordBatch) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
