from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pyarrow.fs
import pytest

from godwit.checkpoint import ownership as leases
from godwit.checkpoint.ownership import (
    EXPIRY_S,
    acquire_lease,
    break_lease,
    inspect_lease,
    lease_owner,
)
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage, PosixDisk, RemoteStorage
from godwit.model.errors import CheckpointInUseError

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys, time
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
lease = acquire_lease(CheckpointStorage.open(sys.argv[1]), "the-other")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path / "ck")


def in_memory() -> RemoteStorage:
    """Return storage without locks, where a lease is a heartbeat."""
    filesystem, root = pyarrow.fs.FileSystem.from_uri("mock:///bucket/ck")
    return RemoteStorage(filesystem, root, uri="mock:///ck", renames=False, single_driver=True)


@pytest.fixture
def remote() -> CheckpointStorage:
    return in_memory()


def never(_seconds: float) -> None:
    raise AssertionError("there was nothing to wait for")


class Passing:
    """Time that passes only here, and what happens meanwhile."""

    def __init__(self, *, at: int = 0, happens: object = None) -> None:
        self.seconds = 0.0
        self._at, self._happens = at, happens

    def __call__(self, seconds: float) -> None:
        self.seconds += seconds
        if callable(self._happens) and self.seconds == self._at:
            self._happens()


def test_a_second_run_of_the_same_process_is_refused_with_the_owner_named(
    storage: CheckpointStorage,
) -> None:
    first = acquire_lease(storage, "first")
    with pytest.raises(CheckpointInUseError, match=rf"'first' \(process {os.getpid()}") as caught:
        acquire_lease(storage, "second", pause=Passing())
    assert "godwit checkpoint unlock" in caught.value.remedy
    assert caught.value.context["owner"]["run_id"] == "first"
    first.release()
    first.release()
    acquire_lease(storage, "second", pause=never).release()


def test_what_a_killed_process_held_can_be_taken_at_once(storage: CheckpointStorage) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, storage.uri], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointInUseError, match=rf"'the-other' \(process {process.pid}"):
            acquire_lease(storage, "mine", pause=Passing())
        process.send_signal(signal.SIGKILL)
    acquire_lease(storage, "mine", pause=never).release()


def test_a_child_that_the_owner_forked_does_not_hold_the_lease(storage: CheckpointStorage) -> None:
    lease = acquire_lease(storage, "parent")
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    lease.release()
    acquire_lease(storage, "next", pause=never).release()
    os.close(go)
    os.waitpid(child, 0)


def test_a_lease_that_is_broken_is_not_held_any_more(storage: CheckpointStorage) -> None:
    hung = acquire_lease(storage, "hung")
    break_lease(storage)
    second = acquire_lease(storage, "second", pause=never)
    hung.release()
    with pytest.raises(CheckpointInUseError):
        acquire_lease(storage, "third", pause=Passing())
    second.release()


def test_whoever_has_lost_the_lease_to_another_is_told(storage: CheckpointStorage) -> None:
    hung = acquire_lease(storage, "hung")
    hung.check_held()
    break_lease(storage)
    with pytest.raises(CheckpointInUseError, match="was taken from outside"):
        hung.check_held()
    second = acquire_lease(storage, "second", pause=never)
    with pytest.raises(CheckpointInUseError, match="was taken by run 'second'"):
        hung.check_held()
    second.check_held()
    second.release()


def test_whoever_has_lost_a_heartbeat_to_another_is_told(remote: CheckpointStorage) -> None:
    hung = cast("leases.HeartbeatLease", acquire_lease(remote, "hung"))
    hung._check_for_later_lease()
    hung.check_held()
    break_lease(remote)
    second = acquire_lease(remote, "second", pause=never)
    hung._check_for_later_lease()
    with pytest.raises(CheckpointInUseError, match="was taken by run 'second'"):
        hung.check_held()
    second.release()


