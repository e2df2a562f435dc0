"""`godwit run`: restart an application when it fails, unless a restart cannot help.

The application is a process of its own, so that `kill -9`, a crash of the interpreter and a lack of
memory end it alone. A query continues from its checkpoint, so a restart loses and repeats nothing.

Invariant: after the first failure, and after one that does not come soon after a start, the next
start follows at once; before further ones there is a pause, which doubles; and there are at most
`RestartBudget.restarts` restarts within `RestartBudget.window_s`.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import GodwitError
from godwit.model.log_lines import FORMATS, VARIABLE, chosen_format, log_as
from godwit.ops.arguments import bounded
from godwit.ops.supervised import CANNOT_MEND, NOT_WANTED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

OUT_OF_RESTARTS: Final = 75  # EX_TEMPFAIL of sysexits.h
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S: Final = 0.1
_logger = logging.getLogger("godwit.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """Limits of restarts."""

    restarts: int = 10  # maximum number within the window
    window_s: float = 3600.0
    pause_s: float = 1.0  # before the second restart in a row; the first follows at once
    max_pause_s: float = 60.0


@dataclass(slots=True, kw_only=True)
class Restarts:
    """Restarts of an application so far, which decide on the next one and its pause."""

    budget: RestartBudget
    random: random.Random
    times_s: deque[float] = field(default_factory=deque)  # of restarts within the window
    failures: int = 0  # in a row, each soon after its start

    def pause_s(self, now_s: float, ran_s: float) -> float | None:
        """Return the pause before a restart after a failure; ``None``: none are left.

        `ran_s`: time from the start to the failure. Of half the pause a random part is taken away,
        so that applications that failed together do not start together.
        """
        budget = self.budget
        while self.times_s and self.times_s[0] <= now_s - budget.window_s:
            self.times_s.popleft()
        if len(self.times_s) >= budget.restarts:
            return None
        self.times_s.append(now_s)
        self.failures = 1 if ran_s > 2 * budget.max_pause_s else self.failures + 1
        if self.failures == 1:
            return 0.0
        pause_s = min(budget.pause_s * 2.0 ** min(self.failures - 2, 60), budget.max_pause_s)
        return pause_s * self.random.uniform(0.5, 1.0)


class Supervisor:
    """Runs an application until it succeeds, is stopped, or a restart cannot help."""

    def __init__(self, command: Sequence[str], restarts: Restarts, *, name: str) -> None:
        self._command, self._restarts, self._name = list(command), restarts, name
        self._process: subprocess.Popen[bytes] | None = None
        self._last_end_signal = 0  # number of the last signal that asks for the end
        self._is_passed_on = False  # to the application

    def run(self) -> int:
        """Run the application; return the exit status of the supervisor."""
        before: dict[int, Any] = {n: signal.signal(n, self._pass_on) for n in _SIGNALS}
        try:
            while True:
                started_s = time.monotonic()
                status = self._run_once()
                ran_s = time.monotonic() - started_s
                if self._last_end_signal or status == 0:
                    return status
                ended = f"ended with {_status_text(status)} after {ran_s:.1f} s"
                if status == CANNOT_MEND:
                    self._write_to_stderr(f"{ended}: a restart cannot fix this error")
                    return status
                if status == NOT_WANTED:
                    self._write_to_stderr(f"{ended}, after its queries were stopped on request")
                    return 1
                pause_s = self._restarts.pause_s(time.monotonic(), ran_s)
                if pause_s is None:
                    budget = self._restarts.budget
                    self._write_to_stderr(
                        f"{ended}, and was restarted {budget.restarts} times within "
                        f"{budget.window_s:g} s: it is not restarted"
                    )
                    return OUT_OF_RESTARTS
                number = len(self._restarts.times_s)
                follows = f"in {pause_s:.1f} s" if pause_s else "at once"
                self._write_to_stderr(
                    f"{ended}; restart {number} of {self._restarts.budget.restarts} follows "
                    f"{follows}"
                )
                if self._asked_within(pause_s):
                    return 128 + self._last_end_signal
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run_once(self) -> int:
        """Run the application to its end; return its exit status, 128 + n after signal n."""
        # A session of its own, so that a terminal's Ctrl-C reaches it once, by `_pass_on`.
        self._process = subprocess.Popen(self._command, start_new_session=True)  # noqa: S603  the user's
        if (
            self._last_end_signal and not self._is_passed_on
        ):  # it came while the application was started
            self._process.send_signal(self._last_end_signal)
        status = self._process.wait()
        self._process = None
        return status if status >= 0 else 128 - status

    def _pass_on(self, number: int, _frame: object) -> None:
        """Handle a termination signal: pass it on to the application."""
        self._last_end_signal = number
        process = self._process
        if process is not None and process.returncode is None:
            self._is_passed_on = True
            process.send_signal(number)

    def _asked_within(self, pause_s: float) -> bool:
        """Wait for a pause; return true at once if a signal asks for the end."""
        end_s = time.monotonic() + pause_s
        while not self._last_end_signal and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        return bool(self._last_end_signal)

    def _write_to_stderr(self, text: str) -> None:
        """Write a line to standard error."""
        if chosen_format() is None:
            print(f"godwit run: {self._name} {text}", file=sys.stderr, flush=True)
        else:
            _logger.warning("%s %s", self._name, text)


def _status_text(status: int) -> str:
    """Return an exit status as text."""
    if status > 128:
        try:
            return f"signal {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"exit status {status}"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit run`, and its function as ``run``."""
    parser.description = (
        "Run a Python program that starts a query, and start it again when it fails: after an "
        "error, a crash or kill -9. The query continues from its checkpoint. The first restart "
        "follows at once; the pause before each further one doubles from --pause to --max-pause "
        "while the program fails soon. An error that every start would raise again, such as an "
        "invalid flow, a changed schema, a wrong setting or a missing package, is not followed by "
        "a restart. SIGTERM, SIGINT and SIGHUP are passed to the program, whose query then ends "
        "between two epochs. Exit status: that of the "
        "program if it ends well or was asked to end, by a signal or by `godwit stop`; "
        f"{CANNOT_MEND} if a restart cannot mend the error (also if the program itself exits with "
        f"it); {OUT_OF_RESTARTS} if --restarts restarts within --window were not enough; 1 if it "
        "failed after `godwit stop` had ended its queries."
    )
    parser.epilog = (
        "Options of this command come before the program, the program's own after it, as in: "
        "godwit run --restarts 20 --window 7200 app.py --day 2024-05-01"
    )
    number = bounded(float, 0, name="number of seconds")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    parser.add_argument("arguments", nargs="...", metavar="ARGUMENTS", help="of the program")
    parser.add_argument(
        "--restarts",
        type=bounded(int, 0, name="number of restarts"),
        default=RestartBudget().restarts,
        help="maximum number of restarts within --window (default: %(default)s)",
    )
    for option, default, purpose in (
        ("--window", RestartBudget().window_s, "length of the window"),
        ("--pause", RestartBudget().pause_s, "pause before the second restart in a row"),
        ("--max-pause", RestartBudget().max_pause_s, "longest pause"),
    ):
        parser.add_argument(
            option,
            type=number,
            default=default,
            metavar="SECONDS",
            help=f"{purpose}, in seconds (default: %(default)g)",
        )
    parser.add_argument(
        "--log",
        choices=FORMATS,
        help="log lines of JSON, with query, epoch and phase, in the program and here; sets the "
        f"variable {VARIABLE}",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Supervise a program; return the exit status."""
    if not Path(args.program).is_file():
        raise GodwitError(
            f"The program {args.program!r} does not exist.",
            remedy="Give the Python file that starts the query, as in: godwit run app.py",
            program=args.program,
        )
    if args.log is not None:
        os.environ[VARIABLE] = args.log  # also of the program
    log_as(chosen_format())
    budget = RestartBudget(
        restarts=args.restarts,
        window_s=args.window,
        pause_s=args.pause,
        max_pause_s=args.max_pause,
    )
    command = [sys.executable, "-m", "godwit.ops.supervised", args.program, *args.arguments]
    restarts = Restarts(budget=budget, random=random.Random())  # noqa: S311  spreads restarts
    return Supervisor(command, restarts, name=Path(args.program).name).run()
