"""How a record becomes the bytes of a file, and how a damaged file is noticed.

Layout: a header (magic and format, where the body begins and how long it is, a checksum of
everything behind the header, a checksum of the header), padding to 64 bytes, blocks that travel in
the file, each padded to 64 bytes, and the body as msgpack.  Every byte is under a checksum.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import TypeVar

import msgspec

from godwit.checkpoint.paths import ALIGNMENT, FORMAT, READABLE_FORMATS, commit_path, padded
from godwit.checkpoint.record_checks import record_problems
from godwit.checkpoint.records import BlockRef, CommitRecord, OutputRef, SegmentRef, SnapshotRef
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError

__all__ = ["decode_record", "digest_of", "encode_commit", "encode_record", "without_bytes"]

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
    """Frame a record; `blocks` begin at byte `ALIGNMENT` of the result and the record follows."""
    body = _ENCODER.encode(value)
    rest = bytes(ALIGNMENT - _HEADER.size) + blocks + body
    head = _HEADER.pack(_MAGIC, ALIGNMENT + len(blocks), len(body), zlib.crc32(rest), 0)
    head = head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))
    return head + rest


def digest_of(data: bytes | memoryview) -> str:
    """Digest of a record's file, with which the next record names it."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def decode_record(data: bytes | memoryview, kind: type[_T], *, path: str) -> _T:
    """Undo `encode_record`."""
    view = memoryview(data)
    problem = _frame_problem(view)
    if not problem:
        magic, start, length, _, _ = _HEADER.unpack_from(view)
        if magic[:7] != _NAME or magic[7] not in READABLE_FORMATS:
            raise _other_format(magic[7], path)
        try:
            record = msgspec.msgpack.decode(view[start : start + length], type=kind)
        except _UNDECODABLE as error:
            problem = f"it does not hold a {kind.__name__} ({error})"
        else:
            problem = next(record_problems(record, path), "")
            if not problem:
                return record
    raise CorruptCheckpointError(
        f"The file {path!r} of the checkpoint is damaged: {problem}.",
        remedy="Restore this file from a copy of the checkpoint; run a verification to see what "
        "else is affected.",
        file=path,
    )


def _other_format(found: int, path: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"The file {path!r} has format {found} of a checkpoint, and this version of Godwit reads "
        f"formats {' and '.join(map(str, sorted(READABLE_FORMATS)))}.",
        remedy="Start with a new checkpoint, and let the sources deliver their rows again; or go "
        "on with the version of Godwit that wrote this one.",
        file=path,
        format=found,
    )


def _frame_problem(view: memoryview) -> str:
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
    """Frame a commit record with the blocks that travel in it.

    Returns bytes: the file's content; CommitRecord: the same record, in which every block has a
    file; blocks that travelled inline keep their bytes in memory beside their new address.
    """
    path = commit_path(record.epoch)
    inline: list[bytes] = []
    end = ALIGNMENT

    def settle(block: BlockRef) -> BlockRef:
        nonlocal end
        if block.file:
            return block
        settled = msgspec.structs.replace(block, file=path, offset=end)
        inline.append(block.data + bytes(padded(block.length) - block.length))
        end += padded(block.length)
        return settled

    settled = msgspec.structs.replace(
        record,
        segments=tuple(with_block(ref, settle(ref.block)) for ref in record.segments),
        snapshots=tuple(with_block(ref, settle(ref.block)) for ref in record.snapshots),
        outputs=tuple(with_block(ref, settle(ref.block)) for ref in record.outputs),
    )
    return encode_record(without_inline_bytes(settled), b"".join(inline)), settled


_Ref = TypeVar("_Ref", SegmentRef, SnapshotRef, OutputRef)


def with_block(ref: _Ref, block: BlockRef) -> _Ref:
    """`ref` with another block; `ref` itself if it is the same."""
    return ref if block is ref.block else msgspec.structs.replace(ref, block=block)


def without_bytes(ref: _Ref) -> _Ref:
    """`ref` without the bytes that travel with it; its block must have a file."""
    if not ref.block.data:
        return ref
    return with_block(ref, msgspec.structs.replace(ref.block, data=b""))


def without_inline_bytes(record: CommitRecord) -> CommitRecord:
    """`record` without the bytes that travel with its references."""
    return msgspec.structs.replace(
        record,
        segments=tuple(without_bytes(ref) for ref in record.segments),
        snapshots=tuple(without_bytes(ref) for ref in record.snapshots),
        outputs=tuple(without_bytes(ref) for ref in record.outputs),
    )
