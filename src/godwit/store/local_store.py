"""The local store: all tables of one run on one executor, in one directory.

Problem: lanes run in whichever Python process Spark picks, several at a time, and each must find
the key groups that any of them left behind.

Invariant: the store is a cache: whatever is missing or not whole here is brought back from the
checkpoint.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from godwit.store.local_state import LocalState
from godwit.store.table_directory import TableDirectory

if TYPE_CHECKING:
    from godwit.store.schema import StateSchema

__all__ = ["LocalStore"]

_MAX_NAME = 200  # file systems take names of up to 255 bytes


class LocalStore:
    """Tables of one run of one application on one executor.

    Cheap to construct; keeps the tables it has opened.  Make one in each process, after any fork.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._states: dict[str, LocalState] = {}

    def state(self, operator: str, schema: StateSchema, num_key_groups: int) -> LocalState:
        """State of an operator on this executor.

        A table that is not whole, or has another schema, is discarded when it is met.
        """
        state = self._states.get(operator)
        if state is None or (state.schema, state.num_key_groups) != (schema, num_key_groups):
            directory = TableDirectory(self.root / _file_name(operator))
            state = self._states[operator] = LocalState(directory, schema, num_key_groups)
        return state


def _file_name(operator: str) -> str:
    """Return a directory name for `operator` that is its own and that any file system takes."""
    name = "op=" + quote(operator, safe="")
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.blake2b(operator.encode(), digest_size=16).hexdigest()
    return f"{name[: _MAX_NAME - len(digest)]}#{digest}"