def test_a_heartbeat_that_cannot_be_written_is_told_and_tried_again(
    remote: CheckpointStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = cast("leases.HeartbeatLease", acquire_lease(remote, "a"))
    with monkeypatch.context() as patch:

        def away(_path: str, _data: bytes) -> None:
            msg = "away"
            raise OSError(msg)  # which used to end the thread

        patch.setattr(remote, "write_atomic", away)
        beat(lease)
    beat(lease)
    (told,) = caplog.records
    assert "could not be renewed: away" in told.getMessage()
    lease.release()


def test_whoever_only_looks_costs_nobody_the_lease(storage: CheckpointStorage) -> None:
    acquire_lease(storage, "first").release()
    look = storage.lock("lock", b"")
    assert look is not None
    time = Passing(happens=None)

    def let_go(seconds: float) -> None:
        time(seconds)
        look.release()

    acquire_lease(storage, "second", pause=let_go).release()
    assert 0 < time.seconds < 1


def test_a_look_tells_a_lease_that_is_held_from_one_that_is_free(
    storage: CheckpointStorage,
) -> None:
    assert inspect_lease(storage).is_held is False
    lease = acquire_lease(storage, "first")
    seen = inspect_lease(storage)
    assert (seen.is_held, seen.owner) == (True, lease.owner)
    lease.release()
    assert inspect_lease(storage).is_held is False
    beating = in_memory()
    lease = acquire_lease(beating, "far", pause=never)
    assert isinstance(lease, leases.HeartbeatLease)
    seen = inspect_lease(beating)
    assert (seen.is_held, seen.owner, seen.beat) == (None, lease.owner, (0, 0))
    beat(lease)
    assert inspect_lease(beating).beat == (0, 1)
    lease.release()
    assert inspect_lease(beating).is_held is False


def test_where_there_are_no_locks_the_lease_is_a_heartbeat(tmp_path: Path) -> None:
    class NoLocks(PosixDisk):
        def lock(self, path: Path, *, wait: bool) -> int:
            raise OSError(95, "Operation not supported")

    storage = LocalStorage(tmp_path, disk=NoLocks())
    lease = acquire_lease(storage, "first", pause=never)
    assert list(storage.list("leases")) == ["leases/000000000000.rec"]
    lease.release()


def test_a_heartbeat_that_goes_on_refuses_a_second_run_as_soon_as_it_is_seen(
    remote: CheckpointStorage,
) -> None:
    first = acquire_lease(remote, "first", pause=never)
    assert isinstance(first, leases.HeartbeatLease)
    time = Passing(at=4, happens=lambda: beat(first))
    with pytest.raises(CheckpointInUseError, match="'first'"):
        acquire_lease(remote, "second", pause=time)
    assert time.seconds == 4
    first.release()
    acquire_lease(remote, "second", pause=never).release()


def test_a_heartbeat_that_stands_still_is_succeeded_once_it_has_expired(
    remote: CheckpointStorage,
) -> None:
    dead = acquire_lease(remote, "dead")
    time = Passing()
    second = acquire_lease(remote, "second", pause=time)
    assert time.seconds == EXPIRY_S
    owner = lease_owner(remote)
    assert owner is not None
    assert owner.run_id == "second"
    dead.release()  # it was only asleep: what it says about itself changes nothing
    assert lease_owner(remote) == owner
    second.release()


def test_of_two_that_wait_for_a_dead_heartbeat_one_succeeds_it(remote: CheckpointStorage) -> None:
    acquire_lease(remote, "dead")
    winners: list[object] = []
    time = Passing(
        at=int(EXPIRY_S),
        happens=lambda: winners.append(acquire_lease(remote, "a", pause=Passing())),
    )
    with pytest.raises(CheckpointInUseError, match="'a'"):
        acquire_lease(remote, "b", pause=time)
    assert len(winners) == 1


def test_a_heartbeat_that_is_broken_can_be_taken_at_once(remote: CheckpointStorage) -> None:
    acquire_lease(remote, "dead")
    break_lease(remote)
    assert lease_owner(remote) is None
    acquire_lease(remote, "second", pause=never).release()


def test_leases_of_the_past_are_cleared_away(remote: CheckpointStorage) -> None:
    for run in range(5):
        acquire_lease(remote, f"run-{run}", pause=never).release()
    assert len(remote.list("leases")) <= 3


def beat(lease: leases.HeartbeatLease) -> None:
    lease._beat += 1
    lease._write_beat()
