"""Input is the same for every run, and shifts as the scenario says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from godwit.columns.hashing import hash_keys
from godwit.model.assignment import even_assignment
from godwit.ops.demo import scenarios
from godwit.ops.demo.recording import Recording, ScenarioRun
from godwit.ops.demo.scenarios import (
    KEY_GROUPS,
    SCENARIOS,
    imbalance,
    slow_rows,
    write_files,
)
from godwit.ops.plots import scenario_figure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_gives_the_same_files_in_the_order_of_their_age(
    name: str, tmp_path: Path
) -> None:
    made = [
        write_files(SCENARIOS[name], tmp_path / run, seconds=6, seed=seed)
        for run, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, again, other = ([pq.read_table(path) for _, path, _ in files] for files in made)
    assert first == again
    assert first != other
    ages = [path.stat().st_mtime for _, path, _ in made[0]]
    assert ages == sorted(set(ages))
    values = pa.concat_tables(first)["v"].to_pylist()
    assert values == list(range(sum(count for _, _, count in made[0])))


def test_hot_keys_are_of_one_executor_and_jump_to_another(tmp_path: Path) -> None:
    scenario = SCENARIOS["skew"]
    files = write_files(scenario, tmp_path, seconds=12, seed=1)
    first = even_assignment(KEY_GROUPS, ["0", "1", "2", "3"], [1] * 4)
    busiest = []
    for jump in range(scenario.jumps):
        part = files[jump * 16 : (jump + 1) * 16]
        keys = pa.concat_tables([pq.read_table(path) for _, path, _ in part])["k"]
        groups = hash_keys(pa.record_batch({"k": keys.combine_chunks()})) % KEY_GROUPS
        share = Counter(first.executor(int(g)) for g in groups)
        (owner, most), *_ = share.most_common()
        assert most > 0.6 * len(keys)
        busiest.append(owner)
    assert len(set(busiest)) == scenario.jumps


def test_the_rate_rises_in_the_middle_half_only(tmp_path: Path) -> None:
    files = write_files(SCENARIOS["surge"], tmp_path, seconds=12, seed=1)
    rates = [sum(c for at_s, _, c in files if s <= at_s < s + 3) / 3 for s in (0, 3, 6, 9)]
    assert rates == [600, 2400, 2400, 600]


def test_the_function_counts_and_is_slow_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(scenarios, "_LOOK_S", 0.0)
    monkeypatch.setattr(scenarios, "current_executor", lambda _expected: "3")
    slow = tmp_path / "slow"
    state: list[int] = []
    rows: Any = type("Rows", (list,), {"column": lambda self, _name: list(self)})([1, 2, 3])
    assert list(slow_rows(str(slow), (7,), rows, state)) == [(7, 3, 6)]
    slow.write_text("2 3")
    assert list(slow_rows(str(slow), (7,), rows, state)) == [(7, 6, 12)]
    slow.write_text("3 3")
    assert list(slow_rows(str(slow), (7,), rows, state)) == [(7, 9, 18)]
    assert slept == pytest.approx([0.003, 0.003, 0.009])


def test_delays_are_those_of_rows_and_not_of_files() -> None:
    run = ScenarioRun(controlled=False, recording=Recording(started_s=0.0, rows_in_all=100))
    assert scenarios._figures(run)["delay_s_99th"] == 0.0
    run.delays += [(10, 9.0), (90, 1.0)]
    figures = scenarios._figures(run)
    assert figures["delay_s_mean"] == pytest.approx(1.8)
    assert figures["delay_s_99th"] == 9.0


def test_imbalance_is_the_busiest_lane_over_the_mean_of_those_that_stay() -> None:
    def executor(busy_ms: float, lanes: int = 1, *, draining: bool = False) -> dict[str, Any]:
        return {"busyMs": busy_ms, "lanes": lanes, "draining": draining}

    assert imbalance({"0": executor(30), "1": executor(10)}) == 1.5
    assert imbalance({"0": executor(40, 2), "1": executor(20)}) == 1.0
    assert imbalance({"0": executor(30), "1": executor(99, draining=True)}) == 1.0
    assert imbalance({}) == imbalance({"0": executor(0)}) == 1.0


def test_the_picture_has_both_runs_over_time() -> None:
    runs = []
    for controlled in (False, True):
        recording = Recording(started_s=0.0, rows_in_all=10)
        recording.mark("hot keys jump", 1.0)
        for n in range(3):
            epoch: Any = SimpleNamespace(at_s=float(n), duration_ms=100.0 * n)
            recording.epochs.append(epoch)
        runs.append(
            ScenarioRun(
                controlled=controlled,
                recording=recording,
                imbalance=[1.0, 2.0, 1.0],
                executors=[2, 2, 4],
                moved_bytes=[0, 0, 2**20],
                behind_rows=[5, 9, 0],
            )
        )
    figure = scenario_figure(runs, title="skew: hot keys")
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "epoch time (s)",
        "rows behind",
        "busiest / mean",
        "executors",
        "MiB of state moved",
    ]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines[:2]] == ["controller off", "controller on"]
    assert list(np.asarray(figure.axes[4].lines[1].get_ydata())) == [0.0, 0.0, 1.0]
