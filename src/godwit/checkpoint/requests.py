"""Requests to end a query, left in its checkpoint by other processes.

Problem: a request comes from another process, perhaps on another machine, which shares nothing with
the query but its checkpoint; and it needs an answer, also after the query has ended.

A request is the file ``requests/<run>-<action>.rec``. It names the run that holds the lease, so it
never ends a later run, and asking twice is asking once. The query looks for it every `look_s`
seconds, and writes its answer into the same file.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from godwit.checkpoint.framing import encode_record, load_record, numbers_in
from godwit.checkpoint.records import RUNS, RunRecord, run_path
from godwit.checkpoint.storage import LocalStorage
from godwit.model.errors import CorruptCheckpointError, GodwitError

if TYPE_CHECKING:
    from godwit.checkpoint.storage import CheckpointStorage

REQUESTS: Final = "requests"
ACTIONS: Final = ("stop", "drain")
Action: TypeAlias = Literal["stop", "drain"]

_LOCAL_LOOK_S: Final = 0.5
_REMOTE_LOOK_S: Final = 5.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a run to a request."""

    # "accepted": it is being carried out. "refused": it cannot be; `text` says why. "ended": the
    # query has ended as asked. "cut short": it has ended otherwise, as `text` says
    state: Literal["accepted", "refused", "ended", "cut short"]
    epoch: int  # last committed epoch
    text: str = ""


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to one run to end."""

    run_id: str  # of the lease
    action: Action
    by: str  # process and host that asked
    since: str  # when it asked, in ISO 8601 by its own clock
    # source → position at which its input ends; of sources that are missing, where it is now
    ends: dict[str, Any] = msgspec.field(default_factory=dict)
    answer: Answer | None = None

    @property
    def path(self) -> str:
        """Path of its file."""
        return request_path(self.run_id, self.action)


def request_path(run_id: str, action: str) -> str:
    """Return the path of the file of a request."""
    return f"{REQUESTS}/{run_id}-{action}.rec"


def look_s(storage: CheckpointStorage) -> float:
    """Return the seconds between two looks of a query for requests: each lists one directory."""
    return _LOCAL_LOOK_S if isinstance(storage, LocalStorage) else _REMOTE_LOOK_S


def write_request(
    storage: CheckpointStorage, run_id: str, action: Action, ends: dict[str, Any] | None = None
) -> EndRequest:
    """Leave a request for a run, unless it has the same one already; return the one it has.

    One that cannot be read is written again. Raises `GodwitError` if the run has one with other
    positions.
    """
    request = EndRequest(
        run_id=run_id,
        action=action,
        by=f"process {os.getpid()} on {socket.gethostname()!r}",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        ends=ends or {},
    )
    before = None
    with suppress(CorruptCheckpointError):
        before = read_request(storage, run_id, action)
    if before is not None and (before.answer is None or before.answer.state != "refused"):
        check_same_ends(request, before)
        return before
    storage.write_atomic(request.path, encode_record(request))
    return request


def check_same_ends(asked: EndRequest, other: EndRequest) -> None:
    """Raise if the request that a run has ends sources elsewhere than the one that was made."""
    if asked.ends == other.ends:
        return
    ends = msgspec.json.encode(other.ends).decode() if other.ends else "where its sources are now"
    raise GodwitError(
        f"Run {asked.run_id} was asked already by {other.by}, at {other.since}, to "
        f"{asked.action} to other positions: {ends}.",
        remedy="It ends there. To wait for that, ask for the same positions.",
        run_id=asked.run_id,
    )


def read_request(storage: CheckpointStorage, run_id: str, action: str) -> EndRequest | None:
    """Return a request, with its answer if there is one; ``None`` if it was not made."""
    path = request_path(run_id, action)
    if path not in storage.list(REQUESTS):
        return None
    return load_record(storage, path, EndRequest)


def requests_to(storage: CheckpointStorage, run_id: str) -> list[EndRequest]:
    """Return the readable requests to a run, `stop` first; lists one directory."""
    paths = storage.list(REQUESTS)
    requests = []
    for action in ACTIONS:
        if (path := request_path(run_id, action)) in paths:
            with suppress(CorruptCheckpointError):  # it is asked for again
                requests.append(load_record(storage, path, EndRequest))
    return requests


def write_answer(storage: CheckpointStorage, request: EndRequest, answer: Answer) -> None:
    """Write the answer of a run to a request."""
    answered = msgspec.structs.replace(request, answer=answer)
    storage.write_atomic(request.path, encode_record(answered))


def remove_old_requests(storage: CheckpointStorage) -> None:
    """Delete requests and answers, but those of the last two runs.

    The answer of the last run may not have been read yet.
    """
    paths = storage.list(REQUESTS)
    if not paths:
        return
    latest = numbers_in(storage, RUNS)[-2:]
    runs = {load_record(storage, run_path(number), RunRecord).run_id for number in latest}
    for path in paths:
        if path.rpartition("/")[2].partition("-")[0] not in runs:
            storage.delete(path)
