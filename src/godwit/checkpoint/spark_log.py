"""Spark's own logs of a query, as files of the checkpoint.

Spark writes ``offsets/<micro-batch>`` (its version, its settings, then a line for every place where
the plan reads a source, without a name), ``commits/<micro-batch>``, and
``sources/<number>/<entry>`` for sources that keep a log of their own. Of these, Spark periodically
merges entries into ``<entry>.compact``, and reads the last of those and every later entry.

A start assigns the lines by their order. A flow reads a source once for each distinct sequence of
maps, so added or removed operators would leave Spark with too many lines, or give a source the
offsets of another one.

Invariant: the checkpoint has the number of Spark's source (``sources/<n>``) of every line, and the
data read by every number. A start whose plan has other lines rewrites the entries that Spark will
read, before Spark reads them; a number with other data is refused. The new layout and the new
entries are in one file before the first entry is written, so the next start finishes an interrupted
one.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.checkpoint.evolution import flow_mismatch
from godwit.checkpoint.framing import encode_record, load_record
from godwit.model.errors import CheckpointError, CheckpointMismatchError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from godwit.checkpoint.storage import CheckpointStorage

SPARK: Final = "spark"
DEFAULT_INTERVAL: Final = 10
"""Spark's default interval, in entries, for merging a source's log."""

_HEAD: Final = 2
_MERGED: Final = ".compact"
_ENTRY: Final = re.compile(r"(\d{1,18})(\.compact)?")


def check_no_spark_query(storage: CheckpointStorage) -> None:
    """Refuse a directory that is the checkpoint of a plain Spark query."""
    own = [path for path in storage.list("") if path == "metadata"]
    own += storage.list("offsets")
    below = [path for name in ("", "/offsets") for path in storage.list(f"{SPARK}{name}")]
    if own or below:
        relation = "is" if own else "contains"
        raise CheckpointError(
            f"The directory {storage.uri!r} {relation} the checkpoint of a Spark query (there is "
            f"{(own or below)[0]!r}), not of a flow.",
            remedy="Give the flow a directory of its own, as in checkpoint='checkpoints/flow'. "
            "To continue with the state of the Spark query, name its directory by "
            "gw.write_stream(df).from_spark_checkpoint(...) (guide 'Your job as it is', section "
            "'With the state it has').",
            uri=storage.uri,
        )


def read_entry(storage: CheckpointStorage, path: str) -> bytes | None:
    """Read a file of Spark's log, by its path below ``spark/``; ``None`` if it is missing."""
    try:
        entry: bytes = storage.read(f"{SPARK}/{path}").to_pybytes()
    except CorruptCheckpointError:
        return None
    return entry


def entries_in(storage: CheckpointStorage, directory: str) -> dict[int, str]:
    """Return number → path of the entries in a directory of Spark's log.

    Of an entry that is there twice, the compacted file is returned.
    """
    entries: dict[int, str] = {}
    for path in storage.list(f"{SPARK}/{directory}"):
        match = _ENTRY.fullmatch(path.rpartition("/")[2])
        if match is not None and (match[2] or int(match[1]) not in entries):
            entries[int(match[1])] = path
    return entries


def source_numbers(storage: CheckpointStorage, minimum: int = 0) -> Iterator[int]:
    """Yield the numbers of sources in Spark's logs: 0 to `minimum` - 1, then others with a log."""
    number = 0
    while number < minimum or storage.list(f"{SPARK}/sources/{number}"):
        yield number
        number += 1


def offsets_in(entry: bytes) -> list[bytes]:
    """Return the offsets, one JSON line per source, of an entry of Spark's offset log."""
    return entry.splitlines()[_HEAD:]


def log_offset(line: bytes) -> int | None:
    """Return the entry number of a file source's log in an offset; ``None`` for other sources.

    `line`: the offset as JSON.
    """
    try:
        offset: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = offset.get("logOffset") if isinstance(offset, dict) else None
    return number if isinstance(number, int) else None


