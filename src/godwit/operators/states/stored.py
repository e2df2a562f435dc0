"""What every kind of named state shares: how it lies in entries of a table of its own.

What one lane and epoch make of them is told in `godwit.operators.states.cells`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of, insist_on_compatible
from godwit.model.errors import StateEncodingError
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.windows.grid import END
from godwit.store.columns import StateSchema
from godwit.values.changes import upgrade_between
from godwit.values.checks import unreadable_remedy
from godwit.values.codec import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.operators.operator import StateView
    from godwit.operators.states.cells import Cells, Expired, LaneKeys
    from godwit.values.codec import StateCodec

__all__ = ["EXPIRES", "PAGE", "StoredState"]

PAGE: Final = f"{RESERVED_PREFIX}_page"
EXPIRES: Final = "expires"


class StoredState(ABC):
    """One named state of an operator: how it lies in entries. Picklable.

    Parameters
    ----------
    operator, name
        Whose, and its name.
    keys
        Key columns of the operator.
    apart
        Columns that tell the entries of a key apart.
    columns
        State columns, the encoded values first; when an entry expires is added.
    codec
        Writes what entries hold.
    ttl_us
        Time-to-live; ``None``: for good.
    upgrade
        Brings what entries of an earlier type hold to today's.
    """

    def __init__(
        self,
        *,
        operator: str,
        name: str,
        keys: pa.Schema,
        apart: Sequence[pa.Field],
        columns: Sequence[pa.Field],
        codec: StateCodec,
        ttl_us: int | None,
        upgrade: Callable[[Any], Any] | None,
    ) -> None:
        self.operator, self.name, self.codec, self.ttl_us = operator, name, codec, ttl_us
        self.num_keys = len(keys)
        expires = [] if ttl_us is None else [pa.field(EXPIRES, pa.int64())]
        self.schema = StateSchema(
            keys=pa.schema([*keys, *apart]),
            values=pa.schema([pa.field("state", pa.large_binary()), *columns, *expires]),
        )
        self._upgrade = upgrade

    @abstractmethod
    def begin(self, lane: LaneKeys, held: StateView, expired: Expired | None) -> Cells:
        """Take up an epoch.

        Parameters
        ----------
        lane
            The keys.
        held
            What the lane holds of this state.
        expired
            Entries whose time has come, if they were looked for.
        """

    @property
    def expires_at(self) -> int | None:
        """Which state column says when an entry expires; ``None``: there is none."""
        return None if self.ttl_us is None else len(self.schema.values) - 1

    def again(self, clock: int) -> int:
        """When what is written now expires."""
        return END if self.ttl_us is None else clock + self.ttl_us

    def describe(self) -> StateDescription:
        """Say what it looks like."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec=self.codec.name,
            type=self.codec.describe(),
            entries=self._entries,
        )

    def insist_on(self, stored: StateDescription) -> None:
        """Refuse state that was of another kind.

        Raises
        ------
        CheckpointMismatchError
            Says every difference.
        """
        insist_on_compatible(
            f"state {self.name!r} of operator {self.operator!r}",
            stored,
            self.describe(),
            problems=["it was kept with timers"] if "timers" in dict(stored.columns) else (),
            remedy="Give the state a name of its own, under which it starts empty, and leave the "
            "other one declared as it was.",
            operator=self.operator,
            state=self.name,
        )

    def values_from(self, written: WrittenState) -> StateUpgrade | None:
        """Say how values become today's; see `KeyedOperator.values_from`."""
        return upgrade_between(
            f"{self.operator}/{self.name}",
            written,
            self.describe(),
            self.codec,
            self._upgrade,
            option="the state's declaration, as upgrade=,",
        )

    @property
    def _entries(self) -> tuple[tuple[str, str], ...]:
        return columns_of(list(self.schema.keys)[self.num_keys :])

    def encoded(self, values: Sequence[Any], whose: Callable[[int], str]) -> list[bytes]:
        """Write values.

        Parameters
        ----------
        values
            Of any keys.
        whose
            Says of which key, and where in its state, one of them is.

        Raises
        ------
        StateEncodingError
            If one would not come back as what it is.
        """
        try:
            return self.codec.encode(values)
        except UnencodableError as error:
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot write its state {self.name!r} of "
                f"{whose(error.index)} so that it comes back as what it is: {error}.",
                remedy="Keep values of the declared type in it, or change the declaration.",
                operator=self.operator,
                state=self.name,
            ) from error

    def decoded(
        self, blobs: Sequence[bytes], whose: Callable[[int], tuple[tuple[Any, ...], str]]
    ) -> list[Any]:
        """Read values.

        Parameters
        ----------
        blobs
            As `encoded` made them.
        whose
            Gives the key that one of them is of, and where in its state it is.

        Raises
        ------
        StateEncodingError
            If one cannot be read.
        """
        try:
            return self.codec.decode([memoryview(blob) for blob in blobs])
        except UnencodableError as error:
            key, where = whose(error.index)
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot read its state {self.name!r} of key {key!r}"
                f"{where}: {error}.",
                remedy=unreadable_remedy(self.operator, key, "the state"),
                operator=self.operator,
                key=key,
                state=self.name,
            ) from error
