"""Of several writers that create one file exclusively, one succeeds, in every store."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.fs
import pytest
from tests.support.object_store import s3_store

from godwit.checkpoint.object_store import ObjectStore, open_object_store
from godwit.checkpoint.ownership import acquire_lease, lease_owner
from godwit.checkpoint.storage import (
    CheckpointStorage,
    LocalStorage,
    ObjectStorage,
    PosixDisk,
    RemoteStorage,
)
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

obstore = pytest.importorskip("obstore")

ROUNDS = 100
WRITERS = 4


class NoLinks(PosixDisk):
    """A disk without hard links, on which looking and renaming take their time."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def replace(self, source: Path, target: Path) -> None:
        time.sleep(self._random.random() * 1e-3)
        super().replace(source, target)


class SlowStore:
    """A store of ``obstore`` whose requests take their time, and may be answered by nobody."""

    def __init__(self, store: Any, random: Random) -> None:
        self._store, self._random = store, random

    def put(self, path: str, data: bytes, *, mode: str) -> None:
        time.sleep(self._random.random() * 1e-3)
        self._store.put(path, data, mode=mode)
        if self._random.random() < 0.2:  # the answer is lost, and the client asks again
            self._store.put(path, data, mode=mode)

    def get(self, path: str) -> Any:
        return self._store.get(path)

    def delete(self, path: str) -> None:
        self._store.delete(path)


def stored(store: Any) -> ObjectStorage:
    return ObjectStorage("s3://bucket/ck", ObjectStore(store))


def remote(*, single_driver: bool = False) -> RemoteStorage:
    filesystem, root = pyarrow.fs.FileSystem.from_uri("mock:///bucket/ck")
    return RemoteStorage(
        filesystem, root, uri="mock:///bucket/ck", renames=False, single_driver=single_driver
    )


def race(writers: list[Callable[[], None]]) -> int:
    """Let writers begin at once, and count those that succeed."""
    barrier = threading.Barrier(len(writers))
    won: list[bool] = []

    def run(write: Callable[[], None]) -> None:
        barrier.wait()
        try:
            write()
        except FileExistsError:
            return
        won.append(True)

    threads = [threading.Thread(target=run, args=(write,)) for write in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won)


def winners(storages: list[CheckpointStorage], number: int) -> int:
    path = f"commits/{number:012d}.rec"
    return race(
        [partial(s.create_exclusive, path, f"writer {i}".encode()) for i, s in enumerate(storages)]
    )


def test_one_of_many_threads_creates_a_file_where_there_are_no_hard_links(tmp_path: Path) -> None:
    storages: list[CheckpointStorage] = [
        LocalStorage(tmp_path, disk=NoLinks(Random(i))) for i in range(WRITERS)
    ]
    assert [winners(storages, n) for n in range(ROUNDS)] == [1] * ROUNDS


def test_one_of_many_threads_creates_a_file_by_hard_links(tmp_path: Path) -> None:
    storages: list[CheckpointStorage] = [LocalStorage(tmp_path) for _ in range(WRITERS)]
    assert [winners(storages, n) for n in range(ROUNDS)] == [1] * ROUNDS


WRITE = """
import errno, os, sys
from godwit.checkpoint.storage import PosixDisk
from godwit.checkpoint.object_store import ObjectStore, open_object_store
from godwit.checkpoint.ownership import acquire_lease, lease_owner
from godwit.checkpoint.storage import LocalStorage

class NoLinks(PosixDisk):
    def link(self, source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

storage = LocalStorage(sys.argv[1], disk=NoLinks())
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2])):
    try:
        storage.create_exclusive(f"commits/{n:012d}.rec", sys.argv[3].encode())
        print(n, flush=True)
    except FileExistsError:
        pass
"""


def test_one_of_two_processes_creates_each_file_where_there_are_no_hard_links(
    tmp_path: Path,
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path), str(ROUNDS // 2), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(map(int, said[0] + said[1])) == list(range(ROUNDS // 2))


def test_one_of_many_writers_creates_an_object_that_the_store_decides_on() -> None:
    store = obstore.store.MemoryStore()
    storages: list[CheckpointStorage] = [
        stored(SlowStore(store, Random(i))) for i in range(WRITERS)
    ]
    assert [winners(storages, n) for n in range(ROUNDS)] == [1] * ROUNDS


def test_a_store_that_ignores_the_condition_is_found_out_before_anything_is_claimed() -> None:
    class Ignorant(SlowStore):
        def put(self, path: str, data: bytes, *, mode: str) -> None:
            self._store.put(path, data)

    store = obstore.store.MemoryStore()
    storage = stored(Ignorant(store, Random(0)))
    with pytest.raises(CheckpointError, match="ignores the condition"):
        storage.create_exclusive("runs/1", b"ours")
    assert store.list().collect() == []


def test_a_store_that_fails_is_an_error_of_the_checkpoint() -> None:
    class Failing(SlowStore):
        def put(self, path: str, data: bytes, *, mode: str) -> None:
            raise obstore.exceptions.GenericError("no route to host")

    storage = stored(Failing(None, Random(0)))
    with pytest.raises(CheckpointError, match=r"failed while writing 'runs/1'.*no route to host"):
        storage.create_exclusive("runs/1", b"ours")


def test_on_a_store_that_ignores_the_condition_the_user_may_vouch_for_one_driver() -> None:
    store = ObjectStore(obstore.store.MemoryStore())
    storage = ObjectStorage("s3://bucket/ck", store, single_driver=True)
    storage.create_exclusive("runs/1", b"ours")
    with pytest.raises(FileExistsError):
        storage.create_exclusive("runs/1", b"theirs")
    assert storage.read("runs/1").to_pybytes() == b"ours"
    assert storage.list("claims") == {}


def test_without_claims_writing_is_refused_unless_the_user_vouches_for_one_driver() -> None:
    with pytest.raises(CheckpointError, match=r"two drivers.*single_driver=True"):
        remote().create_exclusive("runs/1", b"ours")
    storage = remote(single_driver=True)
    storage.create_exclusive("runs/1", b"ours")
    with pytest.raises(FileExistsError):
        storage.create_exclusive("runs/1", b"theirs")


def test_without_links_and_locks_nothing_is_created_exclusively(tmp_path: Path) -> None:
    class Neither(NoLinks):
        def lock(self, path: Path, *, wait: bool) -> int:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    storage = LocalStorage(tmp_path, disk=Neither(Random(0)))
    with pytest.raises(CheckpointError, match="neither hard links nor file locks"):
        storage.create_exclusive("runs/1", b"ours")
    assert storage.list("runs") == {}


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    class AnswerLost(PosixDisk):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            super().link(source, target)

    storage = LocalStorage(tmp_path, disk=AnswerLost())
    storage.create_exclusive("runs/1", b"ours")
    assert storage.read("runs/1").to_pybytes() == b"ours"


def test_on_s3_a_lease_is_a_heartbeat_that_refuses_and_is_released() -> None:
    with s3_store() as uri:
        first = acquire_lease(CheckpointStorage.open(uri), "first")
        assert lease_owner(CheckpointStorage.open(uri)) == first.owner
        first.release()
        assert lease_owner(CheckpointStorage.open(uri)) is None


@pytest.mark.parametrize("uri", ["hdfs://namenode/ck", "mock:///ck", "/a/path"])
def test_other_places_are_no_object_stores(uri: str) -> None:
    assert open_object_store(uri) is None
