"""Facts about keys that have more rows than a lane should get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lane_flows import flow_of
from tests.support.manual_run import ManualRun
from tests.support.window_flows import WindowedRun

from godwit.engine.lane.packing import hot_hashes, mask_of_hot_rows, sample_positions
from godwit.engine.outcomes import hot_keys_of
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw
from godwit.operators.window_specs import hopping

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.engine.lane.messages import LaneReport

LANES = 8
KEY = pa.decimal128(19, 0)  # such keys are not told apart by a hash table before they are sent
ROWS = 12_000


def batch(rng: np.random.Generator, share: float, rows: int = ROWS) -> pa.RecordBatch:
    """Rows of which key 0 has a share, and each of the others one."""
    keys = rng.permutation(10 * rows)[:rows] + 1
    keys[rng.random(rows) < share] = 0
    return pa.record_batch(
        {"k": pa.array(keys).cast(KEY), "v": pa.array(rng.integers(0, 100, rows))}
    )


def run(root: Path, hot_keys: float, **aggregates: Any) -> ManualRun:
    aggregates = aggregates or {"n": gw.count(), "total": gw.sum("v")}
    flow = flow_of(lambda keyed: keyed.compute(**aggregates), 64, KEY)
    return ManualRun(flow, root, {"e": LANES}, settings=Lanes(hot_keys=hot_keys))


def busiest(reports: list[LaneReport]) -> float:
    """Rows and partial states that the busiest lane processed, beside the mean."""
    rows = [sum(done.load.rows.sum() for done in report.operators) for report in reports]
    return float(max(rows) / np.mean(rows))


@pytest.mark.parametrize("share", [0.3, 0.09])
def test_a_hot_key_reaches_its_lane_as_a_partial_state_of_each_sender(
    tmp_path: Path, share: float
) -> None:
    found, reports = {}, {}
    for hot_keys in (0.0, 0.1):
        rng = np.random.default_rng(7)
        lanes = run(tmp_path / str(hot_keys), hot_keys)
        for _ in range(3):
            _, reports[hot_keys] = lanes.play({0: [batch(rng, share), batch(rng, share)]})
        found[hot_keys] = lanes.held()
    assert found[0.1] == found[0.0]
    assert busiest(reports[0.1]) <= 1.3 < busiest(reports[0.0])


def test_results_that_mind_the_order_of_rows_are_those_of_rows_as_they_came(tmp_path: Path) -> None:
    ordered = {"first": gw.first("v"), "last": gw.last("v")}
    found = []
    for hot_keys in (0.0, 0.1):
        rng = np.random.default_rng(8)
        lanes = run(tmp_path / str(hot_keys), hot_keys, **ordered)
        for share in (0.3, 0.0, 0.02, 0.5):
            lanes.play({0: [batch(rng, share), batch(rng, 0.0), batch(rng, share, 100)]})
        found.append(lanes.held())
    assert found[0] == found[1]


def test_hot_keys_are_told_with_their_share_and_forgotten_when_they_cool(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    lanes = run(tmp_path, 0.1)
    _, reports = lanes.play({0: [batch(rng, 0.3), batch(rng, 0.1)]})
    (told,) = hot_keys_of(reports).values()
    assert list(told) == [json.dumps(["0"])]
    assert told[json.dumps(["0"])] == pytest.approx(0.2, abs=0.02)
    _, reports = lanes.play({0: [batch(rng, 0.0), batch(rng, 0.001)]})
    assert hot_keys_of(reports) == {}


def test_a_hot_key_of_many_panes_is_told_once(tmp_path: Path) -> None:
    build: Any = lambda keyed: keyed.window(hopping("8 seconds", every="2 seconds")).compute(  # noqa: E731
        n=gw.count(), v=gw.sum("v")
    )
    windows = WindowedRun(build, tmp_path, slack="1 hour")
    rows = [("hot" if i % 3 else f"k{i}", i * 10_000, 1) for i in range(6000)]
    windows.epoch(rows)
    (told,) = hot_keys_of(windows.reports).values()
    assert told == {json.dumps(["hot"]): pytest.approx(2 / 3)}
    windows.times.end_input()
    whole = [row for row in windows.epoch() if row[0] == "hot" and row[2] == 20_000_000]
    assert whole == [("hot", 12_000_000, 20_000_000, 533, 533)]


def test_what_is_looked_at_is_all_of_few_rows_and_some_of_many() -> None:
    assert len(sample_positions(1000)) == 0
    assert sample_positions(5000).tolist() == list(range(5000))
    some = sample_positions(1_000_003)
    assert len(set(some.tolist())) == len(some)
    assert some.min() < 1000
    assert some.max() > 999_000
    hashes = np.repeat([5, -3, 9], [50, 20, 930])
    assert hot_hashes(hashes, 0.05).tolist() == [5, 9]
    assert hot_hashes(hashes, 0.0).tolist() == []
    for wanted in (np.array([-3, 9]), np.arange(-3, 6)):
        assert mask_of_hot_rows(hashes, wanted).tolist() == np.isin(hashes, wanted).tolist()
