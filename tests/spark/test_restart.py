"""A flow that is started again from its checkpoint gives what an undisturbed run gives."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext
from tests.spark.streams import (
    Inbox,
    by_epoch,
    comparable,
    counted,
    drain,
    rows_of,
    snapshots_of_small_changelogs,
)

import godwit as gw
from godwit.model import events
from godwit.model.errors import CheckpointError, UserFunctionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EPOCHS, KEYS = 6, 30


def generated(seed: int) -> list[list[tuple[int, int]]]:
    """Epochs of rows that are numbered per key, from 0."""
    rng = random.Random(seed)
    number = dict.fromkeys(range(KEYS), 0)
    epochs = []
    for _ in range(EPOCHS):
        rows = []
        for _ in range(100):
            key = rng.randrange(KEYS)
            rows.append((key, number[key]))
            number[key] += 1
        epochs.append(rows)
    return epochs


def numbered(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[int, int, int]]:
    for row in rows:
        if row.number != seen.get("next", 0):
            msg = f"key {key}: number {row.number} came where {seen.get('next', 0)} was due"
            raise ValueError(msg)
        seen["next"] = row.number + 1
        yield key[0], row.number, seen["next"]


class Example:
    """A flow with both kinds of state; `deep`: on two levels."""

    def __init__(
        self, inbox: Inbox, function: Callable[..., Any] = numbered, *, deep: bool = True
    ) -> None:
        self.flow = gw.Flow("example", num_key_groups=16)
        keyed = self.flow.source("rows", inbox.stream()).key_by("k")
        totals = keyed.compute(name="totals", total=gw.sum("number"), last=gw.last("number"))
        order = keyed.process(
            function, state=dict, output="k int, number long, next long", name="order"
        )
        streams = {"totals": totals, "order": order}
        if deep:
            streams["sizes"] = totals.key_by("last").compute(
                name="sizes", keys=gw.count(), sum=gw.sum("total")
            )
        self.sinks = {name: gw.sinks.memory() for name in streams}
        for name, stream in streams.items():
            self.flow.sink(name, stream, self.sinks[name])

    def results(self) -> dict[str, dict[int, Any]]:
        return {name: by_epoch(sink.epochs) for name, sink in self.sinks.items()}


@pytest.fixture(scope="module")
def undisturbed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, dict[int, Any]]]:
    """Checkpoint and results of a run over all epochs; every epoch stays readable."""
    directory = tmp_path_factory.mktemp("undisturbed")
    inbox = Inbox(spark=spark, directory=directory / "in", columns="k int, number long")
    inbox.put(*generated(1))
    example = Example(inbox)
    with snapshots_of_small_changelogs():
        drain(
            example.flow,
            directory / "ck",
            checkpointing=gw.Checkpointing(retain_epochs=100),
            lanes=gw.Lanes(snapshot_growth=0.01),
        )
    return directory / "ck", example.results()


def cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the next run find that many cores."""
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: number))


def test_the_undisturbed_run_gives_what_python_gives(
    undisturbed: tuple[Path, dict[str, dict[int, Any]]],
) -> None:
    total = dict.fromkeys(range(KEYS), 0)
    for epoch, rows in enumerate(generated(1)):
        last = dict(rows)
        for key, number in rows:
            total[key] += number
        expected = counted((key, total[key], last[key]) for key in last)
        assert undisturbed[1]["totals"][epoch] == expected
        assert undisturbed[1]["order"][epoch] == counted((k, n, n + 1) for k, n in rows)


