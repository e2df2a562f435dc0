"""Which epoch of which history a Delta table holds, though it was restored to an earlier version.

The version that a table keeps for an application never goes back: after ``RESTORE`` the table says
that it has epochs whose rows are gone.  What the table holds stands in its log, for every commit of
ours says whose epoch it is.  Read from the newest version back, going on at a ``RESTORE`` where
that leads, the first such commit is the last epoch that is there.

Where that is not what the application's version says, the sink goes on as another application, a
*generation* of its own, which begins with the ``RESTORE`` or with a commit that says so.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.ownership import HistoryPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deltalake import DeltaTable

__all__ = ["HeldEpoch", "held_epoch", "metadata_of", "restored_since", "version_to_restore"]

_KEY: Final = "godwit"
_PAGES: Final = (16, 256, 4096, None)
_MAINTENANCE: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END", "RESTORE"}
"""Operations that add no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldEpoch:
    """An epoch that a table holds.

    Attributes
    ----------
    point
        The epoch and its history; without a digest where an earlier version committed it.
    generation
        Of the application that its version is under, or the next one's.
    version
        Of the table, at which it was committed; -1 if not known.
    """

    point: HistoryPoint
    generation: str
    version: int


def metadata_of(point: HistoryPoint, writer: str, generation: str) -> dict[str, str]:
    """Describe an epoch for the log of the table."""
    told = {**asdict(point), "writer": writer, "generation": generation}
    return {_KEY: json.dumps(told, sort_keys=True)}


def _own_epoch(commit: Mapping[str, Any], query_id: str, writer: str) -> HeldEpoch | None:
    """Read an epoch of a writer out of a commit; ``None`` if it is somebody else's."""
    try:
        told = json.loads(commit[_KEY])
        if (told["query_id"], told["writer"]) != (query_id, writer):
            return None
        return HeldEpoch(
            point=HistoryPoint(
                query_id=query_id,
                history=str(told["history"]),
                epoch=int(told["epoch"]),
                digest=str(told["digest"]),
            ),
            generation=str(told["generation"]),
            version=int(commit["version"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _commits_back(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the commits that led to what the table holds, the newest first.

    A ``RESTORE`` is among them; those that it undid are not.
    """
    at, seen = table.version(), 0
    for page in _PAGES:
        history = table.history(page)
        for commit in history[seen:]:
            if commit["version"] > at:
                continue
            yield commit
            at = commit["version"] - 1
            if commit.get("operation") == "RESTORE":
                target = _restored_version(commit, table)
                if target is None:
                    return
                at = target
        seen = len(history)
        if page is None or seen < page:
            return


def _restored_version(commit: Mapping[str, Any], table: DeltaTable) -> int | None:
    """Version that a ``RESTORE`` went back to; ``None`` if the log does not say."""
    told = commit.get("operationParameters") or {}
    if told.get("version") is not None:
        return int(told["version"])
    try:
        moment = (
            int(told["datetime"])
            if told.get("datetime") is not None
            else int(dt.datetime.fromisoformat(str(told["timestamp"])).timestamp() * 1000)
        )
    except (KeyError, ValueError):
        return None
    earlier = [c for c in table.history() if c["version"] < commit["version"]]
    return max((int(c["version"]) for c in earlier if c["timestamp"] <= moment), default=None)


def held_epoch(table: DeltaTable, query_id: str, writer: str, application: str) -> HeldEpoch | None:
    """Find the last epoch of a writer that a table holds.

    Parameters
    ----------
    table
        The table, as it is now.
    query_id, writer
        Whose epoch.
    application
        Name of the first generation of the writer's application.

    Returns
    -------
    HeldEpoch or None
        ``None`` if the writer never wrote to the table. An epoch of -1 if what it wrote is gone.
    """
    recorded = table.transaction_version(application)
    if recorded is None:
        return None
    restore = -1
    for commit in _commits_back(table):
        if commit.get("operation") == "RESTORE":
            restore = max(restore, int(commit["version"]))
        found = _own_epoch(commit, query_id, writer)
        if found is not None:
            if restore < 0:
                return found
            return HeldEpoch(point=found.point, generation=f"r{restore}", version=found.version)
    if restore < 0:  # by an earlier version, whose commits do not say so
        return HeldEpoch(point=_unknown(query_id, recorded), generation="", version=-1)
    if any(_own_epoch(commit, query_id, writer) for commit in table.history()):
        return HeldEpoch(point=_unknown(query_id, -1), generation=f"r{restore}", version=-1)
    return HeldEpoch(point=_unknown(query_id, recorded), generation="", version=-1)


def version_to_restore(
    table: DeltaTable, is_shared: Callable[[HistoryPoint], bool], query_id: str, writer: str
) -> tuple[int | None, int, Mapping[str, Any] | None]:
    """Find the version of a table that has nothing of a writer but what is shared.

    Returns
    -------
    int or None
        The version; ``None`` if the log does not say.
    int
        The writer's last epoch in it; -1 if it has none.
    Mapping or None
        A commit of somebody else that would be undone too.
    """
    version: int | None = None
    left = -1
    others: list[Mapping[str, Any]] = []
    undone: list[Mapping[str, Any]] = []
    for commit in _commits_back(table):
        found = _own_epoch(commit, query_id, writer)
        if found is None:
            if commit.get("operation") not in _MAINTENANCE:
                others.append(commit)
            continue
        undone, others = [*undone, *others], []
        if is_shared(found.point):
            version, left = found.version, found.point.epoch
            break
        version = found.version - 1  # before our first epoch, if none is shared
    return version, left, undone[0] if undone else None


def _unknown(query_id: str, epoch: int) -> HistoryPoint:
    return HistoryPoint(query_id=query_id, history="", epoch=epoch, digest="")


def restored_since(table: DeltaTable, seen: int, held: int, query_id: str, writer: str) -> bool:
    """Whether somebody has taken a writer's last epoch from a table by a ``RESTORE``.

    Parameters
    ----------
    table
        The table, as it is now.
    seen
        Version at which it was looked at last; the writer may have committed an epoch since.
    held
        Version of the writer's last epoch as of then.
    query_id, writer
        The writer.
    """
    if table.version() <= seen:
        return False
    targets: list[int] = []
    for commit in table.history(table.version() - seen):
        found = _own_epoch(commit, query_id, writer)
        if found is not None:
            held = found.version
            break
        if commit.get("operation") == "RESTORE":
            target = _restored_version(commit, table)
            targets.append(-1 if target is None else target)
    return any(target < held for target in targets)
