"""What crosses an exchange: rows of one operator for one lane.

A payload is a fixed header and one Arrow record batch (without its schema, which both ends know).
Its *origin* orders payloads the same way however the shuffle fetched them, so a replayed epoch
meets its rows in the same order: arrival order is (epoch, origin, row).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.engine.lane.packing import pack
from godwit.model.key_groups import key_groups_of
from godwit.operators.windows.event_time import NO_ARRIVALS, NO_TIME, Arrivals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.operators.operator import KeyedOperator
    from godwit.operators.windows.event_time import EpochTime

__all__ = [
    "Blob",
    "Header",
    "Payload",
    "Shipment",
    "Tally",
    "due_at",
    "ship",
    "ship_arrivals",
]

Blob = tuple[int, bytes]
"""Number of a place, and a payload for it."""

Payload: TypeAlias = bytes | pa.RecordBatch | Arrivals
"""What a lane has for an operator: as it crossed an exchange, or, if it did not, as it is."""

_HEADER = struct.Struct("<BBHIIIIQHxx")  # 32 bytes: Arrow wants its buffers aligned
ROWS, PARTIAL, LEFT_OUT, ARRIVALS, HOT = range(5)  # 0xFF is left to whatever carries payloads
_LEVEL = 1  # where the header has it
_FOUND = struct.Struct("<4qH")
_NEWEST = struct.Struct("<Hq")
_MAX_CHUNK_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Header:
    """Where a payload comes from and what it is."""

    # Raw rows, partial states, rows that were left out, what was found while rows were sent, or
    # keys that had many of them.
    kind: int
    level: int  # level of the components it is for
    operator: int  # index of the operator it is for
    # Who sent it: at the source side (0, partition, chunk, number), in a lane (level, operator,
    # place, number). Orders payloads.
    origin: tuple[int, int, int, int]
    rows: int  # rows it was made from, or 0 where another payload of the same rows counts them
    given: int = 0  # number of the operator's input that the rows came by

    @classmethod
    def of(cls, payload: bytes) -> Header:
        """Read the header of a payload."""
        kind, level, operator, a, b, c, d, rows, given = _HEADER.unpack_from(payload)
        return cls(kind, level, operator, (a, b, c, d), rows, given)

    @property
    def arrival(self) -> tuple[int, ...]:
        """Orders payloads for one operator."""
        return (*self.origin, self.given, self.kind)

    @property
    def is_rows(self) -> bool:
        """Whether there are rows for the operator in it, combined or not."""
        return self.kind in (ROWS, PARTIAL)

    @property
    def is_partial(self) -> bool:
        """Whether the rows are partial states."""
        return self.kind == PARTIAL

    @property
    def is_left_out(self) -> bool:
        """Whether the rows are those that an operator over event time left out."""
        return self.kind == LEFT_OUT

    @property
    def is_arrivals(self) -> bool:
        """Whether the payload says what was found while rows were sent."""
        return self.kind == ARRIVALS

    @property
    def is_hot(self) -> bool:
        """Whether the payload says which keys had many rows."""
        return self.kind == HOT


def due_at(level: int, payloads: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Part payloads into those for operators of `level`, and those for operators of later ones."""
    due: list[bytes] = []
    later: list[bytes] = []
    for payload in payloads:
        (due if payload[_LEVEL] == level else later).append(payload)
    return due, later


def unpack_arrivals(payload: Payload) -> Arrivals:
    """Read what was found while rows were sent."""
    if isinstance(payload, Arrivals):
        return payload
    assert isinstance(payload, bytes), "rows are of another kind"
    late, ahead, untimed, reached, sources = _FOUND.unpack_from(payload, _HEADER.size)
    first = _HEADER.size + _FOUND.size
    newest = dict(_NEWEST.unpack_from(payload, first + i * _NEWEST.size) for i in range(sources))
    return Arrivals(newest=newest, late=late, ahead=ahead, untimed=untimed, reached=reached)