def test_runs_one_after_the_other_with_other_numbers_of_lanes_give_what_one_run_gives(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: tuple[Path, dict[str, dict[int, Any]]],
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    epochs = generated(1)
    found: dict[str, dict[int, Any]] = {name: {} for name in undisturbed[1]}
    snapshot_bytes = 0
    for first, lanes in ((0, 2), (2, 1), (3, 5), (5, 3)):
        inbox.put(*epochs[first : {0: 2, 2: 3, 3: 5, 5: 6}[first]])
        with monkeypatch.context() as patched, snapshots_of_small_changelogs():
            cores(patched, lanes)
            example = Example(inbox)
            query = drain(example.flow, tmp_path / "ck", lanes=gw.Lanes(snapshot_growth=0.01))
        snapshot_bytes += sum(p["snapshotBytes"] for p in query.recentProgress)
        assert query.executors == tuple(f"local-{i}" for i in range(lanes))
        assert {len(a.executors) for a in query.placement.assignments.values()} == {lanes}
        started = next(e for e in query.events if isinstance(e, events.QueryStarted))
        assert started.resumed == (first > 0)
        for name, results in example.results().items():
            # The last committed epoch is delivered again at the start.
            for epoch, rows in results.items():
                assert found[name].setdefault(epoch, rows) == rows
    assert found == undisturbed[1]
    assert snapshot_bytes > 0


def test_state_is_readable_at_every_retained_epoch(
    spark: SparkSession, undisturbed: tuple[Path, dict[str, dict[int, Any]]]
) -> None:
    checkpoint = undisturbed[0]
    total = dict.fromkeys(range(KEYS), 0)
    count = dict.fromkeys(range(KEYS), 0)
    for epoch, rows in enumerate(generated(1)):
        for key, number in rows:
            total[key] += number
            count[key] += 1
        if epoch not in (0, 3):
            continue
        held = gw.read_state(spark, checkpoint, "order", epoch=epoch)
        assert held.columns == ["key_group", "k", "state"]
        assert {row["k"]: json.loads(row["state"])["next"] for row in held.collect()} == {
            key: number for key, number in count.items() if number
        }
    held = gw.read_state(spark, checkpoint, "totals")
    assert held.columns[:2] == ["key_group", "k"]
    assert {row[1]: row[2] for row in held.collect()} == total
    with pytest.raises(CheckpointError, match=r"Epoch 17 cannot be read .* epochs 0 to 5 are"):
        gw.read_state(spark, checkpoint, "totals", epoch=17)
    with pytest.raises(CheckpointError, match=r"no operator 'total'.* Did you mean 'totals'"):
        gw.read_state(spark, checkpoint, "total")
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        gw.read_state(spark, checkpoint.parent / "elsewhere", "totals")


def test_epochs_that_are_no_longer_retained_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put(*generated(2))
    drain(Example(inbox).flow, tmp_path / "ck", checkpointing=gw.Checkpointing(retain_epochs=2))
    assert gw.read_state(spark, tmp_path / "ck", "totals", epoch=4).count() == KEYS
    with pytest.raises(CheckpointError, match=r"Epoch 3 cannot be read .* epochs 4 to 5 are"):
        gw.read_state(spark, tmp_path / "ck", "totals", epoch=3)


def test_a_function_that_raises_commits_nothing_and_its_repair_gives_the_right_result(
    spark: SparkSession,
    tmp_path: Path,
    undisturbed: tuple[Path, dict[str, dict[int, Any]]],
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put(*generated(1))

    def broken(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[int, int, int]]:
        for row in rows:
            seen["next"] = row.number + 1
            if key[0] == 7 and row.number >= 9:
                ratio = 1 / (row.number - row.number)
                assert ratio
            yield key[0], row.number, seen["next"]

    example = Example(inbox, broken)
    with pytest.raises(UserFunctionError) as caught:
        drain(example.flow, tmp_path / "ck")
    text = str(caught.value)
    assert "Function 'broken' of operator 'order' raised ZeroDivisionError for key (7,)" in text
    assert "ratio = 1 / (row.number - row.number)" in text
    assert caught.value.context["operator"] == "order"
    assert caught.value.context["key"] == (7,)
    failed = len(example.sinks["order"].epochs)
    assert 0 < failed < EPOCHS
    before = {name: dict(results) for name, results in example.results().items()}
    assert before == {
        name: {e: rows for e, rows in results.items() if e < failed}
        for name, results in undisturbed[1].items()
    }
    with pytest.raises(CheckpointError, match=f"epochs 0 to {failed - 1} are retained"):
        gw.read_state(spark, tmp_path / "ck", "totals", epoch=failed)

    repaired = Example(inbox)
    drain(repaired.flow, tmp_path / "ck")
    after = {name: {**before[name], **results} for name, results in repaired.results().items()}
    assert after == undisturbed[1]


def test_a_run_of_a_new_checkpoint_does_not_see_the_state_of_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put([(1, 0), (2, 0)])
    for name in ("one", "two"):
        example = Example(inbox)
        drain(example.flow, tmp_path / name)
        assert comparable(sorted(rows_of(example.sinks["order"].table()))) == ((1, 0, 1), (2, 0, 1))
