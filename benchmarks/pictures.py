"""Pictures of the documents, made by runs of their own.

    python -m benchmarks.pictures [--work-dir DIR]

`docs/migration.png` is the picture of ``godwit demo``: a live migration under load, and an executor
that is killed.  `docs/guide/ui.png` is the live page after a run of two minutes whose rate doubles:
the controller adds an executor, moves key groups to it, and keeps its target of 3 s.  Needs
Chromium.  Look at both before they are committed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.chromium import Browser, chromium

import godwit as gw
from godwit.ops.local_cluster import LocalCluster

DOCS = Path(__file__).parents[1] / "docs"
SECONDS, KEYS, ROW_S = 120, 2000, 0.001
REST_PER_S, SURGE_PER_S = 500, 1000  # rows; an executor processes 1,000 a second at most


def slow_totals(key: Any, rows: Any, state: gw.types.State[int]) -> list[tuple[int, int]]:
    """Sum the values of a key; a row takes a millisecond, in which nothing is computed."""
    time.sleep(ROW_S * len(rows))
    state.value += sum(row.v for row in rows)
    return [(key[0], state.value)]


def play_surge(folder: Path) -> None:
    """Run the stream of the live page; its journal stays in `folder`/checkpoint."""
    orders = gw.sources.memory("k long, v long")
    flow = gw.Flow("orders", num_key_groups=64)
    totals = (
        flow.source("orders", orders)
        .key_by("k")
        .process(slow_totals, name="totals", state=int, output="k long, total long")
    )
    flow.sink("totals", totals, gw.sinks.parquet(folder / "out"))
    done = threading.Event()

    def feed() -> None:
        number, began_s = 0, time.monotonic()
        while not done.wait(0.1):
            at_s = time.monotonic() - began_s
            surge_s = max(0.0, at_s - SECONDS / 3)
            until = int(at_s * REST_PER_S + surge_s * (SURGE_PER_S - REST_PER_S))
            orders.add([(n * 7919 % KEYS, 1) for n in range(number, until)])
            number = until

    with LocalCluster(3, memory="512m") as cluster:
        control = gw.Control(scaling=gw.control.latency("3 seconds"), max_executors=3)
        query = flow.start(
            checkpoint=folder / "checkpoint",
            session=cluster.session("orders", {"spark.sql.shuffle.partitions": "2"}),
            control=control,
            trigger={"processingTime": "500 milliseconds"},
        )
        query.scale(1).wait()
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        try:
            query.awaitTermination(SECONDS)
        finally:
            done.set()
            feeder.join()
            query.processAllAvailable()
            query.stop()


def take_picture(folder: Path) -> None:
    """Write the live page of the run in `folder` to the guide."""
    page, checkpoint = folder / "run.html", folder / "checkpoint"
    godwit = [sys.executable, "-m", "godwit.cli.main"]
    subprocess.run([*godwit, "report", str(checkpoint), "-o", str(page)], check=True)
    command, profile = chromium(), folder / "profile"
    assert command is not None, "needs Chromium"
    profile.mkdir(exist_ok=True)
    with (
        Browser(command, profile) as browser,
        browser.tab(page.as_uri(), width=1400, height=1300) as tab,
    ):
        tab.wait_for("document.documentElement.dataset.epoch")
        tab.picture(DOCS / "guide/ui.png", whole=False)


def main() -> None:
    """Make both pictures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--work-dir", type=Path)
    folder = arguments.parse_args().work_dir or Path(tempfile.mkdtemp(prefix="godwit-pictures-"))
    folder.mkdir(parents=True, exist_ok=True)
    demo = [sys.executable, "-m", "godwit.cli.main", "demo", "--plain", "--work-dir"]
    subprocess.run([*demo, str(folder / "demo")], check=True, stdout=subprocess.DEVNULL)
    (DOCS / "migration.png").write_bytes((folder / "demo/epochs.png").read_bytes())
    play_surge(folder)
    take_picture(folder)


if __name__ == "__main__":
    main()
