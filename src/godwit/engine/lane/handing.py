"""Rows that stay in their lane: from one operator to the next of its component, as they are.

Operators of one component have their key groups in the same places, and where one of them feeds
another, both are keyed by the same columns.  So what a lane makes of a key is for itself: nothing
is combined, sent, written or read again on the way, and no stage of the epoch ends between the two.

The invariant: what the receiving operator is handed is what an exchange would have brought to this
lane, row by row.

Source: components without communication between their operators, Madsen et al. (Enorm) §4.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.engine.lane.packing import raw_schema
from godwit.engine.lane.wire import ARRIVALS, LEFT_OUT, ROWS, Header
from godwit.model.errors import EpochFailedError
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import listing
from godwit.operators.windows.event_time import NO_ARRIVALS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.engine.lane.wire import Payload, Shipment
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import UpstreamInput

__all__ = ["hand_over", "insist_on_staying"]


def hand_over(
    shipment: Shipment, columns: pa.RecordBatch, origin: tuple[int, int, int], given: int
) -> Iterator[tuple[Header, Payload]]:
    """Give rows to an operator of the same lane.

    Parameters
    ----------
    shipment
        Which operator.
    columns
        N rows, as for `godwit.engine.lane.wire.ship`.
    origin
        The sender (see `Header`).
    given
        Number of the operator's input that the rows come by.
    """
    operator, rows = shipment.operator, columns.num_rows

    def header(kind: int, number: int) -> Header:
        return Header(kind, shipment.level, shipment.index, (*origin, 0), number, given)

    columns = operator.received(columns, given)
    arranged = operator.arrange(columns, shipment.time, given)
    if arranged.arrivals != NO_ARRIVALS:
        yield header(ARRIVALS, rows), arranged.arrivals
        if shipment.keeps_left_out and arranged.left_out is not None:
            yield header(LEFT_OUT, 0), arranged.left_out
        rows = 0
    columns = arranged.rows
    if columns.num_rows:
        keys = canonical_keys(columns.select(operator.schema.keys.names))
        others = columns.columns[len(keys.schema) :]
        yield (
            header(ROWS, rows),
            pa.RecordBatch.from_arrays([*keys.columns, *others], schema=raw_schema(operator)),
        )


def insist_on_staying(
    sender: KeyedOperator,
    given: UpstreamInput,
    columns: pa.RecordBatch,
    shipment: Shipment,
    place: int,
) -> None:
    """Refuse rows that a function of the user's has given the key of another lane.

    Raises
    ------
    EpochFailedError
        If there is one; names the function, and a key.
    """
    keys = canonical_keys(columns.select(list(given.keys)))
    key_groups = key_groups_of(hash_keys(keys), len(shipment.places))
    strays = np.flatnonzero(shipment.places[key_groups] != place)
    if not strays.size:
        return
    by = f"map {given.maps[-1].name!r}" if given.maps else "its function"
    key = keys.slice(int(strays[0]), 1).to_pylist()[0]
    raise EpochFailedError(
        f"Operators {sender.name!r} and {given.operator!r} share a component, so rows stay in "
        f"their lane between the two; but {by} has given a row another key than the one it was "
        f"made for: {key}.",
        remedy=f"Leave {listing(given.keys)} as they are on the way, or let the "
        "two be of two components: start the flow with components= that say so.",
        sender=sender.name,
        operator=given.operator,
        key=key,
    )
