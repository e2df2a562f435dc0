"""Variants of whole checkpoints: damaged, rearranged, and hostile with every checksum right.

A variant follows from its number alone.  What is changed inside records goes through the encoders
that Godwit writes with, so that the fuzzer follows the format.
"""

from __future__ import annotations

import os
import shutil
import zlib
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, cast

import msgspec
from tests.oracles.checkpoint_model import IDENTITY, make_history, run_epoch

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import Columns, FlowVersion, OperatorVersion, StateDescription
from godwit.checkpoint.framing import _HEADER, _frame_problem, digest_of, encode_record
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.records import ALIGNMENT, commit_path, number_in, padded
from godwit.checkpoint.storage import LocalStorage
from godwit.model import events
from godwit.ops.edits import drop_operator, rename_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["change_something", "record_in", "write_variant"]

Files = dict[str, bytes]

_NUMBERS = (-1, 0, 1, 63, 64, 2**16, 2**31 - 1, 2**31, 2**40, 10**12, 2**62, 2**63, 2**64 - 1)
_TEXTS = (
    "",
    "..",
    "../../outside.blk",
    "/etc/passwd",
    "blocks/../../outside.blk",
    "blocks/000000000000-a-ab.blk/../../../outside",
    "commits/999999999999.rec",
    "blocks/999999999999-a-ab.blk",
    "identity.rec",
    "a\x00b",
    "\x1b[2J\x07\u202e",
    "x" * 5_000,
)
_EVENTS = (
    events.QueryStarted(epoch=-1, at_s=1e9, name="\x1b[2Jflow", resumed=False),
    events.QueryFailed(epoch=3, at_s=1e9 + 1, name="flow", error="\x9b31m\u202eno"),
)
_STRAYS = (
    "commits/999999999999.rec",
    "commits/000000000099.rec",
    "manifests/999999999999.rec",
    "manifests/000000000000.rec",
    "manifests/000000000003.rec",
    "flows/999999999999.rec",
    "flows/000000000001.rec",
    "runs/999999999999.rec",
    "blocks/999999999999-a-ab.blk",
    "commits/000000000000.rec.abcdef.tmp",
    "lock",
    "leases/000000000000.rec",
    "edits/999999999999.rec",
    "journal/999999999999.rec",
)


