"""`godwit status`: whether the query of a checkpoint runs, and its progress, as text or JSON.

Only the journal and the lease are read, so it works from any machine that reaches the checkpoint.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.ownership import EXPIRY_S
from godwit.model.text import printable
from godwit.ops.arguments import add_checkpoint, flow_name, no_journal_error, opened_checkpoint
from godwit.ops.liveness import Liveness
from godwit.ops.run_state import RunState, reduced

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from godwit.checkpoint.storage import CheckpointStorage

_LOOK_S: Final = 0.5


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit status`, and its function as ``run``."""
    parser.description = (
        "Show whether the query of a checkpoint runs, its last epoch, how far it is behind its "
        "sources, and how it ended. Only the checkpoint is read, so it works from any machine "
        "that reaches it; a query that was silent for some seconds is watched until its lease "
        "tells whether it lives. Exit status 0: it runs; 1: it does not (stopped, failed or "
        "died); 2: there is no checkpoint, or no journal yet."
    )
    add_checkpoint(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(run=_run_status)


def _run_status(args: argparse.Namespace) -> int:
    """Print the status of the query of a checkpoint; return the exit status."""
    status = status_of(opened_checkpoint(args.path))
    if status["last_entry_s"] is None:
        raise no_journal_error(args.path)
    if args.json:
        print(json.dumps(status, allow_nan=False))
    else:
        for name, value in status.items():
            if value not in (None, ""):
                print(f"{name.replace('_', ' ') + ':':<22}{printable(str(value))}")
    return 0 if status["state"] == "running" else 1


def status_of(
    storage: CheckpointStorage,
    *,
    now_s: Callable[[], float] = time.time,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Return the status of a query as plain values; ``None`` for unknown ones.

    Times in seconds. Waits until the lease tells whether a silent query lives.
    """
    state = RunState()
    for entries in JournalReader(storage).new_entries():
        for entry in entries:
            state = reduced(state, entry)
    liveness = Liveness(storage, now_s=now_s, monotonic_s=monotonic_s)
    life = liveness.look(state.last_word, state.last_s)
    deadline_s = monotonic_s() + EXPIRY_S + 2 * _LOOK_S
    while life.state == "silent" and monotonic_s() < deadline_s:
        sleep(_LOOK_S)
        life = liveness.look(state.last_word, state.last_s)
    frame, points = state.frame, state.points
    behind = [source.behind for source in frame.sources if source.behind is not None]
    return {
        "flow": flow_name(storage),
        "state": life.state,
        "reason": life.evidence,
        "epoch": frame.epoch if points else None,
        "epoch_ended_s_ago": round(now_s() - points[-1].at_s, 1) if points else None,
        "epoch_took_ms": points[-1].took_ms if points else None,
        "epoch_requests": ", ".join(f"{n} {kind}" for kind, n in frame.requests.items()) or None,
        "rows_behind": sum(behind) if behind else None,
        "latency_p99_ms": frame.latency_ms.get("p99"),
        "executors": sum(not executor.lost for executor in frame.executors) or None,
        "key_groups_waiting": frame.waiting + frame.suspended,
        "last_entry_s": state.last_s,
    }
