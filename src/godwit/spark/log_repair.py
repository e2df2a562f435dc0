"""Putting Spark's own log of a query back to what the checkpoint has committed.

Problem: Spark does not force its log to the disk.  After a power failure its newest entries may be
gone or torn while the epoch is committed, and Spark would plan the same micro-batch anew with other
rows.  Such a query is refused; this is the way back.

Invariant: the commit record of an epoch carries Spark's entries of its micro-batch, and these are
what is put back.  Entries above the last committed micro-batch are kept if everything up to them is
in order: Spark goes on with its plan.  Otherwise they are set aside, since nothing of them was
committed: Spark plans their rows anew, from the sources.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

from godwit.model.errors import CorruptCheckpointError
from godwit.state.repair import RepairStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.state.records import BatchRef, CommitRecord
    from godwit.state.storage import CheckpointStorage

__all__ = ["plan_log_repair"]

_SPARK = "spark"
_DEFAULT_INTERVAL = 10
_CRC_HEAD = b"crc\0"


def plan_log_repair(
    storage: CheckpointStorage, records: Sequence[CommitRecord]
) -> tuple[RepairStep, ...]:
    """Find what in Spark's log disagrees with the committed records, and what would mend it.

    Parameters
    ----------
    storage
        The checkpoint.
    records
        Its committed records that are still there, in order of epochs.
    """
    batches = [record.batch for record in records if record.batch is not None]
    if not batches:
        return ()
    return _LogPlan(storage, {batch.number: batch for batch in batches}).made()


class _LogPlan:
    def __init__(self, storage: CheckpointStorage, batches: Mapping[int, BatchRef]) -> None:
        self.storage = storage
        self.batches = batches
        self.last = max(batches)
        self.steps: list[RepairStep] = []

    def made(self) -> tuple[RepairStep, ...]:
        # Spark reads the entry before the one that it resumes from as well.
        for number in sorted({self.last - 1, self.last} & self.batches.keys()):
            self._check_batch(self.batches[number])
        spoilt = bool(self.steps)
        planned = [
            path
            for directory in ("offsets", "commits")
            for number, path in self._numbered(directory).items()
            if number > self.last
        ]
        listed = self._sources_above()
        torn = [path for path in (*planned, *listed) if self._read(path) is None]
        if spoilt or torn:
            self._take_back(planned, listed)
        done = self._numbered("commits").get(self.last)
        if done is not None and self._read(done) is None:
            problem = "It is torn; Spark offers its micro-batch again then, and it is known."
            self._set_aside(done, problem)
        return tuple(self.steps)

    def _take_back(self, planned: Sequence[str], listed: Mapping[str, int]) -> None:
        """Forget what was planned above the last committed micro-batch."""
        problem = (
            "It stands above the last committed micro-batch, and something of Spark's log up to "
            "there or above it was lost: its rows are planned anew."
        )
        for path in planned:
            self._set_aside(path, problem)
        for path, last in listed.items():
            if not path.endswith(".compact"):
                self._set_aside(path, problem)
                continue
            # It sums up earlier entries, which may be nowhere else.
            lines = self._summed_up(path)
            if lines is None:
                self._cannot(path, "It is torn, and so are entries that it summed up.")
                continue
            kept = [line for line in lines if not _is_above(line, last)]
            self.steps.append(
                RepairStep(
                    path=path,
                    problem=problem,
                    action="write",
                    content=b"\n".join([b"v1", *kept]),
                )
            )

    def _summed_up(self, path: str) -> list[bytes] | None:
        found = self._read(path)
        if found is not None:
            return found.splitlines()[1:]
        directory, _, name = path.removeprefix(f"{_SPARK}/").rpartition("/")
        return self._before(directory, int(name.removesuffix(".compact")))

    def _check_batch(self, batch: BatchRef) -> None:
        path = f"{_SPARK}/offsets/{batch.number}"
        found = self._read(path)
        if found is None or _offsets(found) != _offsets(batch.offsets):
            self._put_back(path, found, batch.offsets)
        for name, content in sorted(batch.sources.items()):
            self._check_source(name, content.splitlines()[1:])

    def _check_source(self, name: str, lines: list[bytes]) -> None:
        """Check one entry of a source's log; its file may sum up earlier entries."""
        directory, _, number = name.rpartition("/")
        entry = int(number)
        log = self._numbered(directory)
        merged = {n: path for n, path in log.items() if path.endswith(".compact")}
        later = [n for n in merged if n >= entry]
        path = merged[min(later)] if later else f"{_SPARK}/{name}"
        if not later and _is_merged(entry, merged):
            path = f"{_SPARK}/{name}.compact"
        found = self._read(path)
        if found is not None and _of_entry(found, entry) == sorted(lines):
            return
        whole = lines
        if path.endswith(".compact"):
            if later and min(later) != entry:
                self._cannot(
                    path, "It does not hold what was committed, and sums up later entries."
                )
                return
            earlier = self._before(directory, entry)
            if earlier is None:
                self._cannot(path, "It is gone, and so are entries that it summed up.")
                return
            whole = [*earlier, *lines]
        self._put_back(path, found, b"\n".join([b"v1", *whole]))

    def _before(self, directory: str, entry: int) -> list[bytes] | None:
        """Lines of all entries before one, from the last file that sums them up."""
        log = self._numbered(directory)
        merged = [n for n, path in log.items() if path.endswith(".compact") and n < entry]
        lines: list[bytes] = []
        for number in range(max(merged, default=0), entry):
            found = self._read(log.get(number, f"{_SPARK}/{directory}/{number}"))
            if found is None:
                return None
            lines += found.splitlines()[1:]
        return lines

    def _sources_above(self) -> dict[str, int]:
        """Path of entries that no committed micro-batch counts on → the last one that one does."""
        counted: dict[str, int] = {}
        for batch in self.batches.values():
            for name in batch.sources:
                directory, _, number = name.rpartition("/")
                counted[directory] = max(counted.get(directory, -1), int(number))
        return {
            path: last
            for directory, last in counted.items()
            for number, path in self._numbered(directory).items()
            if number > last
        }

    def _numbered(self, directory: str) -> dict[int, str]:
        """Give number → path of the entries of one of Spark's logs."""
        found: dict[int, str] = {}
        for entry in self.storage.list(f"{_SPARK}/{directory}"):
            match = re.fullmatch(r"(\d{1,18})(\.compact)?", entry.path.rpartition("/")[2])
            if match is not None:
                found[int(match[1])] = entry.path
        return found

    def _read(self, path: str) -> bytes | None:
        """Read an entry; ``None`` if it is missing or torn."""
        try:
            data: bytes = self.storage.read(path).to_pybytes()
        except CorruptCheckpointError:
            return None
        if not _is_whole(data) or not self._matches_checksum(path, data):
            return None
        return data

    def _matches_checksum(self, path: str, data: bytes) -> bool:
        """Whether Hadoop would read a file that has a checksum beside it."""
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

    def _put_back(self, path: str, found: bytes | None, content: bytes) -> None:
        if not content:
            self._cannot(path, "It is gone, and the record does not carry it.")
            return
        problem = (
            "It is gone or torn, though its epoch is committed."
            if found is None
            else "It says something else than what its epoch has committed."
        )
        self.steps.append(RepairStep(path=path, problem=problem, action="write", content=content))

    def _set_aside(self, path: str, problem: str) -> None:
        self.steps.append(RepairStep(path=path, problem=problem, action="set aside"))

    def _cannot(self, path: str, problem: str) -> None:
        self.steps.append(RepairStep(path=path, problem=problem, action="none"))


