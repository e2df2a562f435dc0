"""`godwit stop` and `godwit drain`: stop the query of a checkpoint, from any machine.

A request is left in the checkpoint (`godwit.checkpoint.requests`) for the run that holds the lease;
then its answer, the lease and the journal are watched until the query has ended.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.ownership import EXPIRY_S, inspect_lease
from godwit.checkpoint.requests import check_same_ends, look_s, read_request, write_request
from godwit.model.errors import GodwitError
from godwit.model.text import printable
from godwit.ops.arguments import add_checkpoint, bounded, opened_checkpoint
from godwit.ops.run_state import RunState, reduced

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from godwit.checkpoint.requests import Action, EndRequest
    from godwit.checkpoint.storage import CheckpointStorage

DONE, CUT_SHORT, NOT_RUNNING, STILL_RUNS = 0, 1, 3, 4
"""Exit statuses; 2: the query could not be asked."""
_TIMEOUT_S: Final = 600.0
_SAY_S: Final = 5.0
_RELEASE_S: Final = 30.0
_OWNER_LOOKS, _OWNER_S = 20, 0.25
_STATUSES: Final = (
    f"Exit status: {DONE} the query has ended as requested; {CUT_SHORT} it failed, died, or was "
    "ended otherwise meanwhile; 2 the request failed (no checkpoint, no permission, a wrong "
    f"position); {NOT_RUNNING} no query runs on the checkpoint; {STILL_RUNS} it still runs after "
    "--timeout, and ends later: repeat the command to continue waiting. A query that is started "
    "afterwards is not stopped by an old request, and `godwit run` does not restart one that was "
    "stopped."
)


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit stop`, and its function as ``run``."""
    parser.description = (
        "Stop the query of a checkpoint once its running epoch is committed, and wait for that. "
        "The request is a file in the checkpoint, so it works from any machine that reaches the "
        f"checkpoint. {_STATUSES}"
    )
    _add_arguments(parser, "stop")


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit drain`, and its function as ``run``."""
    parser.description = (
        "Let the sources of a query end at their current positions, process everything, "
        "including waiting rows, and then stop the query. Windows stay open, unless it was "
        "started with close_at_end=True. The request is a file in the checkpoint, so it works "
        f"from any machine that reaches the checkpoint. {_STATUSES}"
    )
    parser.add_argument(
        "--to",
        metavar="FILE",
        help="JSON file of an object source -> position at which the source ends, as `endOffset` "
        "in query.recentProgress has it; sources that are not named end where they are now",
    )
    _add_arguments(parser, "drain")


def _add_arguments(parser: argparse.ArgumentParser, action: Action) -> None:
    """Add the arguments that both commands have."""
    add_checkpoint(parser)
    parser.add_argument(
        "--timeout",
        type=bounded(float, 0, name="number of seconds"),
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="max. wait for the end of the query (default: %(default)g; 0: do not wait)",
    )
    parser.set_defaults(run=_run_stop, action=action, to=None)


def _run_stop(args: argparse.Namespace) -> int:
    """Request the end of a checkpoint's query; return the exit status."""
    storage = opened_checkpoint(args.path)

    def say(text: str) -> None:
        """Print a line at once."""
        print(printable(text), flush=True)

    return end_query(
        storage, args.action, say, ends=_read_end_positions(args.to), timeout_s=args.timeout
    )


def _read_end_positions(path: str | None) -> dict[str, Any]:
    """Return the positions in a file."""
    if path is None:
        return {}
    try:
        ends = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GodwitError(
            f"The positions of --to cannot be read from {path!r}: {error}.",
            remedy='Give a JSON file, as in {"clicks": {"0": 1200}}.',
            path=path,
        ) from None
    if not isinstance(ends, dict):
        raise GodwitError(
            f"The file {path!r} of --to does not contain a JSON object.",
            remedy='Give source -> position, as in {"clicks": {"0": 1200}}.',
            path=path,
        )
    return ends


def end_query(
    storage: CheckpointStorage,
    action: Action,
    say: Callable[[str], object],
    *,
    ends: dict[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Request the end of a checkpoint's query, and wait for it; return the exit status.

    `say`: takes lines about the progress. `ends`: see `EndRequest`.
    """
    lease = _LeaseWatch(storage, monotonic_s, sleep)
    run = lease.run()
    if run is None:
        say("No query runs on the checkpoint.")
        return NOT_RUNNING
    request = write_request(storage, run, action, ends)
    say(
        f"Requested run {run} to {action}."
        if request.answer is None
        else f"Run {run} has the request."
    )
    deadline_s, progress = monotonic_s() + timeout_s, _Progress(storage, say, monotonic_s)
    while (status := _exit_status(storage, request, lease, say)) is None:
        if monotonic_s() >= deadline_s:
            say(f"Run {run} is still running; it will end later.")
            return STILL_RUNS
        sleep(min(look_s(storage), 1.0))
        progress.tell()
    return status


def _exit_status(
    storage: CheckpointStorage,
    asked: EndRequest,
    lease: _LeaseWatch,
    say: Callable[[str], object],
) -> int | None:
    """Return the exit status if a run has answered, or no longer exists, else ``None``."""
    is_gone = lease.is_gone(asked.run_id)  # first: the answer comes before the end of the lease
    request = read_request(storage, asked.run_id, asked.action)
    if request is not None:
        check_same_ends(asked, request)  # of another process, which asked at the same time
    answer = None if request is None else request.answer
    if answer is not None and answer.state == "refused":
        raise GodwitError(
            f"The query does not {asked.action}: {answer.text}.",
            remedy="It continues. Repeat the request without that, or with another value.",
        )
    if answer is not None and answer.state in ("ended", "cut short"):
        lease.wait_until_gone(asked.run_id, _RELEASE_S)
        if answer.state == "cut short":
            say(f"The query ended differently, after epoch {answer.epoch}: {answer.text}.")
            return CUT_SHORT
        say(f"The query ended as requested, after epoch {answer.epoch}.")
        return DONE
    if not is_gone:
        return None
    other = lease.run()
    later = f"; run {other} has started since" if other not in {None, asked.run_id} else ""
    say(f"Run {asked.run_id} died before it ended as requested{later}.")
    return CUT_SHORT


class _LeaseWatch:
    """Observer of a checkpoint's lease: which run holds it, and whether that is alive."""

    def __init__(
        self,
        storage: CheckpointStorage,
        monotonic_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._storage, self._monotonic_s, self._sleep = storage, monotonic_s, sleep
        self._last_beat: tuple[int, int] | None = None
        self._beat_s = 0.0

    def run(self) -> str | None:
        """Return the run that holds the lease, or may hold it; ``None`` if none does."""
        for _ in range(_OWNER_LOOKS):
            sight = inspect_lease(self._storage)
            if sight.is_held is False:
                return None
            if sight.owner is not None:
                return sight.owner.run_id
            self._sleep(_OWNER_S)  # its file is just being written
        raise GodwitError(
            f"The lease on the checkpoint {self._storage.uri!r} cannot be read.",
            remedy="Check your permissions to read and write the checkpoint, and try again.",
            uri=self._storage.uri,
        )

    def is_gone(self, run: str) -> bool:
        """Return whether a run has released the lease, or has not renewed it for too long."""
        sight = inspect_lease(self._storage)
        if sight.is_held is False:
            return True
        if sight.owner is None:
            return False  # it cannot be read now
        if sight.owner.run_id != run:
            return True
        if sight.beat is None:
            return False
        if sight.beat != self._last_beat:
            self._last_beat, self._beat_s = sight.beat, self._monotonic_s()
        return self._monotonic_s() - self._beat_s >= EXPIRY_S

    def wait_until_gone(self, run: str, timeout_s: float) -> None:
        """Wait until a run that has answered has released the lease, so that another can start."""
        end_s = self._monotonic_s() + timeout_s
        while not self.is_gone(run) and self._monotonic_s() < end_s:
            self._sleep(0.1)


class _Progress:
    """Prints the progress of the query from time to time."""

    def __init__(
        self,
        storage: CheckpointStorage,
        say: Callable[[str], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._reader, self._state = JournalReader(storage), RunState()
        self._say, self._monotonic_s = say, monotonic_s
        self._last_said, self._next_line_s = "", monotonic_s() + _SAY_S

    def tell(self) -> None:
        """Print the progress of the query, if it has changed and some time has passed."""
        if self._monotonic_s() < self._next_line_s:
            return
        self._next_line_s = self._monotonic_s() + _SAY_S
        for entries in self._reader.new_entries():
            for entry in entries:
                self._state = reduced(self._state, entry)
        frame = self._state.frame
        behind = [source.behind for source in frame.sources if source.behind is not None]
        text = f"epoch {frame.epoch}" if frame.epoch >= 0 else "no epoch is committed yet"
        text += f", {sum(behind):,} rows behind" if behind else ""
        if text != self._last_said:
            self._last_said = text
            self._say(text)
