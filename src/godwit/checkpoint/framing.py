"""Encoding of records as files, and detection of damaged or invalid ones.

Layout: a header (magic and format, where the body begins and how long it is, a checksum of
everything behind the header, a checksum of the header), padding to 64 bytes, blocks that travel in
the file, each padded to 64 bytes, and the body as msgpack.  Every byte is under a checksum.

A checksum detects changes, not records of other programs.  Invariant: values from `decode_record`
are safe as an index, a size or a path, as far as one record alone shows.  Conditions across records
(the number of key groups, the order of epochs) are checked in `commit_log` and `chains`.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import (
    ALIGNMENT,
    BLOCKS,
    COMMITS,
    FORMAT,
    MAX_STATES,
    RELEASES,
    BlockRef,
    CommitRecord,
    EditRecord,
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

    import numpy.typing as npt

    from godwit.checkpoint.storage import CheckpointStorage

    _Integers = npt.NDArray[np.int64]

_MAX_ENTRIES: Final = 2**26
"""Maximum number of elements of arrays over the key groups of all states."""
_MAX_DEPTH: Final = 64
_SOURCE_ENTRY: Final = re.compile(r"sources/\d{1,9}/\d{1,18}")


def _journal_problems(segment: JournalSegment, _number: int) -> Iterator[str]:
    """Yield the problems of a journal segment."""
    for entry in segment.entries:
        if not (entry.startswith(b"{") and entry.endswith(b"}")):
            yield f"an entry is not a JSON object: {entry[:40]!r}"
            return


def _flow_problems(flow: FlowVersion, number: int) -> Iterator[str]:
    """Yield the problems of a flow version; `number`: the number in its file's name."""
    if not -1 <= flow.previous < number:
        yield f"it follows flow version {flow.previous}"
    operators = [*flow.operators.values(), *flow.retained.values()]
    descriptions = [state for operator in operators for state in operator.states.values()]
    if len(descriptions) > MAX_STATES:
        yield f"it has {len(descriptions)} states"
    for description in descriptions:
        yield from plain_problems("the type of a state", description.type)


def _plan_problems(plan: PhysicalPlan, _number: int) -> Iterator[str]:
    """Yield the problems of a physical plan."""
    names = [component.name for component in plan.components]
    operators = [name for component in plan.components for name in component.operators]
    for kind, listed in (("a component", names), ("an operator", operators)):
        if len(set(listed)) < len(listed):
            yield f"it names {kind} twice"
    if not all(component.operators for component in plan.components):
        yield "it has a component without operators"
    if len(operators) > MAX_STATES:
        yield f"it has {len(operators)} operators"


def _commit_problems(record: CommitRecord, _number: int) -> Iterator[str]:
    """Yield the problems of a commit record."""
    yield from _out_of_bounds(record, retained_from=record.epoch, manifest=record.epoch - 1)
    if record.batch is not None and record.before is not None:
        yield "it covers a micro-batch, and carries on an earlier one"
    if record.last_batch is not None:
        for name in record.last_batch.sources:
            if not _SOURCE_ENTRY.fullmatch(name):
                yield f"{name!r:.200} is not an entry of a source's log"
        if record.last_batch.positions.keys() != record.last_batch.identities.keys():
            yield "it has positions of other sources than identities"
        yield from plain_problems("a position", record.last_batch.positions)
    if len({segment.id for segment in record.segments}) > MAX_STATES:
        yield "it names too many states"
    for segment in record.segments:
        if segment.epoch != record.epoch:
            yield f"a segment is of epoch {segment.epoch}"
    yield from _segment_problems(record.segments, MAX_NUM_KEY_GROUPS)
    for snapshot in record.snapshots:
        yield from _out_of_bounds(snapshot, version=record.epoch)
    for sink in record.sinks.values():
        yield from _out_of_bounds(sink, before=record.epoch - 1)
    for block in record.blocks():
        yield from _block_problems(block)
        written_for = number_in(block.file)
        if written_for is not None and (
            written_for < record.epoch
            or (block.file.startswith(COMMITS) and written_for != record.epoch)
        ):
            yield f"a block is in {block.file!r}, which was not written for it"
    for keys in record.spreads.values():
        for key in keys:
            parts = [part for grid in key.grids for part in grid.parts]
            if (
                not key.grids
                or len(set(parts)) != len(parts)
                or any(
                    key_group.rows * key_group.columns != len(key_group.parts)
                    or not key_group.parts
                    for key_group in key.grids
                )
            ):
                yield f"the parts of the key {key.key!r:.200} are none"
    yield from plain_problems("an assignment", record.assignments)


