"""`godwit stop` and `godwit drain`, as seen by those who ask: exit statuses, and whom they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checkpoints import write_checkpoint

from godwit.checkpoint.ownership import (
    EXPIRY_S,
    HeartbeatLease,
    LeaseOwner,
    acquire_lease,
    acquire_run,
)
from godwit.checkpoint.requests import (
    REQUESTS,
    Answer,
    read_request,
    remove_old_requests,
    requests_to,
    write_answer,
    write_request,
)
from godwit.cli.main import main
from godwit.model.errors import GodwitError
from godwit.ops.requests import CUT_SHORT, DONE, NOT_RUNNING, STILL_RUNS, end_query

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.checkpoint.ownership import CheckpointLease
    from godwit.checkpoint.storage import CheckpointStorage


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return write_checkpoint(tmp_path / "ck", name="delays", epochs=2)


class Clock:
    """Passes when it is slept, and calls `then` after each sleep."""

    def __init__(self, then: Callable[[float], object] = lambda _: None) -> None:
        self.now_s, self.then = 0.0, then

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.then(self.now_s)


def asked(storage: CheckpointStorage, clock: Clock, timeout_s: float = 600.0) -> tuple[int, str]:
    lines: list[str] = []
    status = end_query(
        storage,
        "stop",
        lines.append,
        monotonic_s=lambda: clock.now_s,
        sleep=clock.sleep,
        timeout_s=timeout_s,
    )
    return status, "\n".join(lines)


def answer(storage: CheckpointStorage, lease: CheckpointLease, state: str) -> None:
    """Answer as the run of a lease; release that once the query has ended."""
    for request in requests_to(storage, lease.owner.run_id):
        write_answer(storage, request, Answer(state=state, epoch=7, text="as a test"))  # type: ignore[arg-type]
    if state in ("ended", "cut short"):
        lease.release()


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [("ended", DONE, "after epoch 7"), ("cut short", CUT_SHORT, "as a test")],
)
def test_the_answer_of_the_run_is_waited_for(
    storage: CheckpointStorage, state: str, status: int, said: str
) -> None:
    lease = acquire_lease(storage, "run1")
    clock = Clock(lambda now_s: answer(storage, lease, state if now_s >= 1.5 else "accepted"))
    got, text = asked(storage, clock)
    assert (got, said in text) == (status, True)
    assert clock.now_s < 5


def test_a_request_that_is_refused_is_an_error_that_says_why(storage: CheckpointStorage) -> None:
    lease = acquire_lease(storage, "run1")
    with pytest.raises(GodwitError, match="does not stop: as a test"):
        asked(storage, Clock(lambda _: answer(storage, lease, "refused")))
    # Asked again, it is another request.
    assert write_request(storage, "run1", "stop").answer is None
    lease.release()


def test_a_request_that_is_damaged_is_made_again(storage: CheckpointStorage) -> None:
    request = write_request(storage, "run1", "stop")
    storage.write_atomic(request.path, b"cut short")
    assert requests_to(storage, "run1") == []
    assert write_request(storage, "run1", "stop").answer is None
    assert len(requests_to(storage, "run1")) == 1


def test_of_two_who_ask_for_other_positions_one_is_told(storage: CheckpointStorage) -> None:
    lease = acquire_lease(storage, "run1")
    clock = Clock()
    clocks: dict[str, Any] = {"monotonic_s": lambda: clock.now_s, "sleep": clock.sleep}

    def drain(ends: dict[str, Any]) -> int:
        return end_query(storage, "drain", lambda _: None, ends=ends, timeout_s=2.0, **clocks)

    assert drain({"clicks": {"0": 3}}) == STILL_RUNS
    assert drain({"clicks": {"0": 3}}) == STILL_RUNS
    for other in ({}, {"clicks": {"0": 4}}):
        with pytest.raises(GodwitError, match=r'to other positions: {"clicks":{"0":3}}'):
            drain(other)

    def ask_at_once(_: float) -> None:
        storage.delete("requests/run1-drain.rec")
        write_request(storage, "run1", "drain", {"clicks": {"0": 9}})

    clock.then = ask_at_once
    with pytest.raises(GodwitError, match=r'to other positions: {"clicks":{"0":9}}'):
        drain({"clicks": {"0": 3}})
    lease.release()


def test_a_query_that_does_not_end_in_time_still_has_one_request(
    storage: CheckpointStorage,
) -> None:
    lease = acquire_lease(storage, "run1")
    assert asked(storage, Clock(), timeout_s=3.0)[0] == STILL_RUNS
    assert asked(storage, Clock(), timeout_s=0.0)[0] == STILL_RUNS
    assert len(storage.list(REQUESTS)) == 1
    lease.release()


def test_a_run_that_dies_is_told_from_one_that_ends(storage: CheckpointStorage) -> None:
    lease = acquire_lease(storage, "run1")
    status, text = asked(storage, Clock(lambda _: lease.release()))
    assert (status, "Run run1 died" in text) == (CUT_SHORT, True)
    assert asked(storage, Clock())[0] == NOT_RUNNING

    first = acquire_lease(storage, "run2")
    runs = [first]

    def succeed(_: float) -> None:
        if len(runs) == 1:
            first.release()
            runs.append(acquire_lease(storage, "run3"))

    status, text = asked(storage, Clock(succeed))
    assert (status, "run run3 has started since" in text) == (CUT_SHORT, True)
    assert not requests_to(storage, "run3")
    runs[1].release()


def test_a_lease_by_heartbeat_that_is_not_renewed_is_of_a_dead_run(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeartbeatLease, "_run_thread", lambda _: None)
    owner = LeaseOwner(run_id="run1", host="h", pid=1, since="")
    lease = HeartbeatLease(storage, 1, owner)
    clock = Clock()
    status, _ = asked(storage, clock, timeout_s=1000.0)
    assert status == CUT_SHORT
    assert EXPIRY_S <= clock.now_s <= EXPIRY_S + 5
    lease.release()


def test_a_run_keeps_requests_of_the_run_before_and_removes_older_ones(
    storage: CheckpointStorage,
) -> None:

    for run in ("one", "two", "three"):
        acquire_run(storage, run)
        write_request(storage, run, "drain", {"rows": 3})
        remove_old_requests(storage)
    assert [path.partition("/")[2] for path in storage.list(REQUESTS)] == [
        "three-drain.rec",
        "two-drain.rec",
    ]
    request = read_request(storage, "two", "drain")
    assert request is not None
    assert request.ends == {"rows": 3}


def test_the_commands_end_with_a_status_for_scripts(
    storage: CheckpointStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", str(tmp_path / "ck")]) == NOT_RUNNING
    assert "No query runs" in capsys.readouterr().out
    assert main(["drain", str(tmp_path / "no")]) == 2
    assert main(["drain", str(tmp_path / "ck"), "--to", str(tmp_path / "no.json")]) == 2
    (tmp_path / "list.json").write_text("[1]")
    assert main(["drain", str(tmp_path / "ck"), "--to", str(tmp_path / "list.json")]) == 2
    assert "does not contain a JSON object" in capsys.readouterr().err
