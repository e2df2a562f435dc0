"""A table in mapped memory: a header, a directory, an index and columns, as one data structure.

Problem: the state of many key groups must be found, read and changed by few calls over whole
columns, in time that grows with the keys touched, by whichever process has a key group this epoch,
with nothing to parse when it is opened.  So the file *is* the data structure.

Invariants: a row is appended once and never moves within a file, but for a table that is rewritten
whole, which counts how often; a removed row stays, dead, and comes back to life if its key does.  A
key group that is *marked* is being written, or was when its writer died; all others are as the
directory says, even while another process writes: rows are published after they are complete, and
nobody changes the rows of a key group that is not marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.store.columns import (
    ENTRIES,
    HEAP,
    LIVE,
    Column,
    Encoded,
    Rows,
    column_class,
    offsets_of,
)
from godwit.store.fixed_width import fixed_width, word_at
from godwit.store.index import HashIndex
from godwit.store.layout import (
    DAMAGED,
    LIVE_ROWS,
    REWRITTEN,
    SECRET,
    SLOTS,
    USED,
    Capacity,
    column_header,
    layout_of,
    read_room,
    write_header,
    write_room,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.store.columns import StateSchema
    from godwit.store.fixed_width import FixedWidth

Hashes = npt.NDArray[np.int64]
KeyGroups = npt.NDArray[np.uint16]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """Rows to write, in the columns' encoding."""

    hashes: Hashes  # shape ``(n,)``: the hash that chooses a key's key group
    key_groups: KeyGroups  # shape ``(n,)``
    # keys, values: n values of every key column and of every state column
    keys: tuple[Encoded, ...]
    values: tuple[Encoded, ...]

    def take(self, positions: Rows) -> Upserts:
        """Return the rows at the given positions."""
        return Upserts(
            hashes=self.hashes.take(positions),
            key_groups=self.key_groups.take(positions),
            keys=tuple(column.take(positions) for column in self.keys),
            values=tuple(column.take(positions) for column in self.values),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Upserts | None:
        """Return the rows that `mask` selects; ``None`` if there are none."""
        which = np.flatnonzero(mask)
        if not which.size:
            return None
        return self if which.size == mask.size else self.take(which)


class TableImage:
    """One table over a given piece of memory.

    `secret`: writes the header of an empty table without room that finds rows by this secret.
    `versions`: Shape ``(num_key_groups,)``: epoch whose changes are in; -1 where the table does not
    hold the key group.
    `num_keys`: Shape ``(num_key_groups,)``: keys with state.
    `marks`: Shape ``(num_key_groups,)``: 1 where a key group is being written.
    """

    __slots__ = (
        "_hasher",
        "_hashes",
        "_head",
        "_heap_bytes",
        "_key_groups",
        "_live",
        "_memory",
        "keys",
        "layout",
        "marks",
        "num_keys",
        "values",
        "versions",
    )

    def __init__(
        self,
        schema: StateSchema,
        num_key_groups: int,
        memory: mmap.mmap | bytearray,
        capacity: Capacity,
        *,
        secret: tuple[int, int] | None = None,
    ) -> None:
        layout = self.layout = layout_of(schema, num_key_groups, capacity)
        self._memory = memory
        self._head = memoryview(memory)[: 8 * layout.words].cast("q")
        directory = layout.directory_arrays(memory, num_key_groups)
        self.versions, self.num_keys, self._heap_bytes, self.marks = directory
        if secret is not None:
            write_header(self._head, schema, num_key_groups, layout, secret)
            self.versions[:] = -1
        self._hasher = KeyHasher((self._head[SECRET], self._head[SECRET + 1]))
        self._hashes, self._key_groups, self._live = layout.arrays(memory, -1)
        columns: list[Column] = []
        for number, field in enumerate([*schema.keys, *schema.values]):
            words = column_header(self._head, number)
            cls = column_class(field.type)
            columns.append(cls(field.type, layout.arrays(memory, number), words))
        # keys, values: key columns and state columns
        self.keys = tuple(columns[: len(schema.keys)])
        self.values = tuple(columns[len(schema.keys) :])

    @property
    def room(self) -> Capacity:
        """Capacity (rows, and entries and bytes of columns) that blocks are allocated for."""
        return read_room(self._head, len(self.columns))

    @room.setter
    def room(self, room: Capacity) -> None:
        write_room(self._head, room)

    @property
    def slots(self) -> int:
        """Number of slots of the table's hash index."""
        return int(self._head[SLOTS])

    @property
    def used(self) -> int:
        """Number of rows of the table, live or removed."""
        return int(self._head[USED])

    @property
    def live(self) -> int:
        """Number of rows of the table that are not removed."""
        return int(self._head[LIVE_ROWS])

    @property
    def damaged(self) -> bool:
        """True if a reader has marked the table as damaged."""
        return self._head[DAMAGED] != 0

    @damaged.setter
    def damaged(self, value: bool) -> None:
        self._head[DAMAGED] = value

    @property
    def rewritten(self) -> int:
        """Number of times the table was rewritten in place; a read that spans a rewrite is void."""
        return int(self._head[REWRITTEN])

    @property
    def extent(self) -> tuple[int, ...]:
        """Numbers of rewrites, rows and index slots; a `search` is valid while they stay."""
        return self.rewritten, self.used, self.slots

    @property
    def columns(self) -> tuple[Column, ...]:
        """Key columns of the table, then state columns."""
        return self.keys + self.values

    def entries(self, number: int) -> tuple[int, int, int]:
        """Return a column's number of entries, their bytes, and the bytes of live entries."""
        words = column_header(self._head, number)
        return words[ENTRIES], words[HEAP], words[LIVE]

    def state_bytes(self, key_groups: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the bytes of keys and state of each key group, without index and garbage."""
        per_row = sum(column.row_bytes for column in self.columns)
        sizes: npt.NDArray[np.int64] = self.num_keys[key_groups] * per_row
        sizes += self._heap_bytes[key_groups]
        return sizes

    def encode_keys(self, keys: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Encode a batch of keys as the key columns store them."""
        return tuple(c.encode(keys.column(i)) for i, c in enumerate(self.keys))

    def encode_values(self, values: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Encode a batch of state as the state columns store it."""
        return tuple(c.encode(values.column(i)) for i, c in enumerate(self.values))

    def search(self, keys: tuple[Encoded, ...], count: int) -> tuple[Rows, UInt64Array, Rows]:
        """Find the rows of `count` encoded keys, live or removed, by hash and comparison.

        Returns the rows, shape ``(count,)``, -1 for an absent key; and, for `write`, the keys'
        hashes and the index slots where the searches ended. Raises `IndexError` if the file is
        damaged.
        """
        hashes = self._hasher.hash(keys, count)
        used, index = self.used, self._index(self.slots)
        rows, at = index.first(hashes)
        if used:
            self._check_blocks(rows)
            wrong = self._mismatches(rows, keys)
            for _ in range(used):
                if not wrong.size:
                    break
                rows[wrong], at[wrong] = index.following(hashes[wrong], at[wrong])
                self._check_blocks(rows[wrong])
                some = tuple(column.take(wrong) for column in keys)
                wrong = wrong[self._mismatches(rows[wrong], some)]
            if wrong.size:
                raise IndexError("The index leads to the same rows again and again.")
        return rows, hashes, at

    def _check_blocks(self, rows: Rows) -> None:
        """Raise `IndexError` for row numbers beyond the allocated blocks, as in a damaged file."""
        if rows.size and int(rows.max()) >= self.room.rows:
            raise IndexError("A slot of the index names a row that is not there.")

    def _index(self, slots: int) -> HashIndex:
        """Return the hash index of the table, with `slots` slots."""
        return HashIndex(self.layout.index_slots(self._memory, slots))

    def _mismatches(self, rows: Rows, keys: tuple[Encoded, ...]) -> Rows:
        """Return the positions i at which row ``rows[i]`` does not have key i of `keys`."""
        same = np.ones(len(rows), np.bool_)
        for column, encoded in zip(self.keys, keys, strict=True):
            same &= column.equal(rows, encoded)
        return np.flatnonzero(~same & (rows >= 0)) if not same.all() else _NONE

    def live_only(self, rows: Rows) -> Rows:
        """Return `rows` with -1 in place of removed rows."""
        if self._head[LIVE_ROWS] == self._head[USED]:
            return rows
        return np.where(self._live.take(rows), rows, -1)

    def rows_of(self, selected: npt.NDArray[np.bool_]) -> Rows:
        """Return the live rows of the selected key groups, oldest first; `selected`: mask."""
        used = self.used
        return np.flatnonzero(self._live[:used] & selected.take(self._key_groups[:used]))

    def gather(self, rows: Rows) -> Upserts:
        """Copy the given rows, in the columns' encoding."""
        return Upserts(
            hashes=self._hashes.take(rows),
            key_groups=self._key_groups.take(rows),
            keys=tuple(column.gather(rows) for column in self.keys),
            values=tuple(column.gather(rows) for column in self.values),
        )

    def enlarge_index(self, slots: int) -> None:
        """Rebuild the hash index with `slots` slots, whose space is already allocated."""
        if self.slots:
            self._index(slots).copy_from(self.layout.index_slots(self._memory, self.slots))
        self._head[SLOTS] = slots

    def write(
        self,
        upserts: Upserts,
        fresh: Upserts | None,
        rows: Rows,
        hashes: UInt64Array,
        at: Rows | None,
    ) -> None:
        """Write the state of keys after a `search` for them.

        `rows`, `hashes`, `at`: results of the search; `at` is ``None`` if the index was enlarged
        since. `fresh`: the part of `upserts` whose keys have no row yet.
        """
        head = self._head
        if head[LIVE_ROWS] != head[USED]:
            dead = rows[(rows >= 0) & ~self._live.take(rows)]
            for key in self.keys:
                key.revive(dead)
            self._account(self._key_groups.take(dead), 1, [key.lengths(dead) for key in self.keys])
            self._live[dead] = True
            head[LIVE_ROWS] += len(dead)
        if fresh is None:
            self._put_values(rows, upserts)
            return
        first, count = head[USED], len(fresh.hashes)
        added = np.arange(first, first + count)
        new = np.flatnonzero(rows < 0)
        if len(new) != count:
            raise IndexError(f"{len(new)} keys have no row where {count} should have none.")
        rows[new] = added
        self._hashes[first : first + count] = fresh.hashes
        self._key_groups[first : first + count] = fresh.key_groups
        for key, encoded in zip(self.keys, fresh.keys, strict=True):
            key.append(first, encoded)
        self._account(fresh.key_groups, 1, [encoded.lengths() for encoded in fresh.keys])
        self._put_values(rows, upserts)
        self._live[first : first + count] = True
        # Last, so that a reader of other key groups follows no slot to a row half written.
        self._index(self.slots).insert(hashes[new], added, None if at is None else at[new])
        head[USED] = first + count
        head[LIVE_ROWS] += count

    def _put_values(self, rows: Rows, upserts: Upserts) -> None:
        """Write state values to rows, and update the bytes of their key groups."""
        for value, encoded in zip(self.values, upserts.values, strict=True):
            before = value.lengths(rows)
            value.put(rows, encoded)
            if before is not None:
                after = encoded.lengths()
                self._account(upserts.key_groups, 0, [None if after is None else after - before])

    def _account(self, key_groups: KeyGroups, keys: int, sizes: list[Rows | None]) -> None:
        """Add 1, 0 or -1 to the keys, and the bytes of columns, of each row's key group."""
        if keys:
            np.add.at(self.num_keys, key_groups, keys)
        for lengths in sizes:
            if lengths is not None:
                np.add.at(self._heap_bytes, key_groups, lengths)

    def rewrite(self, upserts: Upserts) -> None:
        """Replace all rows by `upserts` in place, within the allocated blocks.

        No other process may read the table meanwhile; all its key groups must be marked as written.
        """
        head = self._head
        head[REWRITTEN] += 1
        self.layout.index_slots(self._memory, self.slots)[:] = 0
        self._live[: self.used] = False
        self.num_keys[:], self._heap_bytes[:] = 0, 0
        for column in self.columns:
            column.clear(self.used)
        head[USED] = head[LIVE_ROWS] = 0
        self.append(upserts)

    def append(self, upserts: Upserts) -> None:
        """Append rows whose keys the table does not have."""
        count = len(upserts.hashes)
        nowhere = np.full(count, -1, np.int64)
        self.write(upserts, upserts, nowhere, self._hasher.hash(upserts.keys, count), None)

    def remove(self, rows: Rows) -> None:
        """Mark the given live rows as removed."""
        key_groups = self._key_groups.take(rows)
        sizes = [column.lengths(rows) for column in self.columns]
        self._account(key_groups, -1, [None if size is None else -size for size in sizes])
        for column in self.columns:
            column.release(rows)
        self._live[rows] = False
        self._head[LIVE_ROWS] -= len(rows)


_NONE: Rows = np.empty(0, np.int64)


_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_BYTES = np.uint64(8)
_FEW_WORDS = 64
_BLOCK = 16_384  # keys whose intermediate arrays stay in the cache


class KeyHasher:
    """Keyed hash by which a table finds rows; every table draws its own secret.

    The hash that chooses a key's key group is known to everybody, so whoever sends keys can choose
    them to share it, and one chain of equal hashes makes every search as long as the chain. So rows
    are found by another hash, over the bits of the key and the secret.

    Invariant: for two different keys chosen without knowing the secret, the upper halves of the
    sums are equal with probability 2^-32; equal keys have equal hashes, whether or not other keys
    of the batch are null.

    Source: pair-multiply-shift over 32-bit words (M. Thorup, "High Speed Hashing for Integers and
    Strings", 2015, on vectors and strings); the last mixing steps are those of MurmurHash3's
    finalizer, since linear probing wants more than the independence of pairs.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: tuple[int, int]) -> None:
        self._secret = secret

    def hash(self, keys: Sequence[Encoded], count: int) -> UInt64Array:
        """Return the hashes of `count` keys; every bit depends on all bits of the key."""
        hashes = np.full(count, self._multipliers(0, 1)[0], np.uint64)
        for first in range(0, count, _BLOCK):
            block = slice(first, first + _BLOCK)
            sums = hashes[block]
            for number, column in enumerate(keys, start=1):
                if isinstance(column.values, np.ndarray):
                    self._add_fixed(sums, number, column.values[block])
                else:
                    self._add_strings(sums, number, column.values[block])
                if column.nulls is not None:  # a flag: nothing is added where nothing is null
                    sums += column.nulls[block] * self._multipliers(number, 1)[0]
            _mix(sums)
        return hashes

    def _multipliers(self, column: int, words: int) -> UInt64Array:
        """Return secret multipliers of a column: one, and two for each 64-bit word."""
        count = max(_FEW_WORDS, 1 << (words - 1).bit_length())
        return _multipliers(self._secret, column, count)

    def _add_fixed(self, sums: UInt64Array, number: int, values: npt.NDArray[Any]) -> None:
        """Add fixed-width values of column number `number` to the hash sums, in place."""
        if values.ndim == 1:
            values = values[:, None]
        elif values.dtype.itemsize == 1:  # of an odd width: filled up to whole words
            padded = np.zeros((len(values), -(-values.shape[1] // 8) * 8), np.uint8)
            padded[:, : values.shape[1]] = values
            values = padded.view(np.uint64)
        multipliers = self._multipliers(number, values.shape[1])
        for word in range(values.shape[1]):
            sums += _product(values[:, word].astype(np.uint64), multipliers, word)

    def _add_strings(self, sums: UInt64Array, number: int, values: pa.Array) -> None:
        """Add strings or binaries of column number `number` to the hash sums, in place."""
        same_width = fixed_width(values)
        if same_width is not None and same_width.dtype.itemsize >= 8:
            self._add_equal_lengths(sums, number, same_width)
            return
        offsets = offsets_of(values)
        starts = offsets[:-1].astype(np.int64)
        lengths = np.diff(offsets).astype(np.int64)
        longest = int(lengths.max())
        multipliers = self._multipliers(number, 1 + -(-longest // 8))
        sums += _product(lengths.view(np.uint64), multipliers, 0)
        if not longest:
            return
        data = np.frombuffer(values.buffers()[2], np.uint8)
        if len(data) < 8:
            data = np.concatenate((data, np.zeros(8, np.uint8)))
        words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        rows: Any = slice(None)
        for word in range(-(-longest // 8)):
            remaining = lengths - 8 * word
            if remaining.min() <= 0:
                rows = np.flatnonzero(remaining > 0)
                remaining = remaining[rows]
            at = starts[rows] + 8 * word
            if at[-1] < len(words):
                chunk = words[at]
            else:  # the last bytes of the buffer are read by stepping back, and shifted into place
                readable = np.minimum(at, len(words) - 1)
                chunk = words[readable] >> ((at - readable).view(np.uint64) * _BYTES)
            if remaining.min() < 8:
                missing = np.maximum(8 - remaining, 0).view(np.uint64) * _BYTES
                chunk = (chunk << missing) >> missing
            sums[rows] += _product(chunk, multipliers, 1 + word)

    def _add_equal_lengths(self, sums: UInt64Array, number: int, values: FixedWidth) -> None:
        """Add byte strings of one length, at least 8 bytes, to the hash sums, in place."""
        width = values.dtype.itemsize
        words, rest = divmod(width, 8)
        multipliers = self._multipliers(number, 1 + -(-width // 8))
        sums += _product(np.array([width], np.uint64), multipliers, 0)
        for word in range(words):
            sums += _product(word_at(values, 8 * word, "<u8"), multipliers, 1 + word)
        if rest:
            last = word_at(values, width - 8, "<u8") >> np.uint64(64 - 8 * rest)
            sums += _product(last, multipliers, 1 + words)


def _product(words: UInt64Array, multipliers: UInt64Array, word: int) -> UInt64Array:
    """Return the product of the two halves of each word, after adding a secret number to each."""
    high = words >> _HALF
    high += multipliers[1 + 2 * word]
    low = words & _LOW
    low += multipliers[2 + 2 * word]
    high *= low
    return high


def _mix(sums: UInt64Array) -> None:
    """Mix the bits of each hash sum in place, so that every bit depends on all."""
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xFF51_AFD7_ED55_8CCD)
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xC4CE_B9FE_1A85_EC53)
    sums ^= sums >> np.uint64(33)


@lru_cache(maxsize=256)
def _multipliers(secret: tuple[int, int], column: int, words: int) -> UInt64Array:
    """Return the secret multipliers of column number `column`: one, and two for each of `words`.

    The same for the same `secret`; read-only.
    """
    seed = np.random.SeedSequence([*secret, column])
    drawn = np.random.Generator(np.random.Philox(seed)).integers(
        0, 2**64 - 1, 1 + 2 * words, np.uint64, endpoint=True
    )
    drawn.setflags(write=False)
    return drawn
