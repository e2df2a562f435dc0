"""An error in a thread becomes an event, the thread continues, and no exit waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from godwit.runtime.threads import DaemonPool, Guard, close_all

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 120.0


def raises(error: BaseException) -> None:
    raise error


def test_what_a_step_raises_is_told_once_for_each_error(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []
    guard = Guard("watching executors", lambda what, error: told.append((what, error)))
    assert guard(len, "")
    for _ in range(3):
        assert not guard(raises, KeyError("x"))
    assert not guard(raises, ValueError("no\nat line 3"))
    assert told == [
        ("watching executors", "KeyError: 'x'"),
        ("watching executors", "ValueError: no"),
    ]
    assert len(caplog.records) == 2


def test_an_error_that_cannot_be_told_and_an_event_that_cannot_be_made_end_nothing() -> None:
    class Unspeakable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    def announce(_what: str, _error: str) -> None:
        raise OSError

    assert not Guard("work", announce)(raises, Unspeakable())


def test_calls_are_carried_out_in_order_and_give_what_they_return_or_raise() -> None:
    pool = DaemonPool(1, "pool")
    done: list[int] = []
    futures = [pool.submit(done.append, n) for n in range(100)]
    failed = pool.submit(raises, KeyError("x"))
    assert isinstance(failed.exception(PATIENCE_S), KeyError)
    assert pool.submit(max, 1, 2).result(PATIENCE_S) == 2
    assert done == list(range(100))
    assert all(future.done() for future in futures)
    pool.close()


def test_as_many_calls_go_on_at_once_as_there_are_threads() -> None:
    pool = DaemonPool(2, "pool")
    together = threading.Barrier(2)
    both = [pool.submit(together.wait, PATIENCE_S) for _ in range(2)]
    assert sorted(future.result(PATIENCE_S) for future in both) == [0, 1]
    pool.close()


def test_what_waits_is_cancelled_by_the_end_and_nothing_begins_after_it() -> None:
    pool = DaemonPool(1, "pool")
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait(PATIENCE_S)

    running = pool.submit(wait)
    assert begun.wait(PATIENCE_S)
    waiting = pool.submit(len, "")
    pool.close()
    assert waiting.cancelled()
    assert pool.submit(len, "").cancelled()
    go_on.set()
    assert running.result(PATIENCE_S)


def test_a_process_exits_at_once_whatever_its_calls_wait_for() -> None:
    program = (
        "import threading\n"
        "from godwit.runtime.threads import DaemonPool\n"
        "begun = threading.Event()\n"
        "pool = DaemonPool(1, 'pool')\n"
        "pool.submit(lambda: (begun.set(), threading.Event().wait(600)))\n"
        "pool.submit(threading.Event().wait, 600)\n"
        "assert begun.wait(60)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_every_part_is_closed_whatever_becomes_of_the_others() -> None:
    closed: list[str] = []
    problems = close_all(
        [
            ("a", lambda: closed.append("a")),
            ("b", lambda: raises(OSError("no room"))),
            ("c", lambda: closed.append("c")),
        ]
    )
    assert closed == ["a", "c"]
    assert problems == [("closing b", "OSError: no room")]