def reorder_offsets(entry: bytes, old: Sequence[int], new: Sequence[int]) -> bytes | None:
    """Return an entry of Spark's offset log with its lines for sources `old` reordered for `new`.

    Returns ``None`` if the entry does not have the lines `old`, or lacks the offset of a source.
    """
    lines = offsets_in(entry)
    line_of_source = dict(zip(old, lines, strict=False))
    is_consistent = all(
        line_of_source.get(number) == line for number, line in zip(old, lines, strict=False)
    )
    if len(old) != len(lines) or not is_consistent or not set(new) <= line_of_source.keys():
        return None
    if tuple(old) == tuple(new):
        return entry
    return b"\n".join([*entry.splitlines()[:_HEAD], *(line_of_source[number] for number in new)])


def files_read(names: Iterable[str], last: int, interval: int = DEFAULT_INTERVAL) -> list[str]:
    """Return the names of a source log's files that Spark reads at a start, ascending by entries.

    `last`: the last entry that must be there; later ones are read as well. Spark merges entries
    into one file every `interval`.
    """
    names = frozenset(names)
    numbers = (int(number.removesuffix(_MERGED)) for number in names if _ENTRY.fullmatch(number))
    last = max(last, *numbers, -1)
    merged = [int(number.removesuffix(_MERGED)) for number in names if number.endswith(_MERGED)]
    first = max((number for number in merged if number <= last), default=0)
    expected_names = [
        f"{number}{_MERGED}" if number in merged else f"{number}"
        for number in range(first, last + 1)
    ]
    if names.issuperset(expected_names):  # for any interval of merges
        return expected_names
    merged_numbers = [number for number in range(last + 1) if is_merged(number, merged, interval)]
    first = max(merged_numbers, default=0)
    return [
        f"{number}{_MERGED}" if number in merged_numbers else f"{number}"
        for number in range(first, last + 1)
    ]


def lacking_files(
    storage: CheckpointStorage, entry: bytes, lines: Sequence[int], interval: int
) -> list[str]:
    """Return the missing files of source logs that an entry of the offset log needs.

    `lines`: Spark's number of the source of each offset. `interval`: Spark compacts a source's log
    after this number of entries.
    """
    lacking = []
    for source, line in sorted(dict(zip(lines, offsets_in(entry), strict=False)).items()):
        end = log_offset(line)
        if end is not None:
            directory = f"sources/{source}"
            entries = entries_in(storage, directory).values()
            names = frozenset(path.rpartition("/")[2] for path in entries)
            lacking += [
                f"{directory}/{n}" for n in files_read(names, end, interval) if n not in names
            ]
    return lacking


def is_merged(entry: int, merged: Iterable[int], interval: int = DEFAULT_INTERVAL) -> bool:
    """Return true if Spark compacts a source's log at `entry`; `merged`: its compacted entries."""
    latest = max(merged, default=None)
    return (entry + 1) % (
        interval if latest is None else _compaction_interval(latest, interval)
    ) == 0


def _compaction_interval(last_compacted: int, interval: int) -> int:
    """Return the compaction interval that Spark uses: `interval`, fitted to `last_compacted`."""
    if last_compacted + 1 <= interval:
        return last_compacted + 1
    if (last_compacted + 1) // 2 > interval:
        return next(n for n in range(interval, last_compacted + 2) if (last_compacted + 1) % n == 0)
    return last_compacted + 1


OFFSETS: Final = "offsets.rec"
_READ_AT_START = 2


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One stream that a source of the flow reads."""

    source: str  # name of the flow's source
    index: int = 0  # which of the streams in its DataFrame it is, from left to right
    # its data: ``format``, and options that identify the data; empty if unknown
    reads: dict[str, str] = msgspec.field(default_factory=dict)


class OffsetLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of the lines of Spark's offset log."""

    # by Spark's number of a source: its readers; several if sources of the flow share one
    # DataFrame.
    readings: tuple[tuple[Reading, ...], ...]
    lines: tuple[int, ...]  # the number of the source that each line is of
    interval: int = DEFAULT_INTERVAL  # how many entries of a source's log Spark is set to merge
    # number of a micro-batch → entry that is to be written before Spark reads the log
    pending: dict[int, bytes] = msgspec.field(default_factory=dict)


def load_layout(storage: CheckpointStorage) -> OffsetLayout | None:
    """Read which source each line of Spark's offset log is of; ``None`` in older checkpoints."""
    if OFFSETS not in storage.list(""):
        return None
    return load_record(storage, OFFSETS, OffsetLayout)


