"""Cost of the live page: to a query, to the server, and to the browser that shows it.

    python -m benchmarks.live_page [--epochs 3600] [--key-groups 8192] [--components 10]

A journal as a query of so many components would have it, an epoch a second; key groups move every
minute.  Measured: CPU time of the entries that are made for the page alone, for an epoch; the first
look at a whole journal; a look at each further epoch; the size of a report; and in a Chromium, if
there is one: first paint, the time from an entry in the journal to its epoch on the page, and the
memory of the page at the beginning and after the hour.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.options import read_options
from tests.support.checkpoints import write_checkpoint
from tests.support.chromium import Browser, chromium
from tests.support.journal_story import BEGAN_S, epoch

from godwit.checkpoint.journal import JournalWriter
from godwit.engine.run_record import placement_entry
from godwit.migration.outcome import LoadSummary
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.key_groups import KeyGroupLoad
from godwit.ops.page.live_page import PageFeed, PageServer, report_page
from godwit.ops.page.view import report_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.chromium import Tab

_EXECUTORS = 8
_LANES = 4


class Story:
    """Entries of an hour, epoch by epoch."""

    def __init__(self, components: int, key_groups: int) -> None:
        self._rng = np.random.default_rng(7)
        self._names = [f"operator_{number}" for number in range(components)]
        lane = np.arange(key_groups) % (_EXECUTORS * _LANES)
        self._places = {name: self._assignment(lane, 0) for name in self._names}
        self._executors = [f"executor-{number}" for number in range(_EXECUTORS)]
        self._size = key_groups
        self.placement_s: list[float] = []

    @staticmethod
    def _assignment(flat: np.ndarray, version: int) -> Assignment:
        return Assignment(
            version=version,
            executors=tuple(f"executor-{number}" for number in range(_EXECUTORS)),
            lanes=(_LANES,) * _EXECUTORS,
            executor_of=(flat // _LANES).astype(np.int32),
            lane_of=(flat % _LANES).astype(np.int32),
        )

    def start(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield kind and values of the first entries."""
        started = events.QueryStarted(epoch=-1, at_s=BEGAN_S, name="measured")
        yield "event", started.to_dict()
        names = self._names
        yield (
            "flow",
            {
                "name": "measured",
                "keyGroups": self._size,
                "sources": ["rows"],
                "operators": [
                    {"name": n, "parts": [n], "components": [n], "does": "count", "keys": ["k"]}
                    for n in names
                ],
                "sinks": [{"name": "out", "takes": "results"}],
                "edges": [
                    {"from": ["source", "rows"], "to": ["operator", names[0]], "exchange": True},
                    *(
                        {"from": ["operator", a], "to": ["operator", b], "exchange": True}
                        for a, b in pairwise(names)
                    ),
                    {"from": ["operator", names[-1]], "to": ["sink", "out"], "exchange": False},
                ],
            },
        )
        yield "placement", placement_entry(0, {n: (None, a) for n, a in self._places.items()})

    def epoch(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield kind and values of the entries of an epoch."""
        rng, names = self._rng, self._names
        busy = rng.uniform(100, 800, _EXECUTORS)
        if number % 60 == 30:
            yield "placement", self._moved(number)
        values = epoch(number, took_ms=float(rng.uniform(300, 700)), rows=int(rng.integers(9**5)))
        yield (
            "progress",
            {
                **values["progress"],
                "loads": {n: {"rows": 1000, "keyGroups": self._size} for n in names},
                "totalStateBytes": dict.fromkeys(names, 10**8 + number),
                "streams": [
                    {"from": a, "to": b, "rows": 1000, "sizeBytes": 9000}
                    for a, b in pairwise(names)
                ],
                "keyGroups": {
                    n: dict.fromkeys(self._executors, self._size // _EXECUTORS) for n in names
                },
                "executors": {
                    name: {"lanes": _LANES, "draining": False, "cpuMs": ms, "busyMs": ms}
                    for name, ms in zip(self._executors, busy.tolist(), strict=True)
                },
            },
        )
        if number % 48 == 47:  # as rare as `LoadSummary` makes it for so many key groups
            yield "load", self._loads(number)

    def _moved(self, number: int) -> dict[str, Any]:
        """Move sixty-four key groups of one component."""
        name = self._names[number // 60 % len(self._names)]
        before = self._places[name]
        flat = before.flat_lanes()
        flat[self._rng.integers(0, self._size, 64)] = self._rng.integers(_EXECUTORS * _LANES)
        self._places[name] = self._assignment(flat, before.version + 1)
        began_s = time.process_time()
        entry = placement_entry(number, {name: (before, self._places[name])})
        self.placement_s.append(time.process_time() - began_s)
        return entry

    def _loads(self, number: int) -> dict[str, Any]:
        columns = self._rng.lognormal(0, 1.5, (len(self._names), self._size))
        loads = {
            name: KeyGroupLoad(
                key_groups=np.arange(self._size),
                rows=np.rint(column).astype(np.int64),
                keys=np.zeros(self._size, np.int64),
                cpu_ms=column,
                busy_ms=column,
                state_bytes=np.full(self._size, 10**4),
            )
            for name, column in zip(self._names, columns, strict=True)
        }
        return LoadSummary(epoch=number, epochs=16, loads=loads).to_dict()


def measure(epochs: int, components: int, key_groups: int) -> dict[str, Any]:
    """Write the journal, look at it, and return the figures."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="godwit-bench-") as directory:
        storage = write_checkpoint(Path(directory) / "ck", name="measured", epochs=1)
        writer, story = JournalWriter(storage, "run"), Story(components, key_groups)
        for kind, values in story.start():
            writer.add(kind, values)
        feed, looks = PageFeed(storage, flow="measured"), []
        for number in range(epochs):
            for kind, values in story.epoch(number):
                writer.add(kind, values)
            writer.flush()
            began_s = time.process_time()
            feed.look()
            looks.append(time.process_time() - began_s)
        found["placement_ms"] = 1e3 * median(story.placement_s)
        found["look_ms_median"] = 1e3 * median(looks)
        found["look_ms_p99"] = 1e3 * float(np.quantile(looks, 0.99))
        began_s = time.perf_counter()
        fresh = PageFeed(storage, flow="measured").look()
        found["first_look_s"] = time.perf_counter() - began_s
        found["points"] = len(fresh.state.points)
        found["page_kib"] = sum(map(len, fresh.texts.values())) / 1024
        page = report_page(report_of(fresh.state, flow="measured", life=fresh.life))
        found["report_mib"] = len(page) / 2**20
        command = chromium()
        if command is not None:
            with Browser(command, Path(directory) / "profile") as browser:
                server = PageServer(storage, flow="measured", host="127.0.0.1", port=0)
                try:
                    with browser.tab(server.url) as tab:
                        found |= _in_browser(tab, writer, story, epochs)
                finally:
                    server.close()
    return found


def _in_browser(tab: Tab, writer: JournalWriter, story: Story, epochs: int) -> dict[str, Any]:
    """Figures of a page that is open while another hour goes by, as quickly as it is read."""
    tab.wait_for(f"document.documentElement.dataset.epoch === '{epochs - 1}'", 120.0)
    paint = "performance.getEntriesByType('paint').find((e) => e.name.startsWith('first-c'))"
    first_ms, before = tab.run(f"{paint}.startTime"), _heap_mib(tab)
    updates = []
    for number in range(epochs, 2 * epochs):
        for kind, values in story.epoch(number):
            writer.add(kind, values)
        writer.flush()
        if number % 100 == 99:
            began_s = time.perf_counter()
            tab.wait_for(f"document.documentElement.dataset.epoch === '{number}'", 60.0)
            updates.append(time.perf_counter() - began_s)
    return {
        "first_paint_ms": first_ms,
        "update_s_median": median(updates),
        "update_s_max": max(updates),
        "heap_mib": [before, _heap_mib(tab)],
    }


def _heap_mib(tab: Tab) -> float:
    tab.call("HeapProfiler.collectGarbage")
    return float(tab.call("Runtime.getHeapUsage")["usedSize"]) / 2**20


def main() -> None:
    args = read_options(__doc__, epochs=3600, key_groups=8192, components=10)
    print(json.dumps(measure(args.epochs, args.components, args.key_groups), indent=2))


if __name__ == "__main__":
    main()
