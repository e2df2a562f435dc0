"""Which lines of Spark's offset log are of which source.

Problem: Spark's offset log has a line for every place where the plan reads a source, without a
name, and a start takes them by their order. A flow reads a source once for each of the ways that it
is mapped, so operators that come and go would leave Spark with too many lines, or give a source
another's offsets.

The invariant: the checkpoint says of every line which of Spark's numbered sources (``sources/<n>``)
it is of, and of every number what it reads. A start whose plan has other lines writes the entries
that Spark is going to read anew, before Spark does; a number that would read something else is
refused. Both the new layout and the new entries are in one file before the first entry is written,
so the next start finishes what this one does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.ownership import load_record
from godwit.checkpoint.spark_log import (
    DEFAULT_INTERVAL,
    SPARK,
    entries_in,
    lacking_files,
    offsets_in,
    read_entry,
    relined,
    source_numbers,
)
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = [
    "OFFSETS",
    "OffsetLayout",
    "Reading",
    "forget_sparks_progress",
    "keep_offsets",
    "lines_of",
    "load_layout",
    "take_up_layout",
    "write_entry",
]

OFFSETS: Final = "offsets.rec"
_READ_AT_START = 2


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One stream that a source of the flow reads."""

    source: str  # name of the flow's source
    index: int = 0  # which of the streams in its DataFrame it is, from left to right
    # What it reads: ``format``, and options that say which data it is. Empty if not known.
    reads: dict[str, str] = msgspec.field(default_factory=dict)


class OffsetLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Whose the lines of Spark's offset log are."""

    # By Spark's number of a source: what reads it. Several where sources of the flow share one
    # DataFrame.
    readings: tuple[tuple[Reading, ...], ...]
    lines: tuple[int, ...]  # the number of the source that each line is of
    interval: int = DEFAULT_INTERVAL  # how many entries of a source's log Spark is set to merge
    # number of a micro-batch → entry that is to be written before Spark reads the log
    pending: dict[int, bytes] = msgspec.field(default_factory=dict)


def load_layout(storage: CheckpointStorage) -> OffsetLayout | None:
    """Read the layout; ``None`` in a checkpoint that was written before there was one."""
    if all(entry.path != OFFSETS for entry in storage.list("")):
        return None
    return load_record(storage, OFFSETS, OffsetLayout)


def take_up_layout(storage: CheckpointStorage, given: OffsetLayout, *, committed: bool) -> None:
    """Let Spark's log be that of the plan which is going to run."""
    stored = load_layout(storage)
    found = [] if stored is None else list(_differences(stored, given))
    if not committed and (stored is None or found):
        # Offsets of a start that committed nothing, for sources that this flow may not have.
        forget_sparks_progress(storage)
        stored, found = None, []
    if found:
        raise CheckpointMismatchError(
            f"The checkpoint {storage.uri!r} does not fit this flow: {'; '.join(found)}. How far a "
            "source was read means nothing of other data: rows would be left out or come twice.",
            remedy="Give the sources the DataFrames that they had; other data needs a flow and a "
            "checkpoint of its own. If it is the same data under another name, and what was read "
            "of it counts there as well, say so: godwit checkpoint keep-offsets PATH SOURCE.",
            uri=storage.uri,
            differences=found,
        )
    wanted, changed = _entries(storage, stored, given)
    lacking = [
        path
        for at in list(wanted)[-1:]
        for path in lacking_files(storage, wanted[at], given.lines, given.interval)
    ]
    if lacking:
        raise CorruptCheckpointError(
            f"Spark's log in the checkpoint {storage.uri!r} counts on what its sources noted in "
            f"{', '.join(lacking)}, which is missing: rows would be left out, or read twice.",
            remedy="Restore them from a copy, or let `godwit checkpoint repair` put back what the "
            "commit records carry of them.",
            uri=storage.uri,
            file=f"{SPARK}/{lacking[0]}",
        )
    if changed:
        _write(storage, msgspec.structs.replace(given, pending=wanted))
        for number, entry in wanted.items():
            write_entry(storage, f"{SPARK}/offsets/{number}", entry)
    if changed or stored != given:
        _write(storage, given)


def _entries(
    storage: CheckpointStorage, stored: OffsetLayout | None, given: OffsetLayout
) -> tuple[dict[int, bytes], bool]:
    """Entries that Spark reads at a start as they must be, and whether one of them is not yet."""
    wanted: dict[int, bytes] = {}
    changed = False
    pending = {} if stored is None else stored.pending
    numbers = sorted({*entries_in(storage, "offsets"), *pending})
    for number in numbers[-_READ_AT_START:]:
        there = read_entry(storage, f"offsets/{number}")
        entry = pending.get(number, there)
        if entry is None:
            continue
        lines = lines_of(entry, given) if stored is None else stored.lines
        made = None if lines is None else relined(entry, lines, given.lines)
        if made is None:
            found = f"Spark's entry offsets/{number} has {len(offsets_in(entry))} offsets"
            raise CheckpointMismatchError(
                f"Spark's log in the checkpoint {storage.uri!r} does not fit this flow: {found}, "
                "and nothing says whose they are.",
                remedy="Start the flow with the maps and operators that it ran with last, once; "
                "they may change afterwards. If its log was damaged, `godwit checkpoint repair` "
                "says what can be put back.",
                uri=storage.uri,
                differences=[found],
            )
        wanted[number] = made
        changed |= made != there
    return wanted, changed


