"""Payloads for lanes of the sender's own executor: as files, past Spark's shuffle.

The problem: Spark's shuffle takes every payload from Python, serialises and compresses it, writes
it to a file, reads that, and hands the bytes to Python again, even if the lane runs beside the
sender: a quarter of the CPU time of an epoch of a million rows.  So a large payload for a lane of
the sender's executor is written to a file, which the lane maps, and the exchange carries its path.

The invariants:

- *A file is written once, for one attempt*: its name is unique, and is known from the exchange
  alone.  It is removed when a later epoch runs on the executor, however few rows that has, or with
  the executor.
- *Placement is only ever speed.*  A lane that Spark runs where the file is not reports nothing, and
  the driver attempts the epoch again, by the shuffle alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from godwit.engine.lane.executor import current_executor, local_store_root, open_local_store
from godwit.model.errors import LocalStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob

STORED: Final = 0xFE
"""First byte of a parcel that has a path instead of rows; no payload begins with it."""
_MIN_BYTES: Final = 2**16
_IN_ONE_PROCESS: Final = "local-"  # executors of Spark's local mode, which share a disk


def store_local(blobs: Iterable[Blob], instruction: EpochInstruction) -> Iterator[Blob]:
    """Yield payloads by lane; large ones for lanes of this executor as the names of local files."""
    executor = current_executor(instruction.places[0][0])
    in_one_process = executor.startswith(_IN_ONE_PROCESS)
    directory: Path | None = None
    for place, payload in blobs:
        destination, _ = instruction.places[place]
        is_local = destination == executor or (
            in_one_process and destination.startswith(_IN_ONE_PROCESS)
        )
        if not is_local or len(payload) < _MIN_BYTES:
            yield place, payload
            continue
        try:
            if directory is None:
                directory = _directory(instruction, executor)
            path = directory / f"{instruction.epoch:012d}-{uuid4().hex}"
            path.write_bytes(payload)
        except (OSError, LocalStoreError):  # as of a full disk; lanes report a faulty store
            yield place, payload
        else:
            # The second byte is the level, as of every payload: see `godwit.engine.lane.wire`.
            yield place, bytes([STORED, payload[1]]) + os.fsencode(path)


def open_stored(parcels: Iterable[bytes]) -> list[bytes] | None:
    """Return payloads, read from files if `store_local` wrote them; ``None`` if one is missing."""
    payloads = []
    for parcel in parcels:
        payload: Any = parcel
        if parcel[0] == STORED:
            try:
                # Python's mmap keeps a descriptor for as long as the memory is mapped, and a lane
                # may have more payloads than a process may have open files.
                with pa.memory_map(os.fsdecode(parcel[2:])) as file:
                    payload = memoryview(file.read_buffer()).cast("B")
            except OSError:
                return None
        payloads.append(payload)
    return payloads


def _directory(instruction: EpochInstruction, executor: str) -> Path:
    """Return the directory of an executor's payload files; delete files of earlier epochs."""
    root = local_store_root(instruction.local_dir, instruction.run_id, executor)
    open_local_store(root)
    directory = root / "exchange"
    directory.mkdir(parents=True, exist_ok=True)
    _remove_earlier(directory, instruction.epoch)
    return directory


def remove_earlier(instruction: EpochInstruction) -> None:
    """Delete this executor's files of earlier epochs; called by every lane of the first level."""
    executor = current_executor(instruction.places[0][0])
    root = local_store_root(instruction.local_dir, instruction.run_id, executor)
    with suppress(OSError):  # mostly there is no such directory
        _remove_earlier(root / "exchange", instruction.epoch)


def _remove_earlier(directory: Path, epoch: int) -> None:
    """Delete the files of epochs before `epoch` in a directory."""
    first = f"{epoch:012d}"
    for file in directory.iterdir():
        if file.name < first:
            with suppress(FileNotFoundError):  # another task was faster
                file.unlink()
