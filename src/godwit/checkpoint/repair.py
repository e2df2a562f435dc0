"""Repair of a checkpoint: files that are written again or set aside, such as Spark's own log.

Problem: Spark does not force its log to the disk.  After a power failure its newest entries may be
missing or torn while the epoch is committed, and Spark would plan the same micro-batch again with
other rows.  Such a query is refused; `plan_log_repair` repairs its log.

Invariant: the commit record of an epoch carries Spark's entries of its micro-batch, and the repair
writes these back, in the log's present format.  Entries above the last committed micro-batch stay
if all entries up to them are in order: Spark continues with its plan.  Otherwise they are set
aside, since no row of them was committed: Spark plans their rows again, from the sources.

At every start Spark also reads the earlier entries of a source, which list the files that it has
read.  They are rebuilt from the rest of the log and from the records; if entries are missing from
both, the log cannot be repaired, since Spark would read those files again.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from godwit.checkpoint.spark_log import (
    DEFAULT_INTERVAL,
    OFFSETS,
    SPARK,
    entries_in,
    files_read,
    is_merged,
    lacking_files,
    lines_of,
    load_layout,
    log_offset,
    offsets_in,
    reorder_offsets,
)
from godwit.model.errors import CorruptCheckpointError, GodwitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.checkpoint.records import BatchRef, CommitRecord
    from godwit.checkpoint.spark_log import OffsetLayout
    from godwit.checkpoint.storage import CheckpointStorage


_SET_ASIDE: Final = "set-aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """A problem with one file, and the action taken."""

    path: str  # the file, within the checkpoint
    problem: str
    # ``"write"``: `content` is put there; ``"set aside"``: it is moved to ``set-aside/``;
    # ``"none"``: nothing can be done about it here
    action: Literal["write", "set aside", "none"]
    content: bytes = b""  # of the file to write


def execute_repair(storage: CheckpointStorage, steps: Sequence[RepairStep]) -> None:
    """Execute the steps of a repair plan; may be repeated after a crash."""
    for step in steps:
        if step.action == "none":
            continue
        # Hadoop's checksum beside a local file does not match the rewritten content.
        folder, _, name = step.path.rpartition("/")
        storage.delete(f"{folder}/.{name}.crc" if folder else f".{name}.crc")
        if step.path in storage.list(folder):
            previous = storage.read(step.path).to_pybytes()
            storage.write_atomic(f"{_SET_ASIDE}/{step.path}", previous)
        if step.action == "write":
            storage.write_atomic(step.path, step.content)
        else:
            storage.delete(step.path)


_CRC_HEAD = b"crc\0"


def plan_log_repair(
    storage: CheckpointStorage, records: Sequence[CommitRecord]
) -> tuple[RepairStep, ...]:
    """Compare the log of Spark's streaming query with the commit records; return repair steps.

    `records`: the retained commit records, in order of epochs.
    """
    batches = [batch for record in records if (batch := record.last_batch) is not None]
    if any(not batch.of_spark for batch in batches):
        batches = [batch for batch in batches if batch.of_spark]
        if not batches:
            return ()
    if not batches:
        done = list(storage.list(f"{SPARK}/commits")) if records else []
        problem = "Its micro-batch was done, and no record is left that says where Spark stood."
        return tuple(
            RepairStep(path=path, problem=problem, action="none")
            for path in done
            if path.rpartition("/")[2].isdecimal()
        )[:1]
    return _LogPlan(storage, {batch.number: batch for batch in batches}).plan()


class _LogPlan:
    """Builds the steps that repair Spark's log; `batches`: number → committed micro-batch."""

    def __init__(self, storage: CheckpointStorage, batches: Mapping[int, BatchRef]) -> None:
        self.storage = storage
        self.batches = batches
        self.last = max(batches)
        self.steps: list[RepairStep] = []
        self.layout: OffsetLayout | None = None

    def plan(self) -> tuple[RepairStep, ...]:
        """Return the steps to repair Spark's logs."""
        try:
            self.layout = load_layout(self.storage)
        except GodwitError:
            problem = "It is damaged; the next start tells from the offsets whose they are."
            self._plan_set_aside(OFFSETS, problem)
        # Spark reads the entry before the one that it resumes from as well.
        for number in sorted({self.last - 1, self.last} & self.batches.keys()):
            self._check_offsets(self.batches[number])
        before = f"{SPARK}/offsets/{self.last - 1}"
        if self.last > 0 and self.last - 1 not in self.batches and self._read(before) is None:
            self._plan_impossible(before, "It is gone or torn, and no record carries it any more.")
        for directory, last in self._last_committed_entries().items():
            self._check_history(directory, last)
        spoilt = bool(self.steps)
        planned = [
            path
            for directory in ("offsets", "commits")
            for number, path in self._entries_of(directory).items()
            if number > self.last
        ]
        listed = self._uncommitted_entries()
        torn = [path for path in (*planned, *listed) if self._is_damaged_or_lacks_sources(path)]
        # Spark notes the end of a micro-batch after its record was written: one without a record
        # was taken back, and Spark would continue after it.
        ended = any(number > self.last for number in self._entries_of("commits"))
        if spoilt or torn or ended:
            self._set_aside_uncommitted(planned, listed)
        done = self._entries_of("commits").get(self.last)
        if done is not None and self._read(done) is None:
            problem = "It is torn; Spark offers its micro-batch again then, and it is known."
            self._plan_set_aside(done, problem)
        return tuple(self.steps)

    def _is_damaged_or_lacks_sources(self, path: str) -> bool:
        """Return whether a log entry is damaged, or lacks sources' log entries that it needs."""
        current = self._read(path)
        if current is None or not path.startswith(f"{SPARK}/offsets/"):
            return current is None
        lines = (0,) if self.layout is None else self.layout.lines
        return bool(lacking_files(self.storage, current, lines, self.interval))

    @property
    def interval(self) -> int:
        """Number of entries after which Spark compacts a source's log; the default if unknown."""
        return DEFAULT_INTERVAL if self.layout is None else self.layout.interval

    def _set_aside_uncommitted(self, planned: Sequence[str], listed: Mapping[str, int]) -> None:
        """Add steps that set aside entries after the last committed micro-batch.

        `planned`: paths of Spark's offsets and commits. `listed`: path of a source's log entry →
        last committed entry of this log.
        """
        problem = (
            "It stands above the last committed micro-batch, and something of Spark's log up to "
            "there or above it was lost: its rows are planned again."
        )
        for path in planned:
            self._plan_set_aside(path, problem)
        for path, last in listed.items():
            if not path.endswith(".compact"):
                self._plan_set_aside(path, problem)
                continue
            # It sums up earlier entries, which may be nowhere else.
            lines = self._rebuild_compact(path)
            if lines is None:
                self._plan_impossible(path, "It is torn, and so are entries that it summed up.")
                continue
            remaining = [line for line in lines if not _is_after(line, last)]
            self.steps.append(
                RepairStep(
                    path=path,
                    problem=problem,
                    action="write",
                    content=b"\n".join([b"v1", *remaining]),
                )
            )

    def _rebuild_compact(self, path: str) -> list[bytes] | None:
        """Return the lines of a compacted log file; if damaged, of the files that it merged.

        ``None`` if that is not possible.
        """
        current = self._read(path)
        if current is not None:
            return current.splitlines()[1:]
        directory, _, name = path.removeprefix(f"{SPARK}/").rpartition("/")
        return self._lines_before(directory, int(name.removesuffix(".compact")))

    def _check_offsets(self, batch: BatchRef) -> None:
        """Add steps for the offsets of a micro-batch, if they are damaged."""
        path = f"{SPARK}/offsets/{batch.number}"
        current = None if self.layout is None else self.layout.pending.get(batch.number)
        current = self._read(path) if current is None else current
        offsets = self._rearrange_offsets(batch)
        if current is None or offsets_in(current) != offsets_in(offsets):
            self._plan_rewrite(path, current, offsets)
        for name, content in sorted(_source_entries(batch).items()):
            self._check_source(name, content.splitlines()[1:])

    def _rearrange_offsets(self, batch: BatchRef) -> bytes:
        """Return a record's offsets with their lines in the order of Spark's present offset log."""
        if self.layout is None:
            return batch.offsets
        lines = batch.lines or lines_of(batch.offsets, self.layout)
        return (lines and reorder_offsets(batch.offsets, lines, self.layout.lines)) or batch.offsets

    def _last_committed_entries(self) -> dict[str, int]:
        """Return log directory, such as ``sources/0`` → number of its last committed entry."""
        counted: dict[str, int] = {}
        for _, batch in sorted(self.batches.items()):
            lines = offsets_in(batch.offsets)
            for source, line in zip(batch.lines or range(1), lines, strict=False):
                entry = log_offset(line)
                if entry is not None:
                    counted[f"sources/{source}"] = entry
        return counted

    def _check_history(self, directory: str, last: int) -> None:
        """Add steps for damaged log entries up to `last` that Spark reads at a start."""
        names = {path.rpartition("/")[2]: path for path in self._entries_of(directory).values()}
        planned_paths = {step.path for step in self.steps}
        for name in files_read(names, last, self.interval):
            path = f"{SPARK}/{directory}/{name}"
            entry = int(name.removesuffix(".compact"))
            if entry > last or path in planned_paths or self._read(path) is not None:
                continue
            lines = self._lines_of(directory, entry)
            if lines is not None and name.endswith(".compact"):
                lines_before = self._lines_before(directory, entry)
                lines = None if lines_before is None else [*lines_before, *lines]
            if lines is None:
                self._plan_impossible(
                    path,
                    "It is gone or torn, and what it says of files that were read is nowhere else: "
                    "without it they would be read again.",
                )
                return
            self._plan_rewrite(path, None, b"\n".join([b"v1", *lines]))

    def _lines_of(self, directory: str, entry: int) -> list[bytes] | None:
        """Return the lines that a commit record has of one entry of a source's log.

        ``None`` if no retained record has them.
        """
        name = f"{directory}/{entry}"
        contents = (_source_entries(batch).get(name) for batch in self.batches.values())
        content = next((content for content in contents if content is not None), None)
        return None if content is None else content.splitlines()[1:]

    def _check_source(self, name: str, lines: list[bytes]) -> None:
        """Add steps unless the entry `name` of a source's log, maybe compacted, has `lines`."""
        directory, _, number = name.rpartition("/")
        entry = int(number)
        log = self._entries_of(directory)
        merged = {n: path for n, path in log.items() if path.endswith(".compact")}
        later = [n for n in merged if n >= entry]
        path = merged[min(later)] if later else f"{SPARK}/{name}"
        if not later and is_merged(entry, merged, self.interval):
            path = f"{SPARK}/{name}.compact"
        current = self._read(path)
        if current is not None and _lines_of_entry(current, entry) == sorted(lines):
            return
        whole = lines
        if path.endswith(".compact"):
            if later and min(later) != entry:
                self._plan_impossible(path, "It lacks committed entries, and sums up later ones.")
                return
            earlier = self._lines_before(directory, entry)
            if earlier is None:
                self._plan_impossible(path, "It is gone, and so are entries that it summed up.")
                return
            whole = [*earlier, *lines]
        self._plan_rewrite(path, current, b"\n".join([b"v1", *whole]))

    def _lines_before(self, directory: str, entry: int) -> list[bytes] | None:
        """Return the lines of all entries before `entry`, from the last compacted file on."""
        log = self._entries_of(directory)
        merged = [n for n, path in log.items() if path.endswith(".compact") and n < entry]
        lines: list[bytes] = []
        for number in range(max(merged, default=0), entry):
            current = self._read(log.get(number, f"{SPARK}/{directory}/{number}"))
            own = self._lines_of(directory, number) if current is None else current.splitlines()[1:]
            if own is None or (current is None and number in merged):
                return None
            lines += own
        return lines

    def _uncommitted_entries(self) -> dict[str, int]:
        """Return path of each uncommitted source-log entry → that log's last committed number."""
        return {
            path: last
            for directory, last in self._last_committed_entries().items()
            for number, path in self._entries_of(directory).items()
            if number > last
        }

    def _entries_of(self, directory: str) -> dict[int, str]:
        """Return number → path of the entries of one of Spark's logs."""
        return entries_in(self.storage, directory)

    def _read(self, path: str) -> bytes | None:
        """Return the content of an entry; ``None`` if it is missing or damaged."""
        try:
            data: bytes = self.storage.read(path).to_pybytes()
        except CorruptCheckpointError:
            return None
        if not _is_complete(data) or not self._matches_checksum(path, data):
            return None
        return data

    def _matches_checksum(self, path: str, data: bytes) -> bool:
        """Return whether a file matches its Hadoop checksum file, or has none."""
        directory, _, name = path.rpartition("/")
        try:
            beside = self.storage.read(f"{directory}/.{name}.crc").to_pybytes()
        except CorruptCheckpointError:
            return True
        if beside[:4] != _CRC_HEAD or len(beside) < 8:
            return False
        step = int.from_bytes(beside[4:8], "big")
        if step < 1:
            return False
        sums = b"".join(
            zlib.crc32(data[i : i + step]).to_bytes(4, "big") for i in range(0, len(data), step)
        )
        return bool(sums == beside[8:])

    def _plan_rewrite(self, path: str, current: bytes | None, content: bytes) -> None:
        """Add a step that writes a log file again; `current`: what it has, ``None`` if torn."""
        if not content:
            self._plan_impossible(path, "It is gone, and the record does not carry it.")
            return
        problem = (
            "It is gone or torn, though its epoch is committed."
            if current is None
            else "It says something else than what its epoch has committed."
        )
        self.steps.append(RepairStep(path=path, problem=problem, action="write", content=content))

    def _plan_set_aside(self, path: str, problem: str) -> None:
        """Add a step that renames a file, so that Spark ignores it."""
        self.steps.append(RepairStep(path=path, problem=problem, action="set aside"))

    def _plan_impossible(self, path: str, problem: str) -> None:
        """Add a finding about damage that cannot be repaired."""
        self.steps.append(RepairStep(path=path, problem=problem, action="none"))


