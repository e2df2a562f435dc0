"""Named states are what plain dicts and lists would be, whatever happens to executors."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds
from tests.support.states_run import Model, Row, StatesRun

ROW = st.tuples(
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(
        [
            *("add", "total", "forget", "log", "push", "note", "list", "replace"),
            *("put", "put", "many", "few", "pop", "map", "empty", "nothing", "drop"),
        ]
    ),
    st.sampled_from(["x", "y", "", "ü"]),
    st.integers(0, 9),
)
STEP = st.fixed_dictionaries(
    {
        "rows": st.lists(ROW, max_size=10),
        "minutes": st.sampled_from([0, 0.5, 1, 2.5, 5]),
        "moved": st.none() | st.integers(0, 1000),
        "lost": st.booleans(),
        "restarted": st.booleans(),
    }
)


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 7), database=None)
@given(steps=st.lists(STEP, min_size=1, max_size=8))
def test_states_are_those_of_dicts_and_lists(steps: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = StatesRun(Path(root), executors={"a": 1, "b": 2})
        model = Model()
        for step in steps:
            if step["moved"] is not None:
                _move(run, step["moved"])
            if step["lost"]:
                run.run.lose("a")
            rows: list[Row] = step["rows"]
            assert run.epoch(rows, step["minutes"]) == model.epoch(rows, step["minutes"])
            if step["restarted"]:
                run.restart()
        # In the end everything that expires is gone, whatever was looked at.
        run.epoch([], 10)
        for state in ("total", "recent", "per_item"):
            assert run.entries(state) == 0
        keys = {key for step in steps for key, *_ in step["rows"]}
        every = [(key, op, "x", 0) for key in sorted(keys) for op in ("total", "list", "map")]
        assert run.epoch(every) == model.epoch(every, 10)


def _move(run: StatesRun, seed: int) -> None:
    """Deal the key groups out anew."""
    rng = np.random.default_rng(seed)
    before = run.run.assignment
    executor_of = rng.integers(0, 2, before.num_key_groups).astype(before.executor_of.dtype)
    lane_of = executor_of * rng.integers(0, 2, before.num_key_groups).astype(executor_of.dtype)
    run.run.assignment = replace(before, executor_of=executor_of, lane_of=lane_of)
