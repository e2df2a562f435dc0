"""A lane in a dozen lines: runs an operator over epochs, with a dict for the local store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.columns.groups import group_rows
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.operators.operator import Advance, MergeableOperator, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.columns.groups import Groups
    from godwit.operators.operator import KeyedOperator

__all__ = ["Lane", "grouped"]

Key = tuple[Any, ...]


def grouped(keys: pa.RecordBatch, num_key_groups: int = 16) -> tuple[Groups, pa.RecordBatch]:
    """Group rows by key, and give the key of each group."""
    keys = canonical_keys(keys)
    groups = group_rows(hash_keys(keys), keys, num_key_groups)
    return groups, keys.take(pa.array(groups.first_row))


class Lane:
    """Runs one operator.

    Batches hold the key columns, then the operator's inputs.
    """

    def __init__(self, operator: KeyedOperator, num_key_groups: int = 16) -> None:
        self.operator = operator
        self.num_key_groups = num_key_groups
        self.store: dict[Key, dict[str, Any]] = {}

    def epoch(self, batch: pa.RecordBatch) -> Advance:
        """Run an epoch on raw rows."""
        keys, rows = self._split(batch)
        groups, keys = grouped(keys, self.num_key_groups)
        return self._advance(groups, keys, rows, partial=False)

    def epoch_of_partials(self, batches: Sequence[pa.RecordBatch]) -> Advance:
        """Run an epoch whose batches were combined at the source, one by one."""
        all_keys, partials = [], []
        for batch in batches:
            keys, rows = self._split(batch)
            groups, keys = grouped(keys, self.num_key_groups)
            all_keys.append(keys)
            partials.append(self._mergeable.combine(groups, rows))
        groups, keys = grouped(pa.concat_batches(all_keys), self.num_key_groups)
        merged = self._mergeable.merge_partials(groups, pa.concat_batches(partials))
        return self._advance(groups, keys, merged, partial=True)

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
    def _mergeable(self) -> MergeableOperator:
        assert isinstance(self.operator, MergeableOperator)
        return self.operator

    def _advance(
        self, groups: Groups, keys: pa.RecordBatch, rows: pa.RecordBatch, *, partial: bool
    ) -> Advance:
        names = list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
        held = [self.store.get(name) for name in names]
        blank = dict.fromkeys(self.operator.schema.values.names)
        prior = pa.RecordBatch.from_pylist(
            [state or blank for state in held], schema=self.operator.schema.values
        )
        known = np.array([state is not None for state in held], np.bool_)
        step = Step(groups=groups, keys=keys, rows=rows, partial=partial, prior=prior, known=known)
        advance = self.operator.advance(step)
        advance.state.validate(full=True)
        advance.output.validate(full=True)
        assert advance.state.schema == self.operator.schema.values
        assert advance.output.schema == self.operator.output
        for index, (name, state) in enumerate(zip(names, advance.state.to_pylist(), strict=True)):
            if advance.removed is not None and advance.removed[index]:
                self.store.pop(name, None)
            else:
                self.store[name] = state
        return advance

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        keys = batch.select(self.operator.schema.keys.names)
        return keys, batch.select(self.operator.inputs.names)
