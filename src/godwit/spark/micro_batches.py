"""Which rows a micro-batch of Spark holds, as Spark's own logs say.

The problem: Spark plans a micro-batch, writes its plan to its log without forcing it to the disk,
and calls us.  After a power failure its newest entries may be gone while our commit is there; Spark
then plans the same number anew, with whatever has arrived meanwhile.  Taken for a replay, the new
rows would be lost.

The invariants: a commit record carries a digest of the offsets of the micro-batch that it covers,
and of the files behind them where an offset is only a number; a replay has the same digest or is
refused; and on local disks Spark's entries are durable before our commit is.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from godwit.model.errors import CheckpointError, CheckpointMismatchError, CorruptCheckpointError
from godwit.state.local_storage import LocalStorage
from godwit.state.records import BatchRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.state.storage import CheckpointStorage

__all__ = ["MicroBatches"]

_SPARK = "spark"


class MicroBatches:
    """Spark's log of one query, as far as micro-batches go.

    Parameters
    ----------
    storage
        The checkpoint; Spark's log is a directory of it.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage

    def identify(self, number: int, last: BatchRef | None) -> BatchRef | None:
        """Identify the micro-batch that Spark offers; ``None`` if it is committed already.

        Parameters
        ----------
        number
            Its number.
        last
            The last one that was committed, if any.

        Raises
        ------
        CheckpointMismatchError
            If Spark's log and the checkpoint do not go together.
        """
        done = -1 if last is None else last.number
        if number > done + 1:
            raise self._mismatch(
                f"Spark's progress is at micro-batch {number}, but the last one in the checkpoint "
                f"{self._storage.uri!r} is {done}: what is between them would be left out."
            )
        if number < done:  # Spark notes the end of a micro-batch before it begins the next
            raise self._mismatch(
                f"Spark's progress is at micro-batch {number}, but the checkpoint "
                f"{self._storage.uri!r} has those up to {done}: their rows would be left out."
            )
        found = self._read(number)
        if last is None or number > done:
            return found
        if found.digest != last.digest:
            raise self._mismatch(
                f"Spark has planned micro-batch {number} anew and with other rows than those that "
                f"the checkpoint {self._storage.uri!r} has committed for it: the new ones would be "
                "left out."
            )
        return None

    def force(self, batch: BatchRef) -> None:
        """Make Spark's entries of a micro-batch durable, where the checkpoint is on a local disk.

        Elsewhere a file that is there is durable.
        """
        if not isinstance(self._storage, LocalStorage):
            return
        root = Path(self._storage.uri) / _SPARK
        files = [root / "metadata", root / "offsets" / str(batch.number)]
        files.append(root / "commits" / str(batch.number - 1))
        files.extend(root / path for path in batch.sources)
        for file in files:
            # Hadoop's checksum lies beside it, and a file that does not match it is not read.
            for path in (file, file.with_name(f".{file.name}.crc")):
                with suppress(FileNotFoundError):
                    _fsync(path)
        for directory in dict.fromkeys(file.parent for file in files):
            with suppress(FileNotFoundError):
                _fsync(directory)

    def _read(self, number: int) -> BatchRef:
        offsets = self._entry(f"offsets/{number}")
        if offsets is None:
            raise CheckpointError(
                f"Spark's log in {self._storage.uri!r} has no offsets of micro-batch {number}, "
                "which is to be processed now.",
                remedy="The query needs Spark's ordinary progress log; asynchronous progress "
                "tracking is not supported.",
            )
        lines = _offsets_in(offsets)
        digest = hashlib.sha256(b"\n".join(lines))
        sources: dict[str, bytes] = {}
        before = _offsets_in(self._entry(f"offsets/{number - 1}") or b"")
        for source, line in enumerate(lines):
            end = _log_offset(line)
            if end is None:
                continue
            begin = _log_offset(before[source]) if source < len(before) else None
            for entry in range(-1 if begin is None else begin, end):
                path = f"sources/{source}/{entry + 1}"
                files = sorted(self._files(source, entry + 1))
                sources[path] = b"\n".join([b"v1", *files])
                digest.update(b"\0" + path.encode() + b"\0" + sources[path])
        return BatchRef(number=number, digest=digest.hexdigest(), offsets=offsets, sources=sources)

    def _files(self, source: int, entry: int) -> Iterator[bytes]:
        """Lines of one entry of a file source's log, which may have been merged with others."""
        for name in (f"{entry}", f"{entry}.compact"):
            data = self._entry(f"sources/{source}/{name}")
            for line in (data or b"").splitlines()[1:]:
                if json.loads(line).get("batchId") == entry:
                    yield line
            if data is not None:
                return

    def _entry(self, path: str) -> bytes | None:
        try:
            found: bytes = self._storage.read(f"{_SPARK}/{path}").to_pybytes()
        except CorruptCheckpointError:  # it is missing
            return None
        return found

    @staticmethod
    def _mismatch(message: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            message,
            remedy="The directory 'spark' and the rest of the checkpoint belong together: restore "
            "both from the same moment, or let `godwit checkpoint repair` put Spark's log back to "
            "what the checkpoint has committed. Nothing was touched.",
        )


def _offsets_in(entry: bytes) -> list[bytes]:
    """Lines of an entry of the offset log that are offsets: after its version and its settings."""
    return entry.splitlines()[2:]


def _log_offset(line: bytes) -> int | None:
    """Read the number of an entry in the source's own log, if that is what an offset is (files)."""
    try:
        offset: Any = json.loads(line)
    except ValueError:
        return None
    found = offset.get("logOffset") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
