"""Spark's own log of a query, as files of the checkpoint.

Spark writes ``offsets/<micro-batch>`` (its version, its settings, then a line for every place where
the plan reads a source), ``commits/<micro-batch>``, and ``sources/<number>/<entry>`` for sources
that keep a log of their own. Of these, entries are merged into ``<entry>.compact`` now and then:
Spark reads the last of those, and every entry behind it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = [
    "DEFAULT_INTERVAL",
    "SPARK",
    "entries_in",
    "files_read",
    "insist_on_no_query",
    "is_merged",
    "lacking_files",
    "log_offset",
    "offsets_in",
    "read_entry",
    "relined",
    "source_numbers",
]

SPARK: Final = "spark"
DEFAULT_INTERVAL: Final = 10
"""Spark merges the entries of a source's log at every so many, unless it is set otherwise."""

_HEAD: Final = 2
_MERGED: Final = ".compact"
_ENTRY: Final = re.compile(r"(\d{1,18})(\.compact)?")


def insist_on_no_query(storage: CheckpointStorage) -> None:
    """Refuse a directory that holds the progress of a Spark query, and no checkpoint of ours."""
    own = [entry.path for entry in storage.list("") if entry.path == "metadata"]
    own += [entry.path for entry in storage.list("offsets")]
    below = [e.path for of in ("", "/offsets") for e in storage.list(f"{SPARK}{of}")]
    if own or below:
        what = "is the checkpoint of a Spark query" if own else "holds one of a Spark query"
        raise CheckpointError(
            f"The directory {storage.uri!r} {what} (there is {(own or below)[0]!r}), and none of "
            "a flow.",
            remedy="Give the flow a directory of its own, as in checkpoint='checkpoints/flow'. "
            "State of a Spark query cannot be taken over: let the flow read its sources from the "
            "beginning, or from where their options say.",
            uri=storage.uri,
        )


def read_entry(storage: CheckpointStorage, path: str) -> bytes | None:
    """Read a file of Spark's log; ``None`` if it is missing."""
    try:
        found: bytes = storage.read(f"{SPARK}/{path}").to_pybytes()
    except CorruptCheckpointError:
        return None
    return found


def entries_in(storage: CheckpointStorage, directory: str) -> dict[int, str]:
    """Give number → path of the entries of one of Spark's logs; merged ones win."""
    found: dict[int, str] = {}
    for entry in storage.list(f"{SPARK}/{directory}"):
        match = _ENTRY.fullmatch(entry.path.rpartition("/")[2])
        if match is not None and (match[2] or int(match[1]) not in found):
            found[int(match[1])] = entry.path
    return found


def source_numbers(storage: CheckpointStorage, least: int = 0) -> Iterator[int]:
    """Numbers of sources: the first `least`, with a log or not, and others that have one."""
    number = 0
    while number < least or storage.list(f"{SPARK}/sources/{number}"):
        yield number
        number += 1


def offsets_in(entry: bytes) -> list[bytes]:
    """Lines of an entry of the offset log that are offsets: after its version and its settings."""
    return entry.splitlines()[_HEAD:]


def log_offset(line: bytes) -> int | None:
    """Read the number of an entry in the source's own log, if that is what an offset is (files)."""
    try:
        offset: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = offset.get("logOffset") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None


def relined(entry: bytes, old: Sequence[int], new: Sequence[int]) -> bytes | None:
    """Write an entry of the offset log for other lines.

    Returns ``None`` if the entry does not have the lines `old`, or lacks the offset of a source.
    """
    lines = offsets_in(entry)
    of_source = dict(zip(old, lines, strict=False))
    alike = all(of_source.get(number) == line for number, line in zip(old, lines, strict=False))
    if len(old) != len(lines) or not alike or not set(new) <= of_source.keys():
        return None
    if tuple(old) == tuple(new):
        return entry
    return b"\n".join([*entry.splitlines()[:_HEAD], *(of_source[number] for number in new)])


def files_read(names: Iterable[str], last: int, interval: int = DEFAULT_INTERVAL) -> list[str]:
    """Name the files of a source's log that Spark reads at a start, ascending by entries.

    `last`: the last entry that must be there; later ones are read as well.
    """
    names = frozenset(names)
    numbers = (int(n.removesuffix(_MERGED)) for n in names if _ENTRY.fullmatch(n))
    last = max(last, *numbers, -1)
    merged = [int(n.removesuffix(_MERGED)) for n in names if n.endswith(_MERGED)]
    first = max((n for n in merged if n <= last), default=0)
    there = [f"{n}{_MERGED}" if n in merged else f"{n}" for n in range(first, last + 1)]
    if names.issuperset(there):  # however often it is set to merge them
        return there
    into = [n for n in range(last + 1) if is_merged(n, merged, interval)]
    first = max(into, default=0)
    return [f"{n}{_MERGED}" if n in into else f"{n}" for n in range(first, last + 1)]


def lacking_files(
    storage: CheckpointStorage, entry: bytes, lines: Sequence[int], interval: int
) -> list[str]:
    """Name the files that are missing of the sources' logs that an entry of offsets counts on."""
    lacking = []
    for source, line in sorted(dict(zip(lines, offsets_in(entry), strict=False)).items()):
        end = log_offset(line)
        if end is not None:
            directory = f"sources/{source}"
            found = entries_in(storage, directory).values()
            names = frozenset(path.rpartition("/")[2] for path in found)
            lacking += [
                f"{directory}/{n}" for n in files_read(names, end, interval) if n not in names
            ]
    return lacking


def is_merged(entry: int, merged: Iterable[int], interval: int = DEFAULT_INTERVAL) -> bool:
    """Whether Spark merges all entries up to this one: it does at every so many."""
    latest = max(merged, default=None)
    return (entry + 1) % (interval if latest is None else _interval(latest, interval)) == 0


def _interval(latest: int, interval: int) -> int:
    """Derive the interval from the last merged entry, as Spark does."""
    if latest + 1 <= interval:
        return latest + 1
    if (latest + 1) // 2 > interval:
        return next(n for n in range(interval, latest + 2) if (latest + 1) % n == 0)
    return latest + 1
