"""Starts on hostile checkpoints of flows over event time: each ends in an epoch or in an error.

What `tests.fuzz.readers` reads are checkpoints of no flow.  Here one starts on them, takes up
watermarks, panes, timers and rows that wait for others, runs an epoch, and closes what is open.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz.variants import change_something
from tests.support.restarted import Restarted

import godwit as gw
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.streams import Stream

__all__ = ["findings_of_start"]

S = 1_000_000
ROWS = [("a", 1 * S, 1), ("b", 7 * S, 2), ("a", 12 * S, 3), ("a", 3 * S, 4), (None, 5 * S, 1)]
MORE = [("a", 14 * S, 5), ("b", 26 * S, 6), ("a", 40 * S, 7)]
_CPU_S = 30.0


def note(key: tuple[str], rows: Any, state: dict[str, int]) -> None:
    for row in rows:
        rows.timers.set(row.ts + dt.timedelta(seconds=30))
    state["n"] = state.get("n", 0) + len(rows)


def ring(key: tuple[str], timer: Any, state: dict[str, int]) -> Any:
    yield key[0], state.get("n", 0)


def counted(key: tuple[str], rows: Any, window: Any) -> Any:
    yield key[0], len(rows)


def windows(rows: Stream) -> Stream:
    kinds = gw.hopping("20 seconds", every="10 seconds"), gw.tumbling("30 seconds")
    return rows.key_by("k").window(*kinds, name="w").compute(n=gw.count(), last=gw.last("v"))


def sessions(rows: Stream) -> Stream:
    return rows.key_by("k").window(gw.session("20 seconds"), name="w").compute(n=gw.count())


def functions(rows: Stream) -> Stream:
    windowed = rows.key_by("k").window(gw.tumbling("20 seconds"), name="w")
    return windowed.process(counted, output="k string, n long")


def timers(rows: Stream) -> Stream:
    return rows.key_by("k").process(
        note,
        name="p",
        state=gw.ValueState(dict, ttl="1 hour"),
        timers=gw.types.OnTimer(ring, clock="event"),
        output="k string, n long",
    )


def pairs(a: Stream, b: Stream) -> Stream:
    between = "-10 seconds", "10 seconds"
    right = b.key_by("k")
    return a.key_by("k").join(right, between=between, how="full", suffix="_r", name="j")


def newest(a: Stream, b: Stream) -> Stream:
    return a.key_by("k").join_newest(b.key_by("k"), within="1 hour", suffix="_r", name="j")


def once(rows: Stream) -> Stream:
    return rows.drop_duplicates("k", within="10 seconds", name="d")


FLOWS: tuple[tuple[Callable[..., Stream], tuple[str, ...]], ...] = (
    (windows, ("rows",)),
    (sessions, ("rows",)),
    (functions, ("rows",)),
    (timers, ("rows",)),
    (pairs, ("a", "b")),
    (newest, ("a", "b")),
    (once, ("rows",)),
)


@cache
def originals() -> list[dict[str, bytes]]:
    """Checkpoint of each flow: path → content."""
    found = []
    for build, sources in FLOWS:
        with tempfile.TemporaryDirectory() as directory:
            run = Restarted(Path(directory), build, {name: {} for name in sources})
            for rows in (ROWS, MORE, MORE):
                run.epoch(**dict.fromkeys(sources, rows))
            root = Path(directory) / "checkpoint"
            found.append({str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.*")})
    return found


def findings_of_start(number: int, root: Path) -> list[str]:
    """Change a checkpoint, and start on it; say what no start may do."""
    random = Random(number)
    which = random.randrange(len(FLOWS))
    build, sources = FLOWS[which]
    files = dict(originals()[which])
    change_something(files, random)
    for path, content in files.items():
        (root / "checkpoint" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "checkpoint" / path).write_bytes(content)
    (root / "checkpoint").chmod(0o700)
    found = []
    began = time.process_time()
    try:
        with contextlib.suppress(GodwitError):
            run = Restarted(root, build, {name: {} for name in sources})
            run.epoch(**dict.fromkeys(sources, MORE))
            run.times.end_input()
            run.epoch()
    except BaseException:  # noqa: BLE001  that is what is looked for
        found.append(f"a start: {traceback.format_exc(limit=-6)}")
    if time.process_time() - began > _CPU_S:
        found.append(f"a start took {time.process_time() - began:.1f} s of CPU")
    shutil.rmtree(root, ignore_errors=True)
    return found
