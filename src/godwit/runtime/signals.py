"""Ctrl-C and SIGTERM while a program waits for a query: they ask for its end.

Left alone, the first raises in the middle of whatever the main thread does, while the query
continues (and PySpark's handler cancels the jobs of its epoch); the second ends the process amid an
epoch. A handler here only takes a note, which the thread that waits looks at; so no lock that the
thread holds can be asked for again.

A handler of the user's own stays in place.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S: Final = 0.1
_TERMINATED: Final = 128 + signal.SIGTERM


class EndingSignals:
    """Context of the main thread in which Ctrl-C and SIGTERM are noted; elsewhere a no-op."""

    def __init__(self) -> None:
        self.asked: list[int] = []  # numbers of signals, in the order in which they came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if _is_default(before):
                    signal.signal(number, self._note)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _frame: object) -> None:
        """Note a signal; its handler."""
        self.asked.append(number)

    def wait(self, wait: Callable[[float | None], bool], timeout_s: float | None) -> bool:
        """Call `wait` with short time-outs until it returns true or a further signal comes.

        Returns false after `timeout_s`, or if a signal came.
        """
        if not self._before:
            return wait(timeout_s)
        signals = len(self.asked)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
            if wait(max(0.0, min(_LOOK_S, left_s))):
                return True
            if len(self.asked) > signals or left_s <= 0:
                return False

    def raise_asked(self) -> NoReturn:
        """Raise what the last signal asks for: `KeyboardInterrupt`, or `SystemExit` (143)."""
        if self.asked[-1] == signal.SIGTERM:
            raise SystemExit(_TERMINATED)
        interrupt = KeyboardInterrupt()
        interrupt.begins_at_user = True  # type: ignore[attr-defined]  # see `user_call`
        raise interrupt


def _is_default(handler: Any) -> bool:
    """Return whether a handler is Python's or the system's default, or PySpark's of Ctrl-C."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "pyspark"