def update_layout(storage: CheckpointStorage, layout: OffsetLayout, *, committed: bool) -> None:
    """Reorder the lines of Spark's offset log to match the sources of the plan about to run.

    `committed`: the checkpoint has an epoch, so its offsets must be kept.
    """
    stored = load_layout(storage)
    problems = [] if stored is None else list(_changed_sources(stored, layout))
    if not committed and (stored is None or problems):
        # Offsets of a start that committed nothing, for sources that this flow may not have.
        forget_sparks_progress(storage)
        stored, problems = None, []
    if problems:
        raise flow_mismatch(
            storage.uri,
            problems,
            "The stored offsets are not valid for other data: rows would be lost, or read twice.",
            remedy="Give the sources the DataFrames that they had; other data needs a flow and a "
            "checkpoint of its own. If it is the same data under another name, and its offsets "
            "are valid there too, declare so: godwit checkpoint keep-offsets PATH SOURCE.",
        )
    entries, changed = _rewritten_entries(storage, stored, layout)
    missing_paths = [
        path
        for number in list(entries)[-1:]
        for path in lacking_files(storage, entries[number], layout.lines, layout.interval)
    ]
    if missing_paths:
        raise CorruptCheckpointError(
            f"Spark's log in the checkpoint {storage.uri!r} needs {', '.join(missing_paths)} of "
            "its "
            "sources' logs, which are missing: rows would be lost, or read twice.",
            remedy="Restore them from a copy, or let `godwit checkpoint repair` put back what the "
            "commit records carry of them.",
            uri=storage.uri,
            file=f"{SPARK}/{missing_paths[0]}",
        )
    if changed:
        _write_layout(storage, msgspec.structs.replace(layout, pending=entries))
        for number, entry in entries.items():
            write_entry(storage, f"{SPARK}/offsets/{number}", entry)
    if changed or stored != layout:
        _write_layout(storage, layout)


def _rewritten_entries(
    storage: CheckpointStorage, stored: OffsetLayout | None, layout: OffsetLayout
) -> tuple[dict[int, bytes], bool]:
    """Return number → entry of Spark's last micro-batches, with offsets in the order of `layout`.

    Also returns true if one differs from the log. Raises if an offset's source is not known.
    """
    entries: dict[int, bytes] = {}
    changed = False
    pending = {} if stored is None else stored.pending
    numbers = sorted({*entries_in(storage, "offsets"), *pending})
    for number in numbers[-_READ_AT_START:]:
        stored_entry = read_entry(storage, f"offsets/{number}")
        entry = pending.get(number, stored_entry)
        if entry is None:
            continue
        lines = lines_of(entry, layout) if stored is None else stored.lines
        converted = None if lines is None else reorder_offsets(entry, lines, layout.lines)
        if converted is None:
            problem = f"Spark's entry offsets/{number} has {len(offsets_in(entry))} offsets"
            raise CheckpointMismatchError(
                f"Spark's log in the checkpoint {storage.uri!r} does not fit this flow: {problem}, "
                "and their sources are not known.",
                remedy="Start the flow with the maps and operators that it ran with last, once; "
                "they may change afterwards. If its log was damaged, `godwit checkpoint repair` "
                "lists the files that can be restored.",
                uri=storage.uri,
                differences=[problem],
            )
        entries[number] = converted
        changed |= converted != stored_entry
    return entries, changed


def lines_of(entry: bytes, layout: OffsetLayout) -> tuple[int, ...] | None:
    """Infer the number of Spark's source for each offset of an entry stored without a layout.

    Lines of one source are alike and lie side by side, in the order of the sources' names. Returns
    ``None`` if that is ambiguous.
    """
    lines = offsets_in(entry)
    if (
        len(lines) == len(layout.lines)
        and reorder_offsets(entry, layout.lines, layout.lines) is not None
    ):
        return layout.lines
    runs = [number for number, line in enumerate(lines) if not number or lines[number - 1] != line]
    if len(runs) != len(layout.readings):
        return None
    starts = [*runs, len(lines)]
    return tuple(n for n in range(len(runs)) for _ in range(starts[n], starts[n + 1]))


