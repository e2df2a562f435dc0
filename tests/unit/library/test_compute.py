"""``compute``: states side by side, three ways in, and errors that name operator and result."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.oracles.lane import Lane, grouped

from godwit.checkpoint.evolution import StateDescription
from godwit.library import aggregates as gw
from godwit.library.compute import ComputeOperator
from godwit.model.errors import (
    CheckpointMismatchError,
    EpochFailedError,
    InvalidFlowError,
    UserFunctionError,
)

KEYS = pa.schema({"plane": pa.string()})
INPUTS = pa.schema({"delay": pa.int64(), "note": pa.string()})


def operator(**aggregates: gw.Aggregate) -> ComputeOperator:
    return ComputeOperator(name="delays", keys=KEYS, inputs=INPUTS, aggregates=aggregates)


def batch(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "plane": pa.array([plane for plane, _ in rows], pa.string()),
            "delay": pa.array([delay for _, delay in rows], pa.int64()),
            "note": pa.array(["n"] * len(rows), pa.string()),
        }
    )


def test_columns_are_named_after_the_results() -> None:
    made = operator(total=gw.sum("delay"), mean=gw.mean("delay"))
    assert made.schema.values.names == ["total", "mean__sum", "mean__count"]
    assert made.output.names == ["plane", "total", "mean"]
    assert made.schema.keys == KEYS


def test_every_epoch_puts_out_the_keys_it_touched() -> None:
    lane = Lane(operator(total=gw.sum("delay"), flights=gw.count()))
    lane.epoch(batch(("a", 1), ("b", 5), ("a", None)))
    output = lane.epoch(batch(("b", 2), (None, 7))).output.to_pylist()
    assert sorted(output, key=str) == [
        {"plane": "b", "total": 7, "flights": 2},
        {"plane": None, "total": 7, "flights": 1},
    ]
    assert lane.results()[("a",)] == {"total": 1, "flights": 2}


def test_in_complete_mode_an_epoch_puts_out_every_key() -> None:
    made = ComputeOperator(
        name="o", keys=KEYS, inputs=INPUTS, aggregates={"n": gw.count()}, mode="complete"
    )
    lane = Lane(made)
    outputs = [lane.epoch(batch(*rows)).output for rows in ([("a", 1)], [("b", 1), ("b", 2)], [])]
    assert [sorted(of.column("n").to_pylist()) for of in outputs] == [
        [1],
        [1, 2],
        [1, 2],
    ]
    assert lane.results() == {("a",): {"n": 1}, ("b",): {"n": 2}}


def test_an_epoch_without_rows_gives_nothing() -> None:
    done = Lane(operator(n=gw.count(), top=gw.top_k("note", 2))).epoch(batch())
    assert (done.state.num_rows, done.output.num_rows) == (0, 0)


def test_prior_state_of_unknown_keys_is_not_looked_at() -> None:
    made = operator(total=gw.sum("delay"))
    groups, keys = grouped(batch(("a", 2), ("b", 3)).select(["plane"]))
    names = keys["plane"].to_pylist()
    state = made.update_states(
        groups,
        keys,
        batch(("a", 2), ("b", 3)).select(INPUTS.names),
        np.array([name == "a" for name in names]),
        pa.record_batch([pa.array([1000, 1000])], schema=made.schema.values),
        are_partial=False,
    )
    found = dict(zip(names, state["total"].to_pylist(), strict=True))
    assert found == {"a": 1002, "b": 3}


@pytest.mark.parametrize("counts", [[1, 1], [2, 1, 3], [7], [1, 8, 2, 5]])
def test_partials_of_a_key_merge_in_order_of_arrival_however_many(counts: list[int]) -> None:
    made = operator(first=gw.first("delay"), last=gw.last("delay"), all=gw.collect_set("delay"))
    parts = []
    arrived: dict[str, list[int]] = {}
    for turn in range(max(counts)):
        for key, count in enumerate(counts):
            if turn < count:
                parts.append(batch((f"k{key}", 100 * key + turn)))
                arrived.setdefault(f"k{key}", []).append(100 * key + turn)
    lane = Lane(made)
    lane.epoch_of_partials(parts)
    assert lane.results() == {
        (key,): {"first": values[0], "last": values[-1], "all": values}
        for key, values in arrived.items()
    }


def test_aggregates_may_read_key_columns_that_are_among_the_inputs() -> None:
    made = ComputeOperator(name="o", keys=KEYS, inputs=KEYS, aggregates={"n": gw.count("plane")})
    lane = Lane(made)
    lane.epoch_of_partials([batch(("a", 1), (None, 1)), batch(("a", 1))])
    assert lane.results() == {("a",): {"n": 2}, (None,): {"n": 0}}


def test_an_operator_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(operator(total=gw.sum("delay"), top=gw.top_k("note", 2))))
    lane = Lane(copy)
    lane.epoch(batch(("a", 4)))
    assert lane.results() == {("a",): {"total": 4, "top": ["n"]}}


def test_the_description_says_columns_and_aggregates() -> None:
    assert operator(a=gw.mean("delay"), b=gw.top_k("note", 2)).describe_state() == StateDescription(
        columns=(("a__sum", "double"), ("a__count", "int64"), ("b", "large_binary")),
        codec="arrow",
        type={
            "a": {
                "state": ["a__sum", "a__count"],
                "aggregate": {"aggregate": "mean", "column": "delay", "type": "double"},
            },
            "b": {
                "state": ["b"],
                "aggregate": {
                    "aggregate": "top_k",
                    "columns": ["note"],
                    "types": ["string"],
                    "k": 2,
                },
            },
        },
    )


def written(made: ComputeOperator, *rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    """State columns of the keys of some rows, in order of keys, as a program left them."""
    lane = Lane(made)
    lane.epoch(batch(*rows))
    states = [lane.store[key] for key in sorted(lane.store)]
    return pa.RecordBatch.from_pylist(states, schema=made.schema.values)


def test_reordered_results_find_their_state_by_name() -> None:
    before = operator(t=gw.sum("delay"), n=gw.count(), hi=gw.max("delay"))
    after = operator(n=gw.count(), hi=gw.max("delay"), t=gw.sum("delay"))
    upgrade = after.upgrade_from(before.describe_state())
    assert upgrade is not None
    brought = upgrade(written(before, ("a", 400), ("a", 7), ("b", 1)))
    assert brought.schema == after.schema.values
    assert brought.to_pylist() == [{"n": 2, "hi": 400, "t": 407}, {"n": 1, "hi": 1, "t": 1}]


def test_a_new_result_starts_empty_and_a_removed_one_is_let_go() -> None:
    before = operator(t=gw.sum("delay"), hi=gw.max("delay"))
    after = operator(n=gw.count(), mean=gw.mean("delay"), t=gw.sum("delay"))
    upgrade = after.upgrade_from(before.describe_state())
    assert upgrade is not None
    assert upgrade(written(before, ("a", 4))).to_pylist() == [
        {"n": 0, "mean__sum": None, "mean__count": 0, "t": 4}
    ]


def test_a_new_result_does_not_take_a_column_that_another_one_left() -> None:
    before = operator(a=gw.mean("delay"))
    after = operator(a__sum=gw.sum("delay"))
    upgrade = after.upgrade_from(before.describe_state())
    assert upgrade is not None
    assert upgrade(written(before, ("k", 4))).to_pylist() == [{"a__sum": None}]


def test_sums_of_windows_go_on_from_states_that_had_no_column_for_those_that_do_not_fit() -> None:
    before = operator(t=gw.sum("delay"), n=gw.count())
    after = ComputeOperator(
        name="delays",
        keys=KEYS,
        inputs=INPUTS,
        aggregates={"n": gw.count(), "t": gw.sum("delay", where="delay > 0")},
        narrow=False,
    )
    with pytest.raises(CheckpointMismatchError, match="where"):
        after.upgrade_from(before.describe_state())
    after = ComputeOperator(
        name="delays",
        keys=KEYS,
        inputs=INPUTS,
        aggregates={"n": gw.count(), "t": gw.sum("delay")},
        narrow=False,
    )
    upgrade = after.upgrade_from(before.describe_state())
    assert upgrade is not None
    states = upgrade(written(before, ("k", 4)))
    assert states.to_pylist() == [{"n": 1, "t": 4, "__godwit_high_t": None}]
    assert after.upgrade_from(after.describe_state()) is None


def test_a_sum_that_does_not_fit_names_the_key_and_the_remedy() -> None:
    lane = Lane(operator(total=gw.sum("delay")))
    lane.epoch(batch(("a", 1), ("b", 2**63 - 1)))
    with pytest.raises(
        EpochFailedError, match=r"the sum for key \('b',\) does not fit int64"
    ) as no:
        lane.epoch(batch(("a", 1), ("b", 1)))
    assert "decimal(28, 0)" in str(no.value)


def test_state_that_is_the_same_needs_no_upgrade() -> None:
    stored = operator(t=gw.sum("delay"), n=gw.count()).describe_state()
    assert operator(t=gw.sum("delay"), n=gw.count()).upgrade_from(stored) is None


def test_a_variance_and_a_standard_deviation_fit_each_others_state() -> None:
    variance = operator(a=gw.variance("delay"))
    deviation = operator(a=gw.stddev("delay", population=True))
    assert deviation.upgrade_from(variance.describe_state()) is None


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (gw.max("delay"), "result 't': aggregate.aggregate was 'sum' and is 'max'"),
        (gw.sum("other"), "result 't': aggregate.column was 'delay' and is 'other'"),
        (gw.sum("ratio"), "aggregate.type was 'int64' and is 'double'"),
    ],
)
def test_a_result_that_became_another_one_is_refused_with_the_difference(
    changed: gw.Aggregate, difference: str
) -> None:
    inputs = pa.schema({**dict(zip(INPUTS.names, INPUTS.types, strict=True)), "other": pa.int64()})
    inputs = inputs.append(pa.field("ratio", pa.float64()))

    def made(aggregate: gw.Aggregate) -> ComputeOperator:
        aggregates = {"n": gw.count(), "t": aggregate}
        return ComputeOperator(name="delays", keys=KEYS, inputs=inputs, aggregates=aggregates)

    with pytest.raises(CheckpointMismatchError) as caught:
        made(changed).upgrade_from(made(gw.sum("delay")).describe_state())
    assert difference in caught.value.message
    assert "a result name of its own" in caught.value.remedy


def test_an_overflow_names_operator_result_and_key() -> None:
    lane = Lane(operator(total=gw.sum("delay")))
    lane.epoch(batch(("a", 1), ("b", 2**63 - 1)))
    with pytest.raises(EpochFailedError) as caught:
        lane.epoch(batch(("a", 1), ("b", 1)))
    assert caught.value.message == (
        "Aggregate 'total' of operator 'delays': the sum for key ('b',) does not fit int64."
    )
    assert "decimal(28, 0)" in caught.value.remedy
    assert caught.value.context["key"] == ("b",)


def test_a_column_of_a_wrong_type_names_operator_and_result() -> None:
    with pytest.raises(InvalidFlowError) as caught:
        operator(total=gw.sum("note"))
    assert caught.value.message.startswith("Result 'total' of operator 'delays': sum('note')")
    assert caught.value.context["result"] == "total"


def test_an_operator_needs_aggregates() -> None:
    with pytest.raises(InvalidFlowError, match=r"'delays' has no aggregates.*Pass at least one"):
        operator()


@pytest.mark.parametrize(
    "aggregates",
    [{"plane": gw.count()}, {"m": gw.mean("delay"), "m__sum": gw.sum("delay")}],
)
def test_columns_of_one_name_are_refused(aggregates: dict[str, gw.Aggregate]) -> None:
    with pytest.raises(InvalidFlowError, match=r"several columns named.*names that differ"):
        operator(**aggregates)


class Spread(gw.Aggregator):
    """Largest minus smallest; null where nothing was seen."""

    state = pa.schema({"low": pa.int64(), "high": pa.int64()})
    output = pa.int64()

    def create(self, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.nulls(count, pa.int64())] * 2, schema=self.state)

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        lows, highs = states["low"].to_pylist(), states["high"].to_pylist()
        for group, value in zip(groups.tolist(), columns[0].to_pylist(), strict=True):
            if value is not None:
                lows[group] = value if lows[group] is None else min(lows[group], value)
                highs[group] = value if highs[group] is None else max(highs[group], value)
        return self._batch(lows, highs)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        def of(choose: Any, name: str) -> list[int | None]:
            pairs = zip(left[name].to_pylist(), right[name].to_pylist(), strict=True)
            return [choose((v for v in pair if v is not None), default=None) for pair in pairs]

        return self._batch(of(min, "low"), of(max, "high"))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return pa.array(
            [
                None if low is None else high - low
                for low, high in zip(
                    states["low"].to_pylist(), states["high"].to_pylist(), strict=True
                )
            ],
            pa.int64(),
        )

    def _batch(self, lows: list[int | None], highs: list[int | None]) -> pa.RecordBatch:
        return pa.record_batch(
            [pa.array(lows, pa.int64()), pa.array(highs, pa.int64())], schema=self.state
        )


def test_an_aggregate_of_the_user_works_like_a_built_in() -> None:
    lane = Lane(operator(spread=Spread("delay"), n=gw.count()))
    lane.epoch(batch(("a", 5), ("b", None), ("a", 2)))
    lane.epoch_of_partials([batch(("a", 9)), batch(("b", 1), ("a", 0)), batch(("a", 3))])
    assert lane.results() == {
        ("a",): {"spread": 9, "n": 5},
        ("b",): {"spread": 0, "n": 2},
    }


def broken(method: str, result: Any) -> gw.Aggregate:
    """Return an aggregate of which one function returns, or raises, something wrong."""

    def wrong(*_: object) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    made: gw.Aggregate = type("Broken", (Spread,), {method: wrong})("delay")
    return made


STATE = pa.record_batch([pa.nulls(1, pa.int64())] * 2, schema=Spread.state)
WRONG: list[tuple[str, Any, str, str]] = [
    ("create", None, "create() returned a value of type NoneType", "Return a pyarrow.RecordBatch"),
    ("update", [1], "update() returned a value of type list", "Return a pyarrow.RecordBatch"),
    ("update", STATE[:0], "update() returned 0 rows for 1 states", "one row for every state"),
    (
        "merge",
        STATE.select(["low"]),
        "merge() returned columns low: int64 where columns low: int64, high: int64 is declared",
        "Cast",
    ),
    ("finish", pa.array(["x"]), "finish() returned type string where type int64", "Cast"),
    ("finish", 7, "finish() returned a value of type int", "Return a pyarrow.Array"),
    ("update", ValueError("bad luck"), "update() raised ValueError: bad luck", "in wrong"),
]


@pytest.mark.parametrize(("method", "result", "what", "remedy"), WRONG)
def test_what_a_function_of_the_user_returns_is_checked(
    method: str, result: Any, what: str, remedy: str
) -> None:
    lane = Lane(operator(spread=broken(method, result)))
    with pytest.raises(UserFunctionError) as caught:
        lane.epoch_of_partials([batch(("a", 1)), batch(("a", 2))])
    assert "Aggregate 'spread' (Broken) of operator 'delays'" in caught.value.message
    assert what in caught.value.message
    assert remedy in caught.value.remedy
    assert pickle.loads(pickle.dumps(caught.value)).context == caught.value.context


@pytest.mark.parametrize("several", [0, 3, 40])
def test_states_are_merged_in_order_whether_few_or_most_have_several(several: int) -> None:
    sizes = np.ones(50, np.int64)
    sizes[7 : 7 + several] = 1 + np.arange(several) % 5
    starts = np.concatenate([[0], np.cumsum(sizes)])
    lasts = operator(rows=gw.count(), last=gw.last("delay"))
    rows = batch(*(("a", value) for value in range(starts[-1])))
    keys = rows.select(["plane"])
    states = lasts.aggregate_rows(rows, np.arange(starts[-1]), int(starts[-1]), lambda: keys)
    merged = lasts.merge_in_order(states, starts)
    counts, last = lasts.results(keys.slice(0, 50), merged)
    assert counts.to_pylist() == sizes.tolist()
    assert last.to_pylist() == (starts[1:] - 1).tolist()
