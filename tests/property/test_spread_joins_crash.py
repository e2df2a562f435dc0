"""Joins with spread keys, where attempts are lost, drivers die, and the coordinator migrates.

The whole engine in one process (`godwit.local`); what comes out is read from the commit
records, and compared with a nested loop over all rows.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.rounds import rounds

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import BatchRef, Grid
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.cluster import AttemptLostError
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, lane_inputs, staged_rows
from godwit.migration import Strategy
from godwit.migration.messages import MigrationRequested
from godwit.model.assignment import Assignment
from godwit.operators.hot_keys import WHOLE, hash_undivided

S = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema({"k": pa.string(), "ts": TIME, "v": pa.int64()})
HOT = "k0"
HASH = int(hash_undivided(pa.record_batch({"k": [HOT]}))[0])
KEY_GROUPS = 16


class DiedError(Exception):
    """The driver is gone."""


class History:
    """A join in one process, and what happens to it."""

    def __init__(self, root: Path, rng: np.random.Generator) -> None:
        flow = LogicalFlow("flow", KEY_GROUPS)
        frames: list[Any] = [FakeDataFrame(SCHEMA), FakeDataFrame(SCHEMA)]
        left, right = (
            flow.source(name, frame, event_time="ts", slack="5 seconds").key_by("k")
            for name, frame in zip(("left", "right"), frames, strict=True)
        )
        between = ("-2 seconds", "3 seconds")
        pairs = left.join(right, between=between, suffix="_r", spread=8, name="j")
        flow.sink("out", pairs, FakeSink())
        self.flow, self.rng, self.root = flow.compile(resolver(flow)), rng, root
        self.storage = CheckpointStorage.open(str(root / "checkpoint"))
        self.batches: list[dict[str, list[tuple[str, int, int]]]] = []
        self.happens = ""
        self.done = Counter[str]()
        self.start()

    def start(self) -> None:
        """Start from the checkpoint, on some executors."""
        self.executors = {
            f"e{n}": int(self.rng.integers(1, 3)) for n in self.rng.permutation(4)[:2]
        }
        self.run = LocalRun(
            self.flow,
            self.storage,
            executors=self.executors,
            retain_epochs=100,
            settings=Lanes(local_dir=str(self.root / "local")),
        )
        self.run.loop.at_step = self.at_step

    def at_step(self, step: str, _epoch: int) -> None:
        """Let something happen in an epoch, once."""
        what, _, when = self.happens.partition(" ")
        if step != when:
            return
        self.happens = ""
        self.done[what] += 1
        if what == "dies":
            raise DiedError
        reason = "it was to come to nothing"
        raise AttemptLostError(reason)

    def change(self) -> None:
        """Spread the hot key otherwise, migrate, or lose an executor."""
        draw = self.rng.random()
        orders = self.run.epochs.times.spreading["j"]
        if draw < 0.5:
            taken = orders.spreads.grid_of(HASH).parts
            rows, columns = ((3, 1), (1, 4), (2, 2))[int(self.rng.integers(0, 3))]
            free = [part for part in range(1, 40) if part not in taken]
            parts = self.rng.choice(free, rows * columns, replace=False).tolist()
            grid = Grid(rows=rows, columns=columns, parts=tuple(parts))
            if taken != WHOLE.parts and self.rng.random() < 0.4:
                grid = WHOLE
            self.done["spread"] += orders.order(HASH, HOT, grid)
        elif draw < 0.7 and self.run.view.components["j"].migration is None:
            now = self.run.view.components["j"].assignment
            executor_of = self.rng.integers(0, len(now.executors), KEY_GROUPS).astype(np.int32)
            lane_of = (
                self.rng.integers(0, 4, KEY_GROUPS) % np.array(now.lanes)[executor_of]
            ).astype(np.int32)
            target = Assignment(
                version=now.version + 1,
                executors=now.executors,
                lanes=now.lanes,
                executor_of=executor_of,
                lane_of=lane_of,
            )
            strategy = (Strategy.LIVE, Strategy.STOP_THE_WORLD)[int(self.rng.integers(0, 2))]
            number = self.done["migrated"]
            self.run.coordinator.migrate(
                MigrationRequested(id=f"m{number}", component="j", target=target, strategy=strategy)
            )
            self.done["migrated"] += 1
        elif draw < 0.8:
            gone = sorted(self.executors)[int(self.rng.integers(0, 2))]
            self.executors = {n: of for n, of in self.executors.items() if n != gone}
            self.executors[f"n{self.done['lost']}"] = 2
            self.run.set_executors(self.executors)
            self.done["lost"] += 1

    def epoch(self) -> None:
        """Offer a batch, and offer it again to whoever comes after a driver that died."""
        second = 3 * len(self.batches)
        self.batches.append(
            {
                name: [
                    (
                        HOT if self.rng.random() < 0.5 else f"k{self.rng.integers(1, 5)}",
                        int(second * S + self.rng.integers(-5 * S, 3 * S)),
                        int(self.rng.integers(0, 50)),
                    )
                    for _ in range(number)
                ]
                for name, number in (("left", 24), ("right", 8))
            }
        )
        if self.rng.random() < 0.4:
            self.happens = ("lost planned", "lost staged", "dies staged", "dies committed")[
                int(self.rng.integers(0, 4))
            ]
        number = len(self.batches) - 1
        while (last := self.run.epochs.last_batch) is None or last.number < number:
            try:
                self.offer(number)
            except DiedError:
                self.start()

    def offer(self, number: int) -> None:
        """Run the epoch of a batch."""
        tables = {
            name: pa.Table.from_arrays(
                [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
                schema=SCHEMA,
            )
            for name, rows in self.batches[number].items()
        }
        rows = lane_inputs(self.run.flow, tables, partitions=2)
        self.run.epoch(rows, batch=BatchRef(number=number, digest=str(number)))

    def found(self) -> Counter[tuple[Any, ...]]:
        """Return the pairs that committed epochs have put out."""
        found: Counter[tuple[Any, ...]] = Counter()
        for epoch in range(self.run.log.latest_epoch + 1):
            for batch in staged_rows(self.run.log.record(epoch), self.storage).get("out", []):
                columns = [
                    (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                    for c in batch.columns
                ]
                found.update(zip(*columns, strict=True))
        return found

    def expected(self) -> Counter[tuple[Any, ...]]:
        """Return the pairs that there are."""
        rights = [row for batch in self.batches for row in batch["right"]]
        return Counter(
            (key, moment, value, at, other)
            for batch in self.batches
            for key, moment, value in batch["left"]
            for key_, at, other in rights
            if key == key_ and -2 * S <= at - moment <= 3 * S
        )


@pytest.mark.parametrize("seed", range(rounds(2, 3)))
def test_pairs_come_out_once_whoever_dies_while_keys_are_spread(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as root:
        history = History(Path(root), rng)
        for _ in range(16):
            history.change()
            history.epoch()
        with suppress(DiedError):
            for _ in history.run.run_until_idle():
                pass
        assert history.found() == history.expected()
        assert history.done["spread"] > 1, history.done
        assert history.done.total() > 5, history.done