def _changed_sources(stored: OffsetLayout, today: OffsetLayout) -> Iterator[str]:
    """Yield, as text, the sources that no longer read the data of their stored offsets."""
    names = _source_names(today)
    if len(names) == len(_source_names(stored)) == 1:  # it may have been renamed
        (name,) = names
        stored = _with_single_source_named(stored, name)
    stored_readings = {
        (reading_.source, reading_.index): (number, reading_)
        for number, readings_ in enumerate(stored.readings)
        for reading_ in readings_
    }
    todays_readings = {
        (reading_.source, reading_.index): (number, reading_)
        for number, readings_ in enumerate(today.readings)
        for reading_ in readings_
    }
    for name in sorted({source for source, _ in stored_readings | todays_readings}):
        counts = [
            sum(source == name for source, _ in readings)
            for readings in (stored_readings, todays_readings)
        ]
        if counts[0] != counts[1]:
            yield f"source {name!r} read {counts[0]} streams and reads {counts[1]}"
            continue
        for key in sorted(key for key in todays_readings if key[0] == name):
            (old_number, stored_reading), (new_number, todays_reading) = (
                stored_readings[key],
                todays_readings[key],
            )
            if (
                stored_reading.reads
                and todays_reading.reads
                and stored_reading.reads != todays_reading.reads
            ):
                yield (
                    f"source {name!r} read {_reading_text(stored_reading)} and reads "
                    f"{_reading_text(todays_reading)}"
                )
            elif old_number != new_number:
                yield (
                    f"source {name!r} was Spark's source {old_number} and would be {new_number}: "
                    "sources share their DataFrames in another way"
                )


def _reading_text(reading: Reading) -> str:
    """Return the format and the options of a source's data, as text for errors."""
    named = (f"{name} {value!r}" for name, value in reading.reads.items() if name != "format")
    return " of ".join(filter(None, [reading.reads.get("format", ""), ", ".join(named)]))


def _source_names(layout: OffsetLayout) -> set[str]:
    """Return the names of the sources in a layout."""
    return {reading.source for readings in layout.readings for reading in readings}


def _with_single_source_named(layout: OffsetLayout, name: str) -> OffsetLayout:
    """Return a layout of a single source with that source renamed to `name`."""
    readings = tuple(
        tuple(msgspec.structs.replace(reading, source=name) for reading in shared)
        for shared in layout.readings
    )
    return msgspec.structs.replace(layout, readings=readings)


def keep_offsets(storage: CheckpointStorage, source: str) -> None:
    """Allow a Spark source to continue from its stored offsets in other data; raise if unknown."""
    layout = load_layout(storage)
    names = sorted(set() if layout is None else _source_names(layout))
    if layout is None or source not in names:
        raise CheckpointMismatchError(
            f"The checkpoint {storage.uri!r} has no source {source!r}.",
            remedy=f"Its sources are {', '.join(names)}."
            if names
            else "It does not record what sources read: start the flow as it is.",
            uri=storage.uri,
        )
    readings = tuple(
        tuple(msgspec.structs.replace(r, reads={}) if r.source == source else r for r in shared)
        for shared in layout.readings
    )
    _write_layout(storage, msgspec.structs.replace(layout, readings=readings))


def forget_sparks_progress(storage: CheckpointStorage) -> None:
    """Delete Spark's logs from a checkpoint that has no epoch yet."""
    layout = load_layout(storage)
    minimum = 0 if layout is None else len(layout.readings)
    directories = [f"{SPARK}/offsets", f"{SPARK}/commits"]
    directories += [f"{SPARK}/sources/{number}" for number in source_numbers(storage, minimum)]
    # The id of the query last: until it is gone, the rest is known to be of one piece.
    for directory in (*directories, SPARK):
        for path in storage.list(directory):
            storage.delete(path)


def write_entry(storage: CheckpointStorage, path: str, entry: bytes) -> None:
    """Replace a file of Spark's log; `path`: within the checkpoint."""
    # Hadoop's checksum beside a local file does not match the rewritten content.
    folder, _, name = path.rpartition("/")
    storage.delete(f"{folder}/.{name}.crc")
    storage.write_atomic(path, entry)


def _write_layout(storage: CheckpointStorage, layout: OffsetLayout) -> None:
    """Write the layout of Spark's offsets to the checkpoint."""
    storage.write_atomic(OFFSETS, encode_record(layout))
