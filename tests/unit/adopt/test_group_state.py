"""`applyInPandasWithState`: functions with a ``GroupState``, by Spark's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from tests.unit.adopt.processors import Processed

from godwit.model.errors import CheckpointMismatchError, InvalidFlowError, UserFunctionError

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "k string, said string"
ROW = {"k": "a", "op": "", "x": 1}


def frame(key: Any, said: Any) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "said": [str(said)]})


def grouped(function: Any, **options: Any) -> Processed:
    return Processed(
        function, call="apply_in_pandas_with_state", state="n long", output=OUTPUT, **options
    )


def test_state_lasts_until_it_is_removed(tmp_path: Path) -> None:
    def count(key: Any, frames: Any, state: Any) -> Any:
        total = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        if total > 3:
            state.remove()
        else:
            state.update((total,))
        yield frame(key, (total, state.getOption))

    processed = grouped(count, run={"checkpoint": tmp_path / "c", "executors": 2})
    assert processed.epoch([ROW, ROW]) == [("a", "(2, (2,))")]
    assert processed.epoch([ROW]) == [("a", "(3, (3,))")]
    processed.run.close()
    processed = grouped(count, run={"checkpoint": tmp_path / "c"})
    assert processed.epoch([ROW]) == [("a", "(4, None)")]
    assert processed.run.state("op").num_rows == 0
    processed.run.close()
    with pytest.raises(CheckpointMismatchError, match="n was bigint, and is now int"):
        Processed(
            count,
            call="apply_in_pandas_with_state",
            state="n int",
            run={"checkpoint": tmp_path / "c"},
        )


def test_a_key_times_out_once_the_clock_is_past_the_time() -> None:
    def wait(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut:
            (empty,) = frames
            said = f"out {state.getOption} {len(empty)} {list(empty.columns)}"
            state.remove()
            return [frame(key, said)]
        state.update((len(next(iter(frames))),))
        state.setTimeoutDuration(2000)
        return []

    processed = grouped(wait, timeout="ProcessingTimeTimeout")
    processed.epoch([ROW, ROW])
    assert processed.epoch(advance="2 seconds") == []
    said = [("a", "out (2,) 0 ['k', 'op', 'x']")]
    assert processed.epoch(advance="1 millisecond") == said
    assert processed.epoch(advance="1 day") == []


def test_a_call_that_changes_nothing_leaves_the_time_out_as_it_is() -> None:
    def wait(key: Any, frames: Any, state: Any) -> Any:
        list(frames)
        if not state.exists:
            state.update((1,))
            state.setTimeoutDuration(1000)
        if state.hasTimedOut:
            state.update((state.get[0] + 1,))
        return [frame(key, f"{state.hasTimedOut} {state.get}")]

    processed = grouped(wait, timeout="ProcessingTimeTimeout")
    assert processed.epoch([ROW]) == [("a", "False (1,)")]
    assert processed.epoch([ROW]) == [("a", "False (1,)")]
    # An update without a time-out cancels it.
    assert processed.epoch(advance="2 seconds") == [("a", "True (2,)")]
    assert processed.epoch(advance="2 seconds") == []


def test_event_time_out_goes_by_the_watermark_and_late_rows_are_left_out() -> None:
    def wait(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut:
            state.remove()
            return [frame(key, f"out at {state.getCurrentWatermarkMs() % 60_000}")]
        seconds = [at.second for at in pd.concat(list(frames))["at"]]
        state.update((len(seconds),))
        state.setTimeoutTimestamp(1_704_067_200_000 + 6000)
        return [frame(key, seconds)]

    processed = grouped(
        wait,
        columns="k string, at timestamp",
        timeout="EventTimeTimeout",
        source={"event_time": "at", "slack": "0 seconds"},
    )

    def at(*seconds: int) -> list[dict[str, Any]]:
        return [{"k": "a", "at": f"2024-01-01 00:00:{s:02d}"} for s in seconds]

    assert processed.epoch(at(1, 6)) == [("a", "[1, 6]")]  # at 6 s it is not past 6 s
    assert processed.epoch([{"k": "b", "at": "2024-01-01 00:00:05"}, *at(6)]) == []
    assert sorted(processed.epoch([{"k": "c", "at": "2024-01-01 00:00:07"}])) == [
        ("a", "out at 7000"),
        ("c", "[7]"),
        ("c", "out at 7000"),
    ]
    with pytest.raises(UserFunctionError, match="INVALID_TIMEOUT_TIMESTAMP"):
        processed.epoch([{"k": "b", "at": "2024-01-01 00:00:10"}])


def test_keys_and_frames_have_the_types_of_arrow() -> None:
    def types(key: Any, frames: Any, state: Any) -> Any:
        (only,) = frames
        said = [type(key[0]).__name__, *map(str, only.dtypes), list(only.index)]
        yield pd.DataFrame({0: [str(key[0])], 1: [str(said)]})  # by position

    processed = Processed(
        types,
        call="apply_in_pandas_with_state",
        columns="k int, i int, j int",
        state="n long",
        output=OUTPUT,
    )
    rows = [{"k": 1, "i": 1, "j": 1}, {"k": 2, "i": 1, "j": None}]
    assert sorted(processed.epoch(rows)) == [
        ("1", "['int32', 'int32', 'int32', 'int32', [0]]"),
        ("2", "['int32', 'int32', 'int32', 'float64', [0]]"),
    ]


@pytest.mark.parametrize(
    ("returned", "condition"),
    [
        (lambda: pd.DataFrame({"k": ["a"], "said": ["b"]}), "iterable of pandas.DataFrame"),
        (lambda: 5, "iterable"),
        (lambda: [5], "iterator of pandas.DataFrame"),
        (lambda: [pd.DataFrame({"k": ["a"]})], "RESULT_COLUMN_SCHEMA_MISMATCH"),
    ],
)
def test_what_a_function_may_not_return_fails_the_epoch(returned: Any, condition: str) -> None:
    with pytest.raises(UserFunctionError, match=condition):
        grouped(lambda key, frames, state: returned()).epoch([ROW])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidFlowError, match="timeout='Never'"):
        grouped(lambda key, frames, state: [], timeout="Never")
    with pytest.raises(UserFunctionError, match="CANNOT_WITHOUT"):
        grouped(lambda key, frames, state: state.setTimeoutDuration(1)).epoch([ROW])