def _manifest_problems(manifest: Manifest, _number: int) -> Iterator[str]:
    """Yield the problems of a manifest."""
    size, epoch = manifest.num_key_groups, manifest.epoch
    yield from _out_of_bounds(manifest, retained_from=epoch)
    if len(manifest.states) * size > _MAX_ENTRIES:
        yield f"it has {len(manifest.states)} states"
        return
    states = [state.state for state in manifest.states]
    if len(set(states)) != len(states):
        yield "it names a state twice"
    lists = [part.segments for part in manifest.states]
    for segments in (*lists, *(part.segments for part in manifest.waiting)):
        previous_epoch = 0
        for segment in segments:
            if not previous_epoch <= segment.epoch <= epoch:
                yield f"a segment is of epoch {segment.epoch}, not {previous_epoch} to {epoch}"
            previous_epoch = max(previous_epoch, segment.epoch)
            yield from _block_problems(segment.block)
        yield from _segment_problems(segments, size)
    for state in manifest.states:
        for snapshot in state.snapshots:
            yield from _out_of_bounds(snapshot, key_group=size - 1, version=epoch)
            yield from _block_problems(snapshot.block)
        for entry in state.entries:
            yield from _out_of_bounds(entry, key_group=size - 1, version=epoch, base=epoch)
    for waiting in manifest.waiting:
        if any(key_group >= size for key_group in waiting.consumed):
            yield f"it names a key group that does not exist (there are {size})"
        if any(consumed > epoch for consumed in waiting.consumed.values()):
            yield f"it names an epoch after {epoch} in which waiting rows were processed"


_NUMBERED: Final[dict[type, tuple[str, str]]] = {
    RunRecord: ("run", "number"),
    EditRecord: ("edit", "number"),
    JournalSegment: ("segment", "number"),
    CommitRecord: ("epoch", "epoch"),
    Manifest: ("epoch", "epoch"),
}
"""Kind of record → noun and field of the number in its file's name."""
_CHECKS: Final[dict[type, Callable[[Any, int], Iterator[str]]]] = {
    JournalSegment: _journal_problems,
    FlowVersion: _flow_problems,
    PhysicalPlan: _plan_problems,
    CommitRecord: _commit_problems,
    Manifest: _manifest_problems,
}
"""Kind of record → function of a record and the number in its file's name that yields problems."""


def _out_of_bounds(record: object, **maxima: int) -> Iterator[str]:
    """Yield a problem for each field of a record above its maximum."""
    for name, maximum in maxima.items():
        value = getattr(record, name)
        if value > maximum:
            yield f"its {name} is {value}, and at most {maximum} is possible"


def concatenate(parts: Iterable[Sequence[int]], size: int) -> _Integers:
    """Concatenate sequences of integers to one array of `size` elements."""
    return np.fromiter(chain.from_iterable(parts), np.int64, size)


def key_group_columns(segments: Sequence[SegmentRef]) -> tuple[_Integers, _Integers]:
    """Return the key groups of all segments as two columns: number of the segment, key group.

    Vectorized, since hundreds of lanes have segments.
    """
    sizes = [len(segment.key_groups) for segment in segments]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    return numbers, concatenate((segment.key_groups for segment in segments), len(numbers))


def rows_are_sound(segments: Sequence[SegmentRef], num_key_groups: int) -> bool:
    """Return true if the lists of key groups and row ends of all segments are valid; vectorized."""
    if any(len(segment.key_groups) != len(segment.row_ends) for segment in segments):
        return False
    numbers, key_groups = key_group_columns(segments)
    ends = concatenate((segment.row_ends for segment in segments), len(numbers))
    ascend = (key_groups[1:] > key_groups[:-1]) & (ends[1:] >= ends[:-1])
    exist = (key_groups >= 0) & (key_groups < num_key_groups) & (ends >= 0)
    return bool(exist.all() and (ascend | (numbers[1:] != numbers[:-1])).all())


