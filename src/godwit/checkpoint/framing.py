"""Encoding of records as files, and detection of damaged or invalid ones.

Layout: a header (magic and format, where the body begins and how long it is, a checksum of
everything behind the header, a checksum of the header), padding to 64 bytes, blocks that travel in
the file, each padded to 64 bytes, and the body as msgpack.  Every byte is under a checksum.

A checksum says that a record is as it was written, not that Godwit wrote it.  Invariant: what
`decode_record` returns may be used as an index, a size or a path without another look, as far as
one record alone can tell.  What depends on other records (the number of key groups, the order of
epochs) is checked where they meet, in `commit_log` and `chains`.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import (
    ALIGNMENT,
    BLOCKS,
    COMMITS,
    FORMAT,
    RELEASES,
    BlockRef,
    CommitRecord,
    EditRecord,
    FlowIdentity,
    JournalSegment,
    Manifest,
    OutputRef,
    PhysicalPlan,
    RunRecord,
    SegmentRef,
    SnapshotRef,
    commit_path,
    number_in,
    numbered_path,
    padded,
)
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError
from godwit.model.key_groups import MAX_NUM_KEY_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from godwit.checkpoint.storage import CheckpointStorage

_NUMBER: Final = (0, 10**12 - 1)  # what the names of files have room for
_EVENT_TIME: Final = 2**62
"""Microseconds: beyond whatever windows, slack and joins may add to an event time."""
_SIZE: Final = (0, 2**62)
_MAX_ENTRIES: Final = 2**26
"""Arrays over the key groups of all states: at most so many elements each."""
_MAX_DEPTH: Final = 64
_MAX_STATES: Final = 4096
_SOURCE_ENTRY: Final = re.compile(r"sources/\d{1,9}/\d{1,18}")
_HEXADECIMAL: Final = re.compile(r"[0-9a-f]{0,64}")


def _identity_problems(identity: FlowIdentity, _number: int) -> Iterator[str]:
    """Yield the problems of an identity record."""
    if not 1 <= identity.num_key_groups <= MAX_NUM_KEY_GROUPS:
        yield f"it has {identity.num_key_groups} key groups, not 1 to {MAX_NUM_KEY_GROUPS}"
    yield from _not_hexadecimal(identity, "query_id", "history")
    for origin in identity.origins:
        yield from _out_of_bounds(origin, epoch=_NUMBER)


def _run_problems(run: RunRecord, number: int) -> Iterator[str]:
    """Yield the problems of a run's record; `number`: the number in its file's name."""
    if run.number != number:
        yield f"it is of run {run.number}"


def _journal_problems(segment: JournalSegment, number: int) -> Iterator[str]:
    """Yield the problems of a journal segment; `number`: the number in its file's name."""
    if segment.number != number:
        yield f"it is of segment {segment.number}"
    for entry in segment.entries:
        if not (entry.startswith(b"{") and entry.endswith(b"}")):
            yield f"an entry is no JSON object: {entry[:40]!r}"
            return


def _edit_problems(edit: EditRecord, number: int) -> Iterator[str]:
    """Yield the problems of an edit's record; `number`: the number in its file's name."""
    if edit.number != number:
        yield f"it is of edit {edit.number}"
    yield from _out_of_bounds(edit, flow=_NUMBER, epoch=(-1, _NUMBER[1]))
    yield from _not_hexadecimal(edit, "history", "record", "flow_digest", "previous")


def _flow_problems(flow: FlowVersion, number: int) -> Iterator[str]:
    """Yield the problems of a flow version; `number`: the number in its file's name."""
    if not -1 <= flow.previous < number:
        yield f"it follows flow version {flow.previous}"
    operators = [*flow.operators.values(), *flow.kept.values()]
    descriptions = [state for operator in operators for state in operator.states.values()]
    if len(descriptions) > _MAX_STATES:
        yield f"it has {len(descriptions)} states"
    for description in descriptions:
        yield from plain_problems("the type of a state", description.type)


def _plan_problems(plan: PhysicalPlan, _number: int) -> Iterator[str]:
    """Yield the problems of a physical plan."""
    names = [component.name for component in plan.components]
    operators = [name for component in plan.components for name in component.operators]
    for what, listed in (("a component", names), ("an operator", operators)):
        if len(set(listed)) < len(listed):
            yield f"it names {what} twice"
    if not all(component.operators for component in plan.components):
        yield "it has a component without operators"
    if len(operators) > _MAX_STATES:
        yield f"it has {len(operators)} operators"