def _is_whole(data: bytes) -> bool:
    """Whether an entry begins as Spark's do, and its lines are JSON or Spark's dash."""
    version, *lines = data.splitlines() or [b""]
    if not re.fullmatch(rb"v\d+", version) or not lines:
        return False
    return all(line == b"-" or _json(line) is not None for line in lines)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _offsets(entry: bytes) -> list[bytes]:
    """Lines of an entry of the offset log that are offsets: after its version and its settings."""
    return entry.splitlines()[2:]


def _of_entry(data: bytes, entry: int) -> list[bytes]:
    lines = data.splitlines()[1:]
    return sorted(line for line in lines if _number_of(line) == entry)


def _is_above(line: bytes, last: int) -> bool:
    number = _number_of(line)
    return not isinstance(number, int) or number > last


def _number_of(line: bytes) -> Any:
    value = _json(line)
    return value.get("batchId") if isinstance(value, dict) else None


def _is_merged(entry: int, merged: Iterable[int]) -> bool:
    """Whether Spark sums all entries up at this one: it does at every so many."""
    latest = max(merged, default=None)
    interval = _DEFAULT_INTERVAL if latest is None else _interval(latest)
    return (entry + 1) % interval == 0


def _interval(latest: int) -> int:
    """Derive the interval from the last summary, as Spark does."""
    if latest + 1 <= _DEFAULT_INTERVAL:
        return latest + 1
    if (latest + 1) // 2 > _DEFAULT_INTERVAL:
        return next(n for n in range(_DEFAULT_INTERVAL, latest + 2) if (latest + 1) % n == 0)
    return latest + 1