def row_problems(segment: SegmentRef, num_key_groups: int) -> Iterator[str]:
    """Yield the problems of a segment's list of key groups and of its list of row ends."""
    key_groups, ends = segment.key_groups, segment.row_ends
    if len(key_groups) != len(ends):
        yield f"a segment has {len(key_groups)} key groups and {len(ends)} ends of rows"
    if not all(0 <= key_group < num_key_groups for key_group in key_groups):
        yield f"it names a key group that does not exist (there are {num_key_groups} at most)"
    elif any(after <= before for before, after in pairwise(key_groups)):
        yield "it does not list key groups in order"
    if any(after < before for before, after in pairwise((0, *ends))):
        yield "a segment has ends of rows that go backwards"


def _segment_problems(segments: Sequence[SegmentRef], num_key_groups: int) -> Iterator[str]:
    """Yield the problems of several segments' lists of key groups and row ends."""
    if not rows_are_sound(segments, num_key_groups):
        for segment in segments:
            yield from row_problems(segment, num_key_groups)


def _block_problems(block: BlockRef) -> Iterator[str]:
    """Yield the problems of a reference to a block."""
    if number_in(block.file) is None or not block.file.startswith((f"{BLOCKS}/", f"{COMMITS}/")):
        yield f"a block is in {block.file!r:.200}, which is not a file of blocks"
    if block.data:
        yield "a block's bytes stand in the record"


def plain_problems(subject: str, value: Any) -> Iterator[str]:
    """Yield a problem if a value (`subject`) is not plain data or is nested too deeply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str | int) for key in item):
                    yield f"{subject} has keys that are not text"
                    return
                deeper += item.values()
            elif isinstance(item, list | tuple):
                deeper += item
            elif not (item is None or isinstance(item, bool | int | float | str | bytes)):
                yield f"{subject} has a value of type {type(item).__name__}"
                return
        if not deeper:
            return
        level = deeper
    yield f"{subject} is nested more than {_MAX_DEPTH} levels deep"


# Magic and format; where the body begins; its length; CRC-32 of all that follows; of all before.
_HEADER = struct.Struct("<8sQQII")
_NAME = b"GODWIT\x00"
_MAGIC = _NAME + bytes([FORMAT])
_DIGEST_BYTES = 16

# Exceptions of msgspec, and of Python for values that nest too deep or cannot be keys.
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
            problem = _first_problem(record, path)
            if not problem:
                return record
    raise CorruptCheckpointError(
        f"The file {path!r} of the checkpoint is damaged: {problem}.",
        remedy="Restore this file from a copy of the checkpoint; run `godwit checkpoint verify` to "
        "see what else is affected.",
        file=path,
    )


def _first_problem(record: object, path: str) -> str:
    """Return the first inconsistency of the record read from `path`, as text; empty if none."""
    number, check = number_in(path), _CHECKS.get(type(record))
    if type(record) in _NUMBERED:
        noun, field = _NUMBERED[type(record)]
        if (own := getattr(record, field)) != number:
            return f"it is of {noun} {own}"
    problems = check(record, -1 if number is None else number) if check else iter(())
    return next(problems, "")


def _other_format(version: int, path: str) -> CheckpointMismatchError:
    """Return the error that the file at `path` has a format number that cannot be read."""
    if version in RELEASES:
        remedy = (
            f"Godwit {' and '.join(RELEASES[version])} reads it: go on with that version, on the "
            "driver and on every executor."
        )
    elif version > FORMAT:
        remedy = (
            "A later version of Godwit wrote it: continue with that version, on the driver and on "
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
    """Return the problem of a file's header, length or checksums; empty for a valid file."""
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

    def inline_block(block: BlockRef) -> BlockRef:
        """Return a block's reference with its place in the commit record's file."""
        nonlocal end
        if block.file:
            return block
        placed_block = msgspec.structs.replace(block, file=path, offset=end)
        inline.append(block.data + bytes(padded(block.length) - block.length))
        end += padded(block.length)
        return placed_block

    written = _with_blocks(record, inline_block)
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
    numbers = map(number_in, storage.list(directory))
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
