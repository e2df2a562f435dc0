"""Ctrl-C and SIGTERM are noted in a context of the main thread, and the user's handlers stay."""

from __future__ import annotations

import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from godwit.model.frames import user_call
from godwit.runtime.lifecycle import EndingSignals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set the defaults, which the test runner may have changed, and put back what was there."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def never(_timeout_s: float | None) -> bool:
    return False


def test_signals_are_noted_inside_and_handlers_put_back_after() -> None:
    with EndingSignals() as signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert signals.asked == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handlers_are_put_back_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), EndingSignals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_user_stays_and_is_called() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    with EndingSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert (seen, signals.asked) == ([signal.SIGTERM], [])


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with EndingSignals() as signals:
        signal.raise_signal(signal.SIGINT)
    assert signals.asked == []


def test_a_signal_ends_the_wait_and_the_next_one_the_wait_for_the_end() -> None:
    with EndingSignals() as signals:

        def interrupted(_timeout_s: float | None) -> bool:
            signal.raise_signal(signal.SIGINT)
            return False

        assert not signals.wait(interrupted, None)
        assert len(signals.asked) == 1
        assert not signals.wait(interrupted, None)
    assert len(signals.asked) == 2


def test_without_a_signal_the_wait_ends_by_itself_or_after_its_time() -> None:
    with EndingSignals() as signals:
        assert signals.wait(lambda _: True, None)
        assert not signals.wait(never, 0)


def test_other_threads_wait_as_they_are() -> None:
    asked: list[Any] = []

    def run() -> None:
        with EndingSignals() as signals:
            asked.append(signals.wait(lambda timeout_s: timeout_s is None, None))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert asked == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_what_is_raised_begins_at_the_line_of_the_user(
    number: int, raised: type[BaseException]
) -> None:
    signals = EndingSignals()
    signals.asked.append(number)
    with pytest.raises(raised) as caught:
        user_call(signals.raise_asked)()
    if raised is SystemExit:
        assert caught.value.args == (143,)
    else:
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert len([frame for frame in frames if "/godwit/" in frame.filename]) <= 1
