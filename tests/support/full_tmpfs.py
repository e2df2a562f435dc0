"""Write tables into a directory with ever less room; print how often there was too little.

Run as a program: a table that touches memory for which there is no block ends the process by a
signal, which no test survives in its own process.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.model.errors import StorageFullError
from godwit.store.changes import Changes, StateRows
from godwit.store.columns import StateSchema
from godwit.store.table import StateTable

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEMA = StateSchema(
    pa.schema([("key", pa.string()), ("part", pa.int32())]),
    pa.schema([("text", pa.string()), ("count", pa.int16()), ("blob", pa.binary())]),
)
_KEY_GROUPS = np.arange(16)
_PAGE = 4096


@contextmanager
def _unlocked() -> Iterator[None]:
    yield


def _changes(epoch: int) -> Changes:
    count = 150
    values = {
        "key": [str(n) for n in range(count)],
        "part": range(count),
        "text": ["x" * 9] * count,
        "count": [epoch] * count,
        "blob": [b"y" * 99] * count,
    }
    keys, state = (
        pa.RecordBatch.from_pylist(
            [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)],
            schema=schema,
        )
        for schema in (_SCHEMA.keys, _SCHEMA.values)
    )
    return Changes(
        key_groups=_KEY_GROUPS[:1],
        ends=np.array([count]),
        epochs=np.array([epoch]),
        rows=StateRows(hashes=np.zeros(count, np.int64), keys=keys, values=state),
    )


def write(path: Path) -> None:
    """Create a table, change it until it grows and is made anew, and read it."""
    table = StateTable(path, _SCHEMA, len(_KEY_GROUPS), _unlocked)
    for epoch in range(3):
        changes = _changes(epoch)
        table.apply(changes, table.refresh(changes.key_groups))
        table.read(table.find(changes.rows.keys))


def main(root: Path) -> int:
    """Sweep the room that there is, page by page, from none to enough."""
    full = 0
    filler, table = root / "filler", root / "1.table"
    status = os.statvfs(root)
    pages = status.f_bfree * status.f_bsize // _PAGE
    for free in range(pages):
        filler.write_bytes(bytes((pages - free) * _PAGE))
        try:
            write(table)
        except StorageFullError:
            full += 1
        table.unlink(missing_ok=True)
        filler.unlink()
    return full


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))  # noqa: T201
