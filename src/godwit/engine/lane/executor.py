"""The executor that this Python process belongs to, and its local store.

Invariant: files are created, trusted and removed only in a directory that belongs to this user and
is not writable for others; its parent may be shared, such as ``/tmp``.  Names come from a
checkpoint and a command line, so they are checked before they become a path.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from godwit.model.errors import LocalStoreError
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from godwit.store.columns import StateSchema

_ID: Final = re.compile(r"[0-9a-f]{1,64}")
_EXECUTOR: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def current_executor(expected: str) -> str:
    """Return the name of the executor that this Python process belongs to.

    Spark does not pass it to Python; it is on the executor's command line (standalone, YARN and
    Kubernetes pass ``--executor-id``). If that cannot be read, `expected` is returned.
    """
    if expected.startswith("local-"):
        return expected
    return executor_of_process() or expected


def executor_of_process() -> str | None:
    """Return the executor id on the command line of this process's executor; ``None``: unknown."""
    return _executor_of_ancestor(os.getpid())


@lru_cache(maxsize=1)
def _executor_of_ancestor(pid: int) -> str | None:
    """Return the executor id on the command line of an ancestor process.

    ``None`` if none has it.
    """
    for _ in range(4):  # this process, the forking daemon, the executor's JVM
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        if b"--executor-id" in arguments:
            return arguments[arguments.index(b"--executor-id") + 1].decode()
        pid = int(re.sub(r"^.*\) ", "", status, flags=re.DOTALL).split()[1])
        if pid <= 1:
            break
    return None


def local_store_root(local_dir: str | None, run_id: str, executor: str) -> Path:
    """Return the directory of an executor's local store in one run.

    By default it is within the executor's block directory (which Spark passes to its Python
    processes, and removes with the executor). `run_id` is ``<query>-<run>``: directories of one
    query's runs are siblings, so a later run can remove those of earlier ones.

    Raises `LocalStoreError` if an id is not a plain name, which could lead outside of the
    directory.
    """
    query, _, run = run_id.partition("-")
    if not (_ID.fullmatch(query) and _ID.fullmatch(run) and _EXECUTOR.fullmatch(executor)):
        raise LocalStoreError(
            f"Run {run_id!r} on executor {executor!r} cannot have a local store: ids are "
            f"hexadecimal, and executors have plain names.",
            remedy="If the checkpoint was made by Godwit, its identity was changed: restore "
            "identity.rec from a copy.",
            run_id=run_id,
            executor=executor,
        )
    if local_dir is None:
        block_dirs = os.environ.get("SPARK_LOCAL_DIRS", "")
        local_dir = block_dirs.split(",")[0] or "/tmp"  # noqa: S108  Spark's own default
    return Path(local_dir) / f"godwit-{query}" / run / executor


_stores: dict[Path, dict[str, LocalState]] = {}
"""Directory of a local store → name of a state → its copies, opened by this process."""


def local_state(root: Path, name: str, schema: StateSchema, num_key_groups: int) -> LocalState:
    """Return the copies of a state in the local store at `root`.

    The same object for the life of this process, unless the schema changes.
    """
    states = open_local_store(root)
    state = states.get(name)
    if state is None or (state.schema, state.num_key_groups) != (schema, num_key_groups):
        state = states[name] = LocalState(root, name, schema, num_key_groups)
    return state


def open_local_store(root: Path) -> dict[str, LocalState]:
    """Return the states of the local store at `root`; claim its directory when it is first used."""
    store = _stores.get(root)
    if store is None:
        claim_local_store(root)
        for known in list(_stores):
            if known.parent != root.parent:
                del _stores[known]
        store = _stores[root] = {}
    return store


def close_local_store(root: Path) -> None:
    """Close the tables of the local store at `root`, of an executor that is gone."""
    _stores.pop(root, None)


def claim_local_store(root: Path) -> None:
    """Create the directory of a query's local stores, and delete those of earlier runs.

    Stores of an earlier run are never reused, and that run is over by now. Raises `LocalStoreError`
    if the directory is a link, belongs to another user, or others may write to it.
    """
    run, query = root.parent, root.parent.parent
    descriptor = _open_private_directory(query)
    try:
        for name in os.listdir(descriptor):  # noqa: PTH208  of an open descriptor
            if name != run.name and _ID.fullmatch(name):
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _open_private_directory(path: Path) -> int:
    """Open (or create) a directory and return its descriptor; raise if others may write to it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shared = path.parent.stat()
        if shared.st_mode & stat.S_IWOTH and not shared.st_mode & stat.S_ISVTX:
            raise _unusable_directory(
                path.parent, "is writable for all users and has no sticky bit"
            )
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable_directory(
            path, f"cannot be opened as a directory ({error.strerror})"
        ) from error
    status = os.fstat(descriptor)
    problem = "" if status.st_uid == os.geteuid() else f"belongs to user {status.st_uid}"
    if not problem and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        try:
            os.fchmod(descriptor, 0o700)
        except OSError as error:
            problem = f"cannot be made private ({error.strerror})"
    if problem:
        os.close(descriptor)
        raise _unusable_directory(path, problem)
    return descriptor


def _unusable_directory(path: Path, why: str) -> LocalStoreError:
    """Return the error that a directory cannot be used for local stores; `why`: the reason."""
    return LocalStoreError(
        f"The local store cannot be in {str(path)!r}, which {why}.",
        remedy="Remove it, or give a directory that belongs to this user, as in "
        'flow.start(lanes=gw.Lanes(local_dir="/var/lib/godwit")).',
        path=str(path),
    )
