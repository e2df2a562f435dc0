"""Rows on their way to an operator: payloads across an exchange, or batches within a lane.

A payload is a fixed header and one Arrow record batch (without its schema, which both ends know).
Its *origin* orders payloads independent of the shuffle's order, so a replayed epoch processes its
rows in the same order: arrival order is (epoch, origin, row).  Many rows for an operator that
combines the rows of each key may go ordered by key group, each key's in their order: then they are
near one another when the lane groups them.

Operators of one component have their key groups in the same places, and if one of them feeds
another, both are keyed by the same columns.  So a lane's output for the next operator stays in the
lane: it is not combined, sent, written or read again.  Invariant: the receiving operator gets the
same rows, in the same order, as from an exchange (components without communication between their
operators, Madsen et al. (Enorm) §4.4).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, encode_batch
from godwit.columns.arrays import values_of
from godwit.columns.group_kernels import count_and_place
from godwit.columns.groups import places_by_number, stable_order
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.columns.python_values import python_values
from godwit.engine.lane.packing import pack, raw_schema
from godwit.model.errors import EpochFailedError
from godwit.model.key_groups import NO_PAIRS, KeyGroupPairs, key_groups_of
from godwit.model.latency import LatencyHistogram
from godwit.model.naming import listing
from godwit.store.columns import place_rows, take_rows
from godwit.time.event_time import NO_TIME, Arrivals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import UpstreamInput
    from godwit.time.event_time import EpochTime

Blob = tuple[int, bytes]
"""Number of a place, and a payload for it."""

Payload: TypeAlias = bytes | pa.RecordBatch | Arrivals
"""Rows or arrivals for an operator: as bytes if they crossed an exchange."""

_HEADER = struct.Struct("<BBHIIIIQHxx")  # 32 bytes: Arrow needs aligned buffers
ROWS, PARTIAL, LEFT_OUT, ARRIVALS, HOT, DIGEST, UNREADABLE, BROADCAST, AGES, FAILED = range(10)
"""Kinds of payloads: raw rows, partial states, left-out rows, event times of sent rows, hot keys,
digest of a sender's rows, unreadable rows of a source, rows of a broadcast table, ages of a
source's rows, rows for which a map failed. 0xFF is reserved for the transport."""
EMITTED = 1 << 31
"""Added to the number of a sender whose digest is of emitted rows, not of rows it has read."""
_LEVEL = 1  # its offset in the header
_ARRIVALS = struct.Struct("<4qH")
_NEWEST = struct.Struct("<Hq")
_DIGEST = struct.Struct("<Q")
_MAX_CHUNK_ROWS = 1_000_000
_ORDERED_ROWS = 65_536  # for fewer, ordering them does not pay: they are in a cache anyway


@dataclass(frozen=True, slots=True)
class Header:
    """Kind, destination and origin of a payload."""

    kind: int  # such as `ROWS`
    level: int  # of the receiving component
    operator: int  # index of the receiving operator
    # sender: at the source side (0, partition, chunk, number), in a lane (level, operator, place,
    # number); orders payloads
    origin: tuple[int, int, int, int]
    rows: int  # number of its raw rows; 0 if another payload counts them
    number: int = 0  # of the operator's input of the rows

    @classmethod
    def of(cls, payload: bytes) -> Header:
        """Return the header of a payload."""
        kind, level, operator, a, b, c, d, rows, number = _HEADER.unpack_from(payload)
        return cls(kind, level, operator, (a, b, c, d), rows, number)

    @property
    def sort_key(self) -> tuple[int, ...]:
        """Sort key by which the payloads of one operator are in order of origin."""
        return (*self.origin, self.number, self.kind)

    @property
    def is_partial(self) -> bool:
        """True if the payload has partial states."""
        return self.kind == PARTIAL