def _commit_problems(record: CommitRecord, number: int) -> Iterator[str]:
    """Yield the problems of a commit record; `number`: the epoch in its file's name."""
    if record.epoch != number:
        yield f"it is of epoch {record.epoch}"
        return
    yield from _not_hexadecimal(record, "history", "previous", "flow_digest", "plan_digest")
    yield from _out_of_bounds(
        record,
        flow=_NUMBER,
        plan=_NUMBER,
        retained_from=(0, record.epoch),
        manifest=(-1, record.epoch - 1),
    )
    if record.batch is not None and record.before is not None:
        yield "it covers a micro-batch, and carries on an earlier one"
    if record.last_batch is not None:
        yield from _out_of_bounds(record.last_batch, number=_SIZE)
        if _integers(record.last_batch.lines, 0, _MAX_STATES) is None:
            yield "it names a source of Spark's that does not exist"
        for name in record.last_batch.sources:
            if not _SOURCE_ENTRY.fullmatch(name):
                yield f"{name!r:.200} is no entry of a source's log"
        if record.last_batch.positions.keys() != record.last_batch.identities.keys():
            yield "it has positions of other sources than identities"
        yield from plain_problems("a position", record.last_batch.positions)
    kept = {name: since for name, (since, _) in record.kept.items()}
    for times in (record.watermarks, record.newest, record.expired, record.reached, kept):
        for name, time in times.items():
            if abs(time) > _EVENT_TIME:
                yield f"the event time of {name!r:.200} is {time} microseconds"
    if len({segment.id for segment in record.segments}) > _MAX_STATES:
        yield "it names too many states"
    for segment in record.segments:
        if segment.epoch != record.epoch:
            yield f"a segment is of epoch {segment.epoch}"
        yield from _segment_problems(segment, MAX_NUM_KEY_GROUPS)
    for snapshot in record.snapshots:
        yield from _snapshot_problems(snapshot, MAX_NUM_KEY_GROUPS, record.epoch)
    for output in record.outputs:
        yield from _out_of_bounds(output, flow=_NUMBER, lane=_NUMBER, rows=_SIZE)
        yield from _block_problems(output.block)
    for sink in record.sinks.values():
        yield from _out_of_bounds(sink, before=(-1, record.epoch - 1))
    for block in record.blocks():
        written_for = number_in(block.file)
        if written_for is not None and (
            written_for < record.epoch
            or (block.file.startswith(COMMITS) and written_for != record.epoch)
        ):
            yield f"a block is in {block.file!r}, which was not written for it"
    for key_groups in record.consumed.values():
        if _integers(key_groups, 0, MAX_NUM_KEY_GROUPS - 1) is None:
            yield "it names a key group that does not exist"
    for slots in record.slots.values():
        if _integers([slot[0] for slot in slots], 0, MAX_NUM_KEY_GROUPS - 1) is None or any(
            slot[1] not in (0, 1) for slot in slots
        ):
            yield "it names a slot that does not exist"
    for keys in record.spreads.values():
        for key in keys:
            parts = [part for grid in key.grids for part in grid.parts]
            if (
                not key.grids
                or len(set(parts)) != len(parts)
                or _integers(parts, 0, 2**31 - 1) is None
                or any(g.rows * g.columns != len(g.parts) or not g.parts for g in key.grids)
                or any(abs(g.over) > _EVENT_TIME for g in key.grids)
            ):
                yield f"the parts of the key {key.key!r:.200} are none"
    yield from plain_problems("an assignment", record.assignments)