def unpack_rows(payload: Payload, schema: pa.Schema) -> pa.RecordBatch:
    """Read the record batch of a payload, without copying it."""
    if isinstance(payload, pa.RecordBatch):
        return payload
    return pa.ipc.read_record_batch(pa.py_buffer(payload)[_HEADER.size :], schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """How rows reach one operator in one epoch."""

    index: int  # the operator's index in the flow
    level: int  # level of its component
    operator: KeyedOperator  # the operator
    places: npt.NDArray[np.int32]  # shape ``(num_key_groups,)``: the place of each key group
    time: EpochTime = NO_TIME  # event time of the operator in this epoch
    keeps_left_out: bool = False  # whether rows that the operator leaves out are wanted
    hot_share: float = 0.0  # a key that has at least this share of the rows is hot; 0: none is
    # How rows reach the operator's second slots, if it has any: some are for those.
    second: Shipment | None = None


class Tally:
    """What was sent to one operator, per key group of its own.

    Parameters
    ----------
    num_key_groups
        Number of key groups.

    Attributes
    ----------
    rows, size_bytes
        Shape ``(num_key_groups,)``: rows (or partial states), and their share of the payloads.
    place_bytes
        Place → bytes of payloads for it.
    """

    def __init__(self, num_key_groups: int) -> None:
        self.rows = np.zeros(num_key_groups, np.int64)
        self.size_bytes = np.zeros(num_key_groups, np.float64)
        self.place_bytes: dict[int, int] = {}

    def add(
        self,
        key_groups: npt.NDArray[np.int32],
        places: npt.NDArray[np.int32],
        sent_bytes: dict[int, int],
    ) -> None:
        """Count the rows of some payloads.

        Parameters
        ----------
        key_groups, places
            Shape ``(n,)``: of each row.
        sent_bytes
            Place → size of its payload.
        """
        counts = np.bincount(places)
        per_row = np.zeros(len(counts))
        for place, size in sent_bytes.items():
            per_row[place] = size / counts[place]
            self.place_bytes[place] = self.place_bytes.get(place, 0) + size
        self.rows += np.bincount(key_groups, minlength=len(self.rows))
        self.size_bytes += np.bincount(key_groups, per_row[places], minlength=len(self.rows))


def ship_arrivals(
    shipment: Shipment,
    found: Arrivals,
    origin: tuple[int, int, int, int],
    *,
    rows: int = 0,
    given: int = 0,
) -> Iterator[Blob]:
    """Send what was found while rows were sent, to any lane of the operator.

    Parameters
    ----------
    rows
        Rows that no other payload counts.
    given
        Number of the operator's input that they came by.
    """
    header = _HEADER.pack(ARRIVALS, shipment.level, shipment.index, *origin, rows, given)
    counts = (found.late, found.ahead, found.untimed)
    sums = _FOUND.pack(*counts, found.reached, len(found.newest))
    newest = b"".join(_NEWEST.pack(*of_source) for of_source in found.newest.items())
    yield int(shipment.places[0]), header + sums + newest


def ship(
    shipment: Shipment,
    columns: pa.RecordBatch,
    origin: tuple[int, int, int],
    tally: Tally | None = None,
    *,
    given: int = 0,
) -> Iterator[Blob]:
    """Split rows by place, combined per key first where that pays.

    Parameters
    ----------
    shipment
        Which operator, and where its key groups are.
    columns
        N rows of `raw_schema`; of an operator over event time, of what arrives there.
    origin
        The sender (see `Header`).
    tally
        Counts what is sent, if given.
    given
        Number of the operator's input that the rows come by.
    """
    for number, start in enumerate(range(0, columns.num_rows, _MAX_CHUNK_ROWS)):
        chunk = columns.slice(start, _MAX_CHUNK_ROWS)
        yield from _ship_chunk(shipment, chunk, (*origin, number), tally, given)


def _ship_chunk(
    shipment: Shipment,
    columns: pa.RecordBatch,
    origin: tuple[int, int, int, int],
    tally: Tally | None,
    given: int,
) -> Iterator[Blob]:
    operator, rows = shipment.operator, columns.num_rows
    columns = operator.received(columns, given)
    arranged = operator.arrange(columns, shipment.time, given)
    if arranged.arrivals != NO_ARRIVALS:
        yield from ship_arrivals(shipment, arranged.arrivals, origin, rows=rows, given=given)
        if shipment.keeps_left_out and arranged.left_out is not None:
            yield from _ship_left_out(shipment, arranged.left_out, origin, given)
        rows = 0
    columns = arranged.rows
    if not columns.num_rows:
        return
    packed, hot = pack(operator, columns, len(shipment.places), shipment.hot_share)
    if hot is not None:
        header = _HEADER.pack(HOT, shipment.level, shipment.index, *origin, 0, given)
        yield int(shipment.places[0]), header + hot.serialize().to_pybytes()
    for are_partial, every, all_key_groups in packed:
        kind = PARTIAL if are_partial else ROWS
        for to, batch, key_groups in _by_slot(shipment, every, all_key_groups):
            places = to.places[key_groups]
            sent_bytes = {}
            for place, part in split_by_place(batch, places):
                header = _HEADER.pack(kind, to.level, to.index, *origin, rows, given)
                payload = header + part.serialize().to_pybytes()
                sent_bytes[place] = len(payload)
                yield place, payload
                rows = 0
            if tally is not None and sent_bytes:
                tally.add(key_groups, places, sent_bytes)


def _by_slot(
    shipment: Shipment, rows: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
) -> Iterator[tuple[Shipment, pa.RecordBatch, npt.NDArray[np.int32]]]:
    """Part rows by the slot that takes them, where key groups have two."""
    slots, second = shipment.time.slots, shipment.second
    if slots is None or second is None:
        yield shipment, rows, key_groups
        return
    role = shipment.operator.two_phase
    assert role is not None, "no other operator has slots"
    panes = values_of(rows.column(role.pane_position))
    slot_of = slots.slot_of(key_groups, panes)
    for slot, to in enumerate((shipment, second)):
        which = np.flatnonzero(slot_of == slot)
        if len(which) == len(slot_of):
            yield to, rows, key_groups
        elif len(which):
            yield to, rows.take(pa.array(which)), key_groups[which]


def _ship_left_out(
    shipment: Shipment, rows: pa.RecordBatch, origin: tuple[int, int, int, int], given: int
) -> Iterator[Blob]:
    keys = canonical_keys(rows.select(shipment.operator.keys.names))
    key_groups = key_groups_of(hash_keys(keys), len(shipment.places))
    for place, part in split_by_place(rows, shipment.places[key_groups]):
        header = _HEADER.pack(LEFT_OUT, shipment.level, shipment.index, *origin, 0, given)
        yield place, header + part.serialize().to_pybytes()


def split_by_place(
    batch: pa.RecordBatch, places: npt.NDArray[np.int32]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of `batch` by place, in their order within each place."""
    if batch.num_rows == 0:
        return
    counts = np.bincount(places)
    used = np.flatnonzero(counts)
    if len(used) == 1:
        yield int(used[0]), batch
        return
    # 16 bits make NumPy's stable sort a radix sort.
    order = np.argsort(places.astype(np.uint16), kind="stable")
    batch = batch.take(pa.array(order))
    ends = np.cumsum(counts[used])
    for place, end, count in zip(used.tolist(), ends.tolist(), counts[used].tolist(), strict=True):
        yield place, batch.slice(end - count, count)