def split_by_level(level: int, payloads: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the payloads for lanes of `level`, and those for later levels."""
    due: list[bytes] = []
    later: list[bytes] = []
    for payload in payloads:
        (due if payload[_LEVEL] == level else later).append(payload)
    return due, later


def unpack_arrivals(payload: Payload) -> Arrivals:
    """Return a sender's report of event times from a payload."""
    if isinstance(payload, Arrivals):
        return payload
    assert isinstance(payload, bytes), "rows are of another kind"
    late, ahead, untimed, reached, sources = _ARRIVALS.unpack_from(payload, _HEADER.size)
    first = _HEADER.size + _ARRIVALS.size
    newest = dict(_NEWEST.unpack_from(payload, first + i * _NEWEST.size) for i in range(sources))
    return Arrivals(newest=newest, late=late, ahead=ahead, untimed=untimed, reached=reached)


def unpack_rows(payload: Payload, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in a payload, without copying it."""
    if isinstance(payload, pa.RecordBatch):
        return payload
    return pa.ipc.read_record_batch(pa.py_buffer(payload)[_HEADER.size :], schema)


def ship_digest(
    digest: int,
    sender: tuple[int, int],
    *,
    level: int,
    places: int,
) -> Iterator[Blob]:
    """Yield payloads with the digest of a sender's rows for every lane of a level.

    `sender`: level 0 and number of a split, or level and place of a lane. `level`: of the receiving
    lanes; `places`: their number. See `read_digests`.
    """
    payload = _HEADER.pack(DIGEST, level, 0, *sender, 0, 0, 0, 0) + _DIGEST.pack(digest)
    yield from ((place, payload) for place in range(places))


def read_digests(
    payloads: Iterable[tuple[Header, bytes]],
) -> dict[tuple[int, int], int]:
    """Return sender → digest of the source rows that it has read."""
    return {
        header.origin[:2]: _DIGEST.unpack_from(payload, _HEADER.size)[0]
        for header, payload in payloads
    }


def ship_unreadable(
    shipment: Shipment,
    source: str,
    rows: pa.RecordBatch,
    origin: tuple[int, int, int, int],
    *,
    keep: bool,
    kind: int = UNREADABLE,
) -> Iterator[Blob]:
    """Yield the payload with rows that a source could not read, for a lane that stages them.

    `shipment`: of any operator; any of its lanes may stage them. `origin`: the sender (see
    `Header`).
    `keep`: a sink gets the rows; otherwise they are only counted. `kind`: `FAILED` for rows for
    which a map failed; `source` is then the name of their sink.
    """
    place, name = int(shipment.places[origin[1] % len(shipment.places)]), source.encode()
    to = shipment.level, shipment.index
    header = _HEADER.pack(kind, *to, *origin, rows.num_rows, len(name))
    yield place, header + name + (encode_batch(rows).to_pybytes() if keep else b"")


def read_unreadable(header: Header, payload: bytes) -> tuple[str, pa.RecordBatch | None]:
    """Return the source, and the rows it could not read; ``None`` if they are only counted."""
    source, rows = _split_name(header, payload)
    return source, decode_batch(rows) if rows else None


def _split_name(header: Header, payload: bytes) -> tuple[str, bytes]:
    """Return the name at the start of a payload, by its length in the header, and the rest."""
    end = _HEADER.size + header.number
    return payload[_HEADER.size : end].decode(), payload[end:]


def ship_ages(
    shipment: Shipment,
    source: str,
    ages: LatencyHistogram,
    split: int,
) -> Iterator[Blob]:
    """Yield the payload with a histogram of the ages of a source's rows, for a lane to report.

    `shipment`: of any operator; any of its lanes may report them. `ages`: by the driver's clock of
    the epoch. `split`: number of the first split with these rows.
    """
    origin, name = (0, split, 0, 0), source.encode()
    header = _HEADER.pack(AGES, shipment.level, shipment.index, *origin, 0, len(name))
    yield int(shipment.places[0]), header + name + ages.to_bytes()


def read_ages(payloads: Iterable[tuple[Header, bytes]]) -> dict[str, LatencyHistogram]:
    """Return source → histogram of its rows' ages, over all payloads."""
    ages: dict[str, list[LatencyHistogram]] = {}
    for header, payload in payloads:
        source, histogram = _split_name(header, payload)
        ages.setdefault(source, []).append(LatencyHistogram.from_bytes(histogram))
    return {source: LatencyHistogram.merged(parts) for source, parts in ages.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """Route of rows to one operator in one epoch."""

    index: int  # the operator's index in the flow
    level: int  # level of its component
    operator: KeyedOperator
    places: npt.NDArray[np.int32]  # shape ``(num_key_groups,)``: the place of each key group
    time: EpochTime = NO_TIME  # event time of the operator in this epoch
    keeps_left_out: bool = False  # left-out rows of the operator are sent to their sink
    hot_share: float = 0.0  # a key with at least this share of the rows is hot; 0: no key is
    # route of rows to the operator's second slots, if it has any
    second: Shipment | None = None


def ship_arrivals(
    shipment: Shipment,
    arrivals: Arrivals,
    origin: tuple[int, int, int, int],
    *,
    rows: int = 0,
    number: int = 0,
) -> Iterator[Blob]:
    """Yield a payload with a report of sent rows' event times, to any lane of the operator.

    `origin`: the sender (see `Header`). `rows`: rows that no other payload counts. `number`: number
    of the operator's input.
    """
    header = _HEADER.pack(ARRIVALS, shipment.level, shipment.index, *origin, rows, number)
    counts = (arrivals.late, arrivals.ahead, arrivals.untimed)
    sums = _ARRIVALS.pack(*counts, arrivals.reached, len(arrivals.newest))
    newest = b"".join(_NEWEST.pack(*of_source) for of_source in arrivals.newest.items())
    yield int(shipment.places[0]), header + sums + newest


def ship(
    shipment: Shipment,
    columns: pa.RecordBatch,
    origin: tuple[int, int, int],
    tally: npt.NDArray[np.float64] | None = None,
    *,
    number: int = 0,
) -> Iterator[Blob]:
    """Yield (lane number, payload) for rows of an operator; combined per key if that saves work.

    Rows of a broadcast table go to all lanes. `columns`: N rows of `raw_schema`; of an operator
    over event time, as they arrive there. `origin`: the sender (see `Header`). `tally`, shape
    ``(2, num_key_groups)``: adds up rows (or partial states) sent to each key group, and their
    share of the payloads in bytes. `number`: number of the operator's input.
    """
    if number in shipment.operator.broadcast_inputs:
        yield from _ship_to_all(shipment, columns, origin, number)
        return
    for chunk, start in enumerate(range(0, columns.num_rows, _MAX_CHUNK_ROWS)):
        rows = columns.slice(start, _MAX_CHUNK_ROWS)
        yield from _ship_chunk(shipment, rows, (*origin, chunk), tally, number)


def _ship_to_all(
    shipment: Shipment, columns: pa.RecordBatch, origin: tuple[int, int, int], number: int
) -> Iterator[Blob]:
    """Yield payloads of a table's rows for all lanes; only the first counts them. See `ship`."""
    payload, rows = columns.serialize().to_pybytes(), columns.num_rows
    for place in np.unique(shipment.places).tolist() if rows else ():
        yield (
            place,
            _HEADER.pack(BROADCAST, shipment.level, shipment.index, *origin, 0, rows, number)
            + payload,
        )
        rows = 0


def _ship_chunk(
    shipment: Shipment,
    columns: pa.RecordBatch,
    origin: tuple[int, int, int, int],
    tally: npt.NDArray[np.float64] | None,
    number: int,
) -> Iterator[Blob]:
    """Yield (lane, payload) for one chunk of rows, see `ship`; `origin` ends with its number."""
    operator, rows = shipment.operator, columns.num_rows
    columns, left_out, arrivals = operator.arrange(
        operator.unify_columns(columns, number), shipment.time, number
    )
    if arrivals is not None:
        yield from ship_arrivals(shipment, arrivals, origin, rows=rows, number=number)
        if shipment.keeps_left_out and left_out is not None:
            yield from _ship_left_out(shipment, left_out, origin, number)
        rows = 0
    if not columns.num_rows:
        return
    packed, hot = pack(operator, columns, len(shipment.places), shipment.hot_share)
    if hot is not None:
        header = _HEADER.pack(HOT, shipment.level, shipment.index, *origin, 0, number)
        yield int(shipment.places[0]), header + hot.serialize().to_pybytes()
    for are_partial, every, all_key_groups in packed:
        kind = PARTIAL if are_partial else ROWS
        for to, batch, key_groups in _split_by_slot(shipment, every, all_key_groups):
            places = to.places[key_groups]
            sent_bytes = {}
            ordered = operator.mergeable and len(places) >= _ORDERED_ROWS
            # NumPy takes longer for the order than it saves.
            ordered = ordered and count_and_place.ready(len(places)) is not None
            for place, part in split_by_place(batch, places, key_groups if ordered else None):
                header = _HEADER.pack(kind, to.level, to.index, *origin, rows, number)
                payload = b"".join((header, part.serialize()))
                sent_bytes[place] = len(payload)
                yield place, payload
                rows = 0
            if tally is not None and sent_bytes:
                counts = np.bincount(places)
                per_row = np.zeros(len(counts))
                for place, size in sent_bytes.items():
                    per_row[place] = size / counts[place]
                tally[0] += np.bincount(key_groups, minlength=tally.shape[1])
                tally[1] += np.bincount(key_groups, per_row[places], minlength=tally.shape[1])


def _split_by_slot(
    shipment: Shipment, rows: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
) -> Iterator[tuple[Shipment, pa.RecordBatch, npt.NDArray[np.int32]]]:
    """Yield the rows for each slot of two-phase windows, by the slot active for their key groups.

    With the rows: the route to the slot, and the rows' key groups.
    """
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
    shipment: Shipment, rows: pa.RecordBatch, origin: tuple[int, int, int, int], number: int
) -> Iterator[Blob]:
    """Yield payloads of rows that an operator left out, for the lanes of their keys; see `ship`."""
    # Parts of hot keys are chosen only for rows that are processed.
    operator = shipment.operator
    names = operator.placed_in(operator.user_keys.names)
    keys = pa.schema([operator.keys.field(name) for name in names])
    key_groups = _key_groups(rows, keys, len(shipment.places))
    for place, part in split_by_place(rows, shipment.places[key_groups]):
        header = _HEADER.pack(LEFT_OUT, shipment.level, shipment.index, *origin, 0, number)
        yield place, header + part.serialize().to_pybytes()


def split_by_place(
    batch: pa.RecordBatch,
    places: npt.NDArray[np.int32],
    key_groups: npt.NDArray[np.int32] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each lane's number with its rows of `batch`.

    `places`: lane of each row. `key_groups`: those of the rows, by which they are then ordered if
    there is machine code for it; ``None``: rows stay in their order.
    """
    if batch.num_rows == 0:
        return
    counts = np.bincount(places)
    used = np.flatnonzero(counts)
    by_key_group = None if key_groups is None else _places_by_key_group(places, key_groups)
    if by_key_group is not None:
        batch = place_rows(batch, by_key_group)
    elif len(used) == 1:
        yield int(used[0]), batch
        return
    else:
        batch = take_rows(batch, stable_order(places, len(counts)))
    ends = np.cumsum(counts[used])
    for place, end, count in zip(used.tolist(), ends.tolist(), counts[used].tolist(), strict=True):
        yield place, batch.slice(end - count, count)


def _places_by_key_group(
    places: npt.NDArray[np.int32], key_groups: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64] | None:
    """Return the place of each row in the order of lanes, then key groups, then arrival.

    ``None`` without machine code.
    """
    place_of = np.zeros(int(key_groups.max()) + 1, np.int32)
    place_of[key_groups] = places
    order = np.argsort(place_of, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return places_by_number(rank[key_groups], len(rank))


def pass_in_lane(
    shipment: Shipment, columns: pa.RecordBatch, origin: tuple[int, int, int], number: int
) -> Iterator[tuple[Header, Payload]]:
    """Yield rows, as payloads, for an operator in the same lane; parameters as of `ship`."""
    operator, rows = shipment.operator, columns.num_rows

    def header(kind: int, rows: int) -> Header:
        """Build the header of one payload."""
        return Header(kind, shipment.level, shipment.index, (*origin, 0), rows, number)

    columns, left_out, arrivals = operator.arrange(
        operator.unify_columns(columns, number), shipment.time, number
    )
    if arrivals is not None:
        yield header(ARRIVALS, rows), arrivals
        if shipment.keeps_left_out and left_out is not None:
            yield header(LEFT_OUT, 0), left_out
        rows = 0
    if columns.num_rows:
        keys = canonical_keys(columns.select(operator.schema.keys.names))
        others = columns.columns[len(keys.schema) :]
        yield (
            header(ROWS, rows),
            pa.RecordBatch.from_arrays([*keys.columns, *others], schema=raw_schema(operator)),
        )


def check_keys_stay_in_lane(
    sender: KeyedOperator,
    upstream: UpstreamInput,
    columns: pa.RecordBatch,
    shipment: Shipment,
    place: int,  # of this lane
) -> None:
    """Raise `EpochFailedError` if a user's function changed a row's key to one of another lane.

    The error names the function, and a key.
    """
    placed = shipment.operator.placed_in(upstream.keys)
    keys = canonical_keys(columns.select(list(placed)))
    key_groups = key_groups_of(hash_keys(keys), len(shipment.places))
    strays = np.flatnonzero(shipment.places[key_groups] != place)
    if not strays.size:
        return
    by = f"map {upstream.maps[-1].name!r}" if upstream.maps else "its function"
    key = {n: python_values(keys.column(n).slice(int(strays[0]), 1))[0] for n in keys.schema.names}
    raise EpochFailedError(
        f"Operators {sender.name!r} and {upstream.operator!r} share a component, so rows stay in "
        f"their lane between the two; but {by} has changed the key of a row to that of another "
        f"lane: {key}.",
        remedy=f"Do not change {listing(placed)} in between, or put the "
        "two operators in two components, with components= at the start of the flow.",
        sender=sender.name,
        operator=upstream.operator,
        key=key,
    )


_MAX_PAIRED_ROWS = 8192


def count_key_group_pairs(
    sender: KeyedOperator,
    receiver_keys: pa.Schema,
    rows: pa.Table,
    own: npt.NDArray[np.bool_],
) -> KeyGroupPairs:
    """Estimate, for planners, the rows from each key group to each of the receiver's.

    The sender's key group of a row is recomputed from its columns. Nothing is counted if a map has
    dropped one of them or changed its type. If a map has changed values, rows whose key group
    this lane does not own (`own`: mask of the sender's) are skipped. For many rows, an evenly
    spaced sample is counted. `receiver_keys`: key columns of the receiver. `rows`: as sent, after
    maps.
    """
    keys = sender.placed_by if sender.partition_by else sender.keys
    if any(name not in rows.schema.names for name in keys.names):
        return NO_PAIRS
    if any(rows.schema.field(field.name).type != field.type for field in keys):
        return NO_PAIRS
    step = -(-rows.num_rows // _MAX_PAIRED_ROWS)
    if step > 1:
        rows = rows.take(pa.array(np.arange(0, rows.num_rows, step)))

    def key_groups(schema: pa.Schema) -> npt.NDArray[np.int32]:
        """Key group of each row by the columns of `schema`."""
        columns = rows.select(schema.names).cast(schema).combine_chunks().to_batches()
        return _key_groups(columns[0], schema, len(own))

    source = key_groups(keys)
    target = source if keys.equals(receiver_keys) else key_groups(receiver_keys)
    known = own[source]
    return KeyGroupPairs.counted(source[known], target[known], float(step))


def _key_groups(
    rows: pa.RecordBatch, keys: pa.Schema, num_key_groups: int
) -> npt.NDArray[np.int32]:
    """Return the key group of each row by its key columns."""
    return key_groups_of(hash_keys(canonical_keys(rows.select(keys.names))), num_key_groups)