def _manifest_problems(manifest: Manifest, number: int) -> Iterator[str]:
    """Yield the problems of a manifest; `number`: the epoch in its file's name."""
    if manifest.epoch != number:
        yield f"it is of epoch {manifest.epoch}"
        return
    size, epoch = manifest.num_key_groups, manifest.epoch
    if not 1 <= size <= MAX_NUM_KEY_GROUPS:
        yield f"it has {size} key groups, not 1 to {MAX_NUM_KEY_GROUPS}"
        return
    yield from _not_hexadecimal(manifest, "record")
    yield from _out_of_bounds(manifest, flow=_NUMBER, retained_from=(0, epoch))
    if len(manifest.states) * size > _MAX_ENTRIES:
        yield f"it has {len(manifest.states)} states"
        return
    states = [state.state for state in manifest.states]
    if len(set(states)) != len(states):
        yield "it names a state twice"
    lists = [part.segments for part in manifest.states]
    for segments in (*lists, *(part.segments for part in manifest.waiting)):
        before = 0
        for segment in segments:
            yield from _out_of_bounds(segment, epoch=(before, epoch))
            before = max(before, segment.epoch)
            yield from _segment_problems(segment, size)
    for state in manifest.states:
        for snapshot in state.snapshots:
            yield from _snapshot_problems(snapshot, size, epoch)
        for entry in state.entries:
            yield from _out_of_bounds(
                entry, key_group=(0, size - 1), version=(-1, epoch), base=(-1, epoch)
            )
    for waiting in manifest.waiting:
        if _integers(waiting.consumed, 0, size - 1) is None:
            yield f"it names a key group that does not exist (there are {size})"
        if _integers(waiting.consumed.values(), -1, epoch) is None:
            yield f"it names an epoch after {epoch} in which waiting rows were processed"


_CHECKS: Final[dict[type, Callable[[Any, int], Iterator[str]]]] = {
    FlowIdentity: _identity_problems,
    RunRecord: _run_problems,
    JournalSegment: _journal_problems,
    FlowVersion: _flow_problems,
    EditRecord: _edit_problems,
    PhysicalPlan: _plan_problems,
    CommitRecord: _commit_problems,
    Manifest: _manifest_problems,
}
"""Kind of record → yields what cannot be so about one, by the number in its file's name or -1."""


def _not_hexadecimal(record: object, *fields: str) -> Iterator[str]:
    """Yield a problem for each named field of a record that is not a hexadecimal digest."""
    for name in fields:
        value = getattr(record, name)
        if not _HEXADECIMAL.fullmatch(value):
            yield f"its {name}, {value!r:.100}, is not hexadecimal"


def _out_of_bounds(record: object, **bounds: tuple[int, int]) -> Iterator[str]:
    """Yield a problem for each field of a record outside its bounds (inclusive, by field name)."""
    for name, (minimum, maximum) in bounds.items():
        value = getattr(record, name)
        if not minimum <= value <= maximum:
            yield f"its {name} is {value}, not {minimum} to {maximum}"


def _segment_problems(segment: SegmentRef, num_key_groups: int) -> Iterator[str]:
    """Yield the problems of a reference to a changelog segment."""
    yield from _out_of_bounds(segment, flow=_NUMBER, lane=_NUMBER)
    yield from _block_problems(segment.block)
    yield from row_problems(segment, num_key_groups)