def lines_of(entry: bytes, given: OffsetLayout) -> tuple[int, ...] | None:
    """Say whose lines those of an entry are that was written before layouts were.

    Lines of one source are alike and lie side by side, in the order of the sources' names.

    Returns ``None`` if that cannot be told.
    """
    lines = offsets_in(entry)
    if len(lines) == len(given.lines) and relined(entry, given.lines, given.lines) is not None:
        return given.lines
    runs = [number for number, line in enumerate(lines) if not number or lines[number - 1] != line]
    if len(runs) != len(given.readings):
        return None
    starts = [*runs, len(lines)]
    return tuple(n for n in range(len(runs)) for _ in range(starts[n], starts[n + 1]))


def _differences(stored: OffsetLayout, given: OffsetLayout) -> Iterator[str]:
    """Say which sources would go on from the offsets of something else."""
    names = _sources(given)
    if len(names) == len(_sources(stored)) == 1:  # it may have been renamed
        (name,) = names
        stored = _renamed(stored, name)
    before = {(r.source, r.index): (n, r) for n, of in enumerate(stored.readings) for r in of}
    now = {(r.source, r.index): (n, r) for n, of in enumerate(given.readings) for r in of}
    for name in sorted({source for source, _ in before | now}):
        counts = [sum(source == name for source, _ in of) for of in (before, now)]
        if counts[0] != counts[1]:
            yield f"source {name!r} read {counts[0]} streams and reads {counts[1]}"
            continue
        for key in sorted(key for key in now if key[0] == name):
            (old, was), (new, is_) = before[key], now[key]
            if was.reads and is_.reads and was.reads != is_.reads:
                yield f"source {name!r} read {_text(was)} and reads {_text(is_)}"
            elif old != new:
                yield (
                    f"what source {name!r} reads was Spark's source {old} and would be {new}: "
                    "sources share their DataFrames in another way"
                )


def _text(reading: Reading) -> str:
    named = (f"{name} {value!r}" for name, value in reading.reads.items() if name != "format")
    return " of ".join(filter(None, [reading.reads.get("format", ""), ", ".join(named)]))


def _sources(layout: OffsetLayout) -> set[str]:
    return {reading.source for of in layout.readings for reading in of}


def _renamed(layout: OffsetLayout, name: str) -> OffsetLayout:
    readings = tuple(
        tuple(msgspec.structs.replace(reading, source=name) for reading in of)
        for of in layout.readings
    )
    return msgspec.structs.replace(layout, readings=readings)


def keep_offsets(storage: CheckpointStorage, source: str) -> None:
    """Let a source read other data from the offsets up to which it was read."""
    layout = load_layout(storage)
    names = sorted(set() if layout is None else _sources(layout))
    if layout is None or source not in names:
        raise CheckpointMismatchError(
            f"The checkpoint {storage.uri!r} knows no source {source!r}.",
            remedy=f"Its sources are {', '.join(names)}."
            if names
            else "It was written before what sources read was kept: just start the flow.",
            uri=storage.uri,
        )
    readings = tuple(
        tuple(msgspec.structs.replace(r, reads={}) if r.source == source else r for r in of)
        for of in layout.readings
    )
    _write(storage, msgspec.structs.replace(layout, readings=readings))


def forget_sparks_progress(storage: CheckpointStorage) -> None:
    """Delete Spark's part of a checkpoint without an epoch, whose sources are others now."""
    layout = load_layout(storage)
    least = 0 if layout is None else len(layout.readings)
    directories = [f"{SPARK}/offsets", f"{SPARK}/commits"]
    directories += [f"{SPARK}/sources/{number}" for number in source_numbers(storage, least)]
    # The id of the query last: until it is gone, the rest can be told to be of one piece.
    for directory in (*directories, SPARK):
        for entry in storage.list(directory):
            storage.delete(entry.path)


def write_entry(storage: CheckpointStorage, path: str, entry: bytes) -> None:
    """Replace a file of Spark's log."""
    # Hadoop keeps a checksum beside a local file; it is not that of what is written here.
    folder, _, name = path.rpartition("/")
    storage.delete(f"{folder}/.{name}.crc")
    storage.write_atomic(path, entry)


def _write(storage: CheckpointStorage, layout: OffsetLayout) -> None:
    storage.write_atomic(OFFSETS, encode_record(layout))