def _is_complete(data: bytes) -> bool:
    """Return whether an entry has Spark's header, and lines that are JSON or Spark's dash."""
    version, *lines = data.splitlines() or [b""]
    if not re.fullmatch(rb"v\d+", version) or not lines:
        return False
    return all(line == b"-" or _parse_line(line) is not None for line in lines)


def _parse_line(line: bytes) -> Any:
    """Return the value of a line of JSON; ``None`` if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _source_entries(batch: BatchRef) -> dict[str, bytes]:
    """Return path → content of the file sources' log entries in a micro-batch's commit record."""
    if batch.lines or len(offsets_in(batch.offsets)) == 1:
        return batch.sources
    # Formerly the number of a line was taken for that of a source, which holds of the first.
    return {
        name: entries for name, entries in batch.sources.items() if name.startswith("sources/0/")
    }


def _lines_of_entry(data: bytes, entry: int) -> list[bytes]:
    """Return the lines of a log file that belong to an entry, sorted."""
    lines = data.splitlines()[1:]
    return sorted(line for line in lines if _micro_batch_of(line) == entry)


def _is_after(line: bytes, last: int) -> bool:
    """Return whether a line belongs to an entry after `last`."""
    number = _micro_batch_of(line)
    return not isinstance(number, int) or number > last


def _micro_batch_of(line: bytes) -> Any:
    """Return the number of the micro-batch that a line of a file log belongs to."""
    value = _parse_line(line)
    return value.get("batchId") if isinstance(value, dict) else None