def concatenate(parts: Iterable[Sequence[int]], size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Concatenate sequences of integers to one array of `size` elements."""
    return np.fromiter(chain.from_iterable(parts), np.int64, size)


def rows_are_sound(segments: Sequence[SegmentRef], num_key_groups: int) -> bool:
    """Return whether `row_problems` finds nothing in any segment; one vectorized check of all."""
    sizes = [len(segment.key_groups) for segment in segments]
    if sizes != [len(segment.row_ends) for segment in segments]:
        return False
    count = sum(sizes)
    if not count:
        return True
    try:
        key_groups = concatenate((segment.key_groups for segment in segments), count)
        ends = concatenate((segment.row_ends for segment in segments), count)
    except OverflowError:
        return False
    if key_groups.min() < 0 or key_groups.max() >= num_key_groups:
        return False
    if ends.min() < _SIZE[0] or ends.max() > _SIZE[1]:
        return False
    at = np.repeat(np.arange(len(sizes)), sizes)
    ascend = (key_groups[1:] > key_groups[:-1]) & (ends[1:] >= ends[:-1])
    return bool((ascend | (at[1:] != at[:-1])).all())


def row_problems(segment: SegmentRef, num_key_groups: int) -> Iterator[str]:
    """Yield the problems of a segment's list of key groups and of its list of row ends."""
    if len(segment.key_groups) != len(segment.row_ends):
        yield (
            f"a segment has {len(segment.key_groups)} key groups and {len(segment.row_ends)} ends "
            f"of rows"
        )
    key_groups = _integers(segment.key_groups, 0, num_key_groups - 1)
    if key_groups is None:
        yield f"it names a key group that does not exist (there are {num_key_groups} at most)"
    elif (key_groups[1:] <= key_groups[:-1]).any():
        yield "it does not list key groups in order"
    ends = _integers(segment.row_ends, *_SIZE)
    if ends is None or (ends[1:] < ends[:-1]).any():
        yield "a segment has ends of rows that go backwards"


def _snapshot_problems(snapshot: SnapshotRef, num_key_groups: int, last: int) -> Iterator[str]:
    """Yield the problems of a reference to a snapshot; `last`: its latest possible version."""
    yield from _out_of_bounds(
        snapshot, flow=_NUMBER, key_group=(0, num_key_groups - 1), version=(0, last), rows=_SIZE
    )
    yield from _block_problems(snapshot.block)


def _block_problems(block: BlockRef) -> Iterator[str]:
    """Yield the problems of a reference to a block."""
    if number_in(block.file) is None or not block.file.startswith((f"{BLOCKS}/", f"{COMMITS}/")):
        yield f"a block is in {block.file!r:.200}, which is no file of blocks"
    if block.data:
        yield "a block's bytes stand in the record"
    yield from _out_of_bounds(block, offset=_SIZE, length=_SIZE, checksum=(0, 2**32 - 1))
    if block.offset % ALIGNMENT:
        yield f"a block begins at {block.offset}, not at a multiple of {ALIGNMENT}"


def _integers(values: Iterable[int], minimum: int, maximum: int) -> np.ndarray[Any, Any] | None:
    """Return integers as an array; ``None`` if one is outside the inclusive bounds."""
    integers = list(values)
    if integers and not (minimum <= min(integers) and max(integers) <= maximum):
        return None
    return np.array(integers, np.int64)


def plain_problems(what: str, value: Any) -> Iterator[str]:
    """Yield a problem if a value (`what`) is not plain data or is nested too deeply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str | int) for key in item):
                    yield f"{what} has keys that are no text"
                    return
                deeper += item.values()
            elif isinstance(item, list | tuple):
                deeper += item
            elif not (item is None or isinstance(item, bool | int | float | str | bytes)):
                yield f"{what} holds a value of type {type(item).__name__}"
                return
        if not deeper:
            return
        level = deeper
    yield f"{what} is nested more than {_MAX_DEPTH} levels deep"


# Magic and format; where the body begins; its length; CRC-32 of all that follows; of all before.
_HEADER = struct.Struct("<8sQQII")
_NAME = b"GODWIT\x00"
_MAGIC = _NAME + bytes([FORMAT])
_DIGEST_BYTES = 16

# What msgspec raises, and what Python does for values that nest too deep or cannot be keys.
_UNDECODABLE = (msgspec.MsgspecError, RecursionError, TypeError, ValueError, MemoryError)

_T = TypeVar("_T")
_ENCODER = msgspec.msgpack.Encoder()


def encode_record(value: msgspec.Struct, blocks: bytes = b"") -> bytes:
    """Encode a record as a file with checksums; `blocks`: bytes that the file carries too."""
    body = _ENCODER.encode(value)
    rest = bytes(ALIGNMENT - _HEADER.size) + blocks + body
    head = _HEADER.pack(_MAGIC, ALIGNMENT + len(blocks), len(body), zlib.crc32(rest), 0)
    head = head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))
    return head + rest


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of a commit record's file, by which the next record refers to it."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def decode_record(data: bytes | memoryview, kind: type[_T], *, path: str) -> _T:
    """Decode the content of the record file at `path`; raise if it is damaged or not valid."""
    view = memoryview(data)
    problem = _frame_problem(view)
    if not problem:
        magic, start, length, _, _ = _HEADER.unpack_from(view)
        if magic[:7] != _NAME or magic[7] != FORMAT:
            raise _other_format(magic[7], path)
        try:
            record = msgspec.msgpack.decode(view[start : start + length], type=kind)
        except _UNDECODABLE as error:
            problem = f"it does not hold a {kind.__name__} ({error})"
        else:
            number, check = number_in(path), _CHECKS.get(kind)
            problems = check(record, -1 if number is None else number) if check else ()
            problem = next(iter(problems), "")
            if not problem:
                return record
    raise CorruptCheckpointError(
        f"The file {path!r} of the checkpoint is damaged: {problem}.",
        remedy="Restore this file from a copy of the checkpoint; run a verification to see what "
        "else is affected.",
        file=path,
    )


def _other_format(version: int, path: str) -> CheckpointMismatchError:
    """Return the error that the file at `path` has a format number that cannot be read."""
    if version in RELEASES:
        remedy = (
            f"Godwit {' and '.join(RELEASES[version])} reads it: go on with that version, on the "
            "driver and on every executor."
        )
    elif version > FORMAT:
        remedy = (
            "A later version of Godwit wrote it: go on with that version, on the driver and on "
            "every executor, or restore a backup that an earlier one made."
        )
    else:
        remedy = (
            "No release of Godwit wrote it: start with a new checkpoint, and let the sources "
            "deliver their rows again."
        )
    return CheckpointMismatchError(
        f"The file {path!r} has format {version} of a checkpoint, and this version of Godwit "
        f"({RELEASES[FORMAT][-1]}) reads format {FORMAT}.",
        remedy=remedy,
        file=path,
        format=version,
    )


def _frame_problem(view: memoryview) -> str:
    """Return the problem of a file's header, length or checksums; empty if there is none."""
    if len(view) < ALIGNMENT:
        return f"it is truncated to {len(view)} bytes"
    magic, start, length, checksum, head_checksum = _HEADER.unpack_from(view)
    if magic[:6] != _MAGIC[:6]:
        return "it does not begin like a record of Godwit"
    if zlib.crc32(view[: _HEADER.size - 4]) != head_checksum:
        return "its header fails its checksum"
    if start + length != len(view):
        return f"it has {len(view)} bytes instead of {start + length}"
    if zlib.crc32(view[_HEADER.size :]) != checksum:
        return "its content fails its checksum"
    return ""


def encode_commit(record: CommitRecord) -> tuple[bytes, CommitRecord]:
    """Encode a commit record, with small blocks inline, as the content of its file.

    Returns the bytes, and the record in which every block has a file; inline blocks keep their
    bytes in memory too.
    """
    path = commit_path(record.epoch)
    inline: list[bytes] = []
    end = ALIGNMENT

    def place(block: BlockRef) -> BlockRef:
        """Return a block's reference with its place in the commit record's file."""
        nonlocal end
        if block.file:
            return block
        placed = msgspec.structs.replace(block, file=path, offset=end)
        inline.append(block.data + bytes(padded(block.length) - block.length))
        end += padded(block.length)
        return placed

    written = _with_blocks(record, place)
    return encode_record(_with_blocks(written, _without_bytes), b"".join(inline)), written


_Ref = TypeVar("_Ref", SegmentRef, SnapshotRef, OutputRef)


def _with_blocks(record: CommitRecord, change: Callable[[BlockRef], BlockRef]) -> CommitRecord:
    """Return a commit record with `change` applied to each block reference in it."""
    return msgspec.structs.replace(
        record,
        segments=tuple(_with_block(ref, change(ref.block)) for ref in record.segments),
        snapshots=tuple(_with_block(ref, change(ref.block)) for ref in record.snapshots),
        outputs=tuple(_with_block(ref, change(ref.block)) for ref in record.outputs),
    )


def _with_block(ref: _Ref, block: BlockRef) -> _Ref:
    """Return a reference to a segment, snapshot or output, changed to refer to `block`."""
    return ref if block is ref.block else msgspec.structs.replace(ref, block=block)


def _without_bytes(block: BlockRef) -> BlockRef:
    """Return a block reference without its inline bytes."""
    return msgspec.structs.replace(block, data=b"") if block.data else block


def without_bytes(ref: _Ref) -> _Ref:
    """Return a reference, whose block has a file, without the block's inline bytes."""
    return _with_block(ref, _without_bytes(ref.block))


def load_record(storage: CheckpointStorage, path: str, kind: type[_T]) -> _T:
    """Read and check the record at `path` of the checkpoint."""
    return load_with_digest(storage, path, kind)[0]


def load_with_digest(storage: CheckpointStorage, path: str, kind: type[_T]) -> tuple[_T, str]:
    """Read and check the record at `path`; also return its digest."""
    data = memoryview(storage.read(path))
    return decode_record(data, kind, path=path), digest_of(data)


def numbers_in(storage: CheckpointStorage, directory: str) -> list[int]:
    """Return the numbers of a directory's records (epochs, runs, ...), ascending."""
    numbers = (number_in(entry.path) for entry in storage.list(directory))
    return sorted(number for number in numbers if number is not None)


def create_numbered(
    storage: CheckpointStorage, directory: str, value: msgspec.Struct, *, after: int
) -> int:
    """Write a record under the next free number of a directory; return the number.

    `after`: a number that the record's must exceed.
    """
    number = max([after, *numbers_in(storage, directory)]) + 1
    while True:
        try:
            storage.create_exclusive(numbered_path(directory, number), encode_record(value))
        except FileExistsError:  # of another start at this moment
            number += 1
        else:
            return number
