"""``process`` with ``merge=``: a function's state in parts, so that a hot key has several lanes.

All rows of a key go to one lane, and a function's state cannot be combined before the exchange.  If
the user says how two states are merged, a hot key gets *parts* (`godwit.operators.spreading`): rows
are divided among them by a hash of their values, and each part has a state of its own, which begins
empty.  The key's earlier state stays unchanged meanwhile.  When a key leaves its parts, because it
cools down or gets other parts, their states are merged into its own in that epoch.

Parts are entries of a second state, identified by key and part.  So the first state is the same
with and without ``merge=``, which may be added to an operator that has state; and to merge parts, a
lane reads only key groups of the second state, which has parts of hot keys and nothing else.

Invariant: every row has been processed with one state of its key, and no state is dropped before it
was merged.  A key leaves its parts in an epoch in which none of their rows waits.  The key's lane
reads the parts as the last epoch left them, and the lanes of the parts remove them, in one commit.

Source: key expansion, Madsen et al. (Enorm) §4.4.2; partial states of split keys, Nasir et al.
("The Power of Both Choices", 2015), by values in place of load (`docs/design/hot-keys.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import StateEncodingError
from godwit.model.naming import function_name, type_name
from godwit.operators.operator import STATE
from godwit.operators.parts import DividesHotKeys, call_merge
from godwit.operators.process import ProcessOperator
from godwit.values.checks import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from godwit.checkpoint.entries import StateRows


class MergedProcess(DividesHotKeys, ProcessOperator):
    """A user's function called per key, or per part of a hot one."""

    def __init__(self, *, merge: Callable[[Any, Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.merge = merge

    def merge_left(
        self,
        merging: Mapping[str, StateRows],
        of_entries: Mapping[str, list[int]],
        *states: Any,
    ) -> None:
        """Merge the states of parts that hot keys give up into the states of the keys.

        `merging`: state's name → its entries of parts. `of_entries`: likewise, the key number of
        each entry. `states`: of each key its state, whether that was stored, and the key.
        """
        of_keys: list[Any] = states[0]
        known: npt.NDArray[np.bool_] = states[1]
        keys: list[tuple[Any, ...]] = states[2]
        of_merging = of_entries[STATE]
        parts = self._decode_states(
            np.ones(len(of_merging), np.bool_),
            merging[STATE].values.column(0),
            [keys[group] for group in of_merging],
        )
        has_state = known.copy()
        for group, part in zip(of_merging, parts, strict=True):
            if not has_state[group]:  # nothing says that a new state changes nothing
                of_keys[group], has_state[group] = part, True
            elif self._is_immutable:
                of_keys[group].value = self._merged(of_keys[group].value, part.value, keys[group])
            else:
                of_keys[group] = self._merged(of_keys[group], part, keys[group])

    def _merged(self, state: Any, part: Any, key: tuple[Any, ...]) -> Any:
        """Merge two states of a key by the user's function, and check the result."""
        merged = call_merge(self.merge, (state, part), self.name, key)
        try:
            self._codec.encode([merged])
        except UnencodableError as error:
            raise StateEncodingError(
                f"{function_name(self.merge)}, given as merge= of operator {self.name!r}, returned "
                f"a {type_name(merged)} for key {key!r}, which cannot be its state: {error}.",
                remedy="Return a state of the declared type, or change the declaration.",
                operator=self.name,
                key=key,
            ) from error
        return merged
