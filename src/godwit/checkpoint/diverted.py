"""Rows that a target refused when it was given a committed epoch, kept for the sink of such rows.

Problem: only the server knows that it refuses a row, so it says so in delivery, after the commit,
which therefore cannot name the row.  The sink of rejected rows must get it all the same, once, and
again whenever the epoch is delivered again.

Invariant: the rows are durable here before the target commits the others, and stay until the epoch
cannot be delivered again.  So wherever the driver dies, what is delivered to the sink of rejected
rows is the same: what lanes staged for it, then what is kept here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, encode_batch
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.ownership import load_record
from godwit.checkpoint.paths import DIVERTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = ["DivertedRows", "KeptRows"]


class KeptRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one epoch that one sink refused, as Arrow IPC."""

    epoch: int
    sink: str
    rows: bytes


class DivertedRows:
    """Refused rows of the last epochs of one checkpoint."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._paths = {entry.path for entry in storage.list(DIVERTED)}

    def keep(self, sink: str, epoch: int, rows: Iterable[pa.Table]) -> None:
        """Keep rows that a sink refused in place of what was kept of that epoch."""
        (batch,) = pa.concat_tables(rows).combine_chunks().to_batches()
        kept = KeptRows(epoch=epoch, sink=sink, rows=bytes(encode_batch(batch)))
        path = _path(sink, epoch)
        self._storage.write_atomic(path, encode_record(kept))
        self._paths.add(path)

    def read(self, sink: str, epoch: int) -> tuple[pa.RecordBatch, ...]:
        """Return the rows that a sink refused of an epoch."""
        path = _path(sink, epoch)
        if path not in self._paths:
            return ()
        return (decode_batch(pa.py_buffer(load_record(self._storage, path, KeptRows).rows)),)

    def forget(self, sink: str, epoch: int) -> None:
        """Let go of what a sink refused of an epoch: it is asked anew."""
        self._delete({_path(sink, epoch)})

    def forget_before(self, epoch: int) -> None:
        """Let go of the rows of epochs that cannot be delivered again."""
        self._delete({path for path in self._paths if path < f"{DIVERTED}/{epoch:012d}"})

    def _delete(self, paths: set[str]) -> None:
        for path in paths & self._paths:
            self._storage.delete(path)
        self._paths -= paths


def _path(sink: str, epoch: int) -> str:
    # Names of sinks may hold what names of files cannot.
    return f"{DIVERTED}/{epoch:012d}-{hashlib.sha256(sink.encode()).hexdigest()[:16]}.rec"