@cache
def originals() -> list[Files]:
    """Whole checkpoints: with small and large blocks, waiting rows, snapshots and manifests."""
    state = StateDescription(
        columns=(("value", "int64"),), codec="arrow", type={"value": {"state": ["value"]}}
    )
    operators = {
        name: OperatorVersion(kind="compute", keys=(("hash", "string"),), states={"state": state})
        for name in ("books", "totals")
    }
    sinks: dict[str, Columns] = {"sink": (("key", "string"),)}
    found = []
    for seed, inline in ((1, 0), (2, 2_500), (3, 100_000)):
        root = Path(mkdtemp(prefix="godwit-fuzz-"))
        log: CommitLog | None = None
        history = make_history(seed, 6)
        for epoch in history:
            flow = FlowVersion(operators=operators, sinks=sinks) if log is None else None
            storage = LocalStorage(root)
            log = CommitLog.create_or_open(
                storage, IDENTITY, "run", flow=flow, retain_epochs=3, manifest_interval=2
            )
            run_epoch(log, epoch, inline_limit_bytes=inline)
        assert log is not None
        rename_operator(log, "books", "renamed")
        drop_operator(log, "totals", reset=True)
        journal = JournalWriter(LocalStorage(root), "run")
        for event in _EVENTS:
            journal.add("event", event.to_dict())
            journal.flush()
        found.append({str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.*"))})
        shutil.rmtree(root)
    return found


def write_variant(number: int, root: Path) -> None:
    """Write variant `number` into the directory `root`, which must be empty or not there."""
    random = Random(number)
    files = dict(random.choice(originals()))
    change_something(files, random)
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    if random.random() < 0.05:
        _replace_by_no_file(root, random.choice(sorted(files)), random)


def change_something(files: Files, random: Random) -> None:
    """Change the files of a checkpoint, path → content."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_MUTATIONS)(files, random)
    if random.random() < 0.8:
        chain_again(files)


def chain_again(files: Files) -> None:
    """Let records name their predecessors as they are now, as whoever forges a history would."""
    for path in sorted(path for path in files if path.startswith("commits/")):
        number = number_in(path)
        before = None if number is None else files.get(commit_path(number - 1))

        def link(said: dict[str, Any], before: bytes | None = before) -> None:
            if said.get("history"):
                said["previous"] = "" if before is None else digest_of(before)
                for name in ("flow", "plan"):
                    named = files.get(f"{name}s/{said.get(name)!s:0>12}.rec")
                    said[f"{name}_digest"] = "" if named is None else digest_of(named)

        _rewrite(files, path, link)
    for path in sorted(path for path in files if path.startswith("manifests/")):
        record = files.get(path.replace("manifests/", "commits/"))

        def name(said: dict[str, Any], record: bytes | None = record) -> None:
            said["record"] = "" if record is None else digest_of(record)

        _rewrite(files, path, name)


def _rewrite(files: Files, path: str, change: Callable[[dict[str, Any]], None]) -> None:
    opened = record_in(files[path])
    if opened is None or not isinstance(opened[1], dict) or not is_whole(files[path]):
        return
    blocks, said = opened
    change(said)
    files[path] = encode_record(cast("Any", said), blocks)


def is_whole(content: bytes) -> bool:
    """True if a record's file passes its checksums."""
    return not _frame_problem(memoryview(content))


def _replace_by_no_file(root: Path, path: str, random: Random) -> None:
    """Put a link, a pipe or a directory where a file was."""
    full = root / path
    full.unlink()
    kind = random.randrange(4)
    if kind == 0:
        full.symlink_to("/dev/zero")
    elif kind == 1:
        os.mkfifo(full)
    elif kind == 2:
        full.mkdir()
    else:
        full.symlink_to(root.parent / "outside")


# -- whole files and bytes ------------------------------------------------------------------------


def _flip(files: Files, random: Random) -> None:
    path = random.choice(sorted(files))
    content = bytearray(files[path])
    for _ in range(random.choice((1, 1, 8))):
        if content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    files[path] = bytes(content)


def _resize(files: Files, random: Random) -> None:
    path = random.choice(sorted(files))
    content = files[path]
    cut = random.randrange(len(content) + 1)
    files[path] = random.choice((b"", content[:cut], content + bytes(cut), content[cut:]))


def _remove(files: Files, random: Random) -> None:
    del files[random.choice(sorted(files))]
    if not files:
        files["identity.rec"] = b""


def _misplace(files: Files, random: Random) -> None:
    source, other = random.choice(sorted(files)), random.choice(sorted(files))
    target = random.choice((other, random.choice(_STRAYS)))
    files[target] = files[source]


def _swap(files: Files, random: Random) -> None:
    one, other = random.choice(sorted(files)), random.choice(sorted(files))
    files[one], files[other] = files[other], files[one]


# -- what records say -----------------------------------------------------------------------------


def _records(files: Files) -> list[str]:
    return [path for path in sorted(files) if path.endswith(".rec")]


def record_in(content: bytes) -> tuple[bytes, Any] | None:
    """Give the blocks in a record's file and what the record says, as plain values."""
    if len(content) < ALIGNMENT:
        return None
    _, start, length, _, _ = _HEADER.unpack_from(content)
    try:
        said = msgspec.msgpack.decode(content[start : start + length])
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        return None
    return content[ALIGNMENT:start], said


def _closed(blocks: bytes, value: Any) -> bytes:
    return encode_record(value, blocks)


def _say(files: Files, random: Random, change: Callable[[Any, Random], Any]) -> None:
    """Change what a record says, and give it the checksum of what it says now."""
    names = _records(files)
    if not names:
        return
    path = random.choice(names)
    opened = record_in(files[path])
    if opened is not None:
        files[path] = _closed(opened[0], change(opened[1], random))


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within plain values."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from _nodes(item)


def _hostile(random: Random, instead_of: Any) -> Any:
    if isinstance(instead_of, int) and random.random() < 0.7:
        near = instead_of + random.choice((-1, 1, 64, -64))
        return random.choice((*_NUMBERS, *(n for n in (near, -near) if -(2**63) <= n < 2**64)))
    if isinstance(instead_of, str) and random.random() < 0.7:
        return random.choice(_TEXTS)
    if isinstance(instead_of, list) and random.random() < 0.5:
        return random.choice(([], instead_of * 2, instead_of[::-1], instead_of[:-1]))
    if random.random() < 0.1:
        return msgspec.Raw(b"\x91" * random.choice((10, 70, 900, 200_000)) + b"\x01")
    return random.choice((None, True, 1.5, b"\xff", [], {}, "text", 7, [[1]], {"a": 1}))


def _replace_value(value: Any, random: Random) -> Any:
    nodes = list(_nodes(value)) if isinstance(value, dict | list) else []
    if not nodes:
        return _hostile(random, value)
    container, key = random.choice(nodes)
    container[key] = _hostile(random, container[key])
    return value


def _drop_value(value: Any, random: Random) -> Any:
    nodes = list(_nodes(value)) if isinstance(value, dict | list) else []
    if nodes:
        container, key = random.choice(nodes)
        del container[key]
    return value


def _copy_value(value: Any, random: Random) -> Any:
    """Put one part of a record in the place of another."""
    nodes = list(_nodes(value)) if isinstance(value, dict | list) else []
    if nodes:
        source, source_key = random.choice(nodes)
        container, key = random.choice(nodes)
        container[key] = msgspec.Raw(msgspec.msgpack.encode(source[source_key]))
    return value


def _say_hostile(files: Files, random: Random) -> None:
    _say(files, random, _replace_value)


def _say_less(files: Files, random: Random) -> None:
    _say(files, random, _drop_value)


def _say_elsewhere(files: Files, random: Random) -> None:
    _say(files, random, _copy_value)


def _stray_that_fits(files: Files, random: Random) -> None:
    """Put a record under another number, and let it say that number."""
    commits = [path for path in _records(files) if path.startswith(("commits/", "manifests/"))]
    if not commits:
        return
    source = random.choice(commits)
    opened = record_in(files[source])
    if opened is None or not isinstance(opened[1], dict):
        return
    number = random.choice((3, 7, 99, 10**12 - 1))
    opened[1]["epoch"] = number
    if random.random() < 0.5:
        opened[1]["retained_from"] = random.choice((0, 1, number))
    files[f"{source.partition('/')[0]}/{number:012d}.rec"] = _closed(*opened)


# -- what blocks hold -----------------------------------------------------------------------------


def _references(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"file", "offset", "length", "checksum"} <= value.keys():
            yield value
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _spoil_block(files: Files, random: Random) -> None:
    """Change a block's bytes, and the checksum in every record that names it."""
    opened = {path: found for path in _records(files) if (found := record_in(files[path]))}
    refs = [ref for _, value in opened.values() for ref in _references(value)]
    refs = [ref for ref in refs if isinstance(ref["file"], str) and ref["file"] in files]
    if not refs:
        return
    chosen = random.choice(refs)
    file, offset, length = chosen["file"], chosen["offset"], chosen["length"]
    if not (isinstance(offset, int) and isinstance(length, int) and length > 8):
        return
    content = bytearray(files[file])
    end = offset + padded(length)
    if not 0 <= offset < end <= len(content):
        return
    for _ in range(random.choice((1, 1, 2, 4))):
        _spoil(content, offset, length, random)
    checksum = zlib.crc32(content[offset:end])
    files[file] = bytes(content)
    for path, (_, value) in opened.items():
        named = [r for r in _references(value) if (r["file"], r["offset"]) == (file, offset)]
        for ref in named:
            ref["checksum"] = checksum
        if named or path == file:
            _, start, _, _, _ = _HEADER.unpack_from(files[path])
            files[path] = _closed(files[path][ALIGNMENT:start], value)


def _spoil(content: bytearray, offset: int, length: int, random: Random) -> None:
    at = offset + random.randrange(length)
    kind = random.randrange(4)
    if kind == 0:
        content[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        content[at] = random.choice((0, 1, 127, 128, 255))
    else:
        width = 4 * (kind - 1)
        at -= at % width
        if at + width <= offset + length:
            most = 2 ** (8 * width - 1)
            number = random.choice((0, -1, most - 1, -most, most // 2, 2**20, length, 7))
            content[at : at + width] = number.to_bytes(width, "little", signed=True)


_MUTATIONS: tuple[Callable[[Files, Random], None], ...] = (
    _flip,
    _resize,
    _remove,
    _misplace,
    _swap,
    _say_hostile,
    _say_hostile,
    _say_hostile,
    _say_hostile,
    _say_less,
    _say_elsewhere,
    _stray_that_fits,
    _spoil_block,
    _spoil_block,
    _spoil_block,
)
