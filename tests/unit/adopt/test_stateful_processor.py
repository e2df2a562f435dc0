"""`StatefulProcessor`: against PySpark's own tester, and rules that the tester does not have."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StructField, StructType
from tests.support.rounds import rounds
from tests.unit.adopt.processors import COLUMNS, OUTPUT, Obeying, Processed, Written, arrow

import godwit as gw
from godwit.adopt.spark_functions import RowColumns, SparkFunctionOperator
from godwit.adopt.spark_rows import read_spark_schema
from godwit.adopt.state_variables import Variable
from godwit.adopt.stateful_processor import spec_of, state_name
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError, UserFunctionError
from godwit.time.event_time import EpochTime

if TYPE_CHECKING:
    from pathlib import Path

OPS = ("update", "append", "put", "extend", "set", "remove", "register", "unregister", "clear")
NOW_MS = 1_704_067_200_000  # 2024-01-01 in UTC


def value_of(schema: Any, **options: Any) -> Any:
    """Declare a single value state."""

    def declare(self: Any, handle: Any) -> None:
        self.value = handle.getValueState("value", schema, **options)

    return declare


def says_before(self: Any, key: Any, rows: Any, _: Any) -> Any:
    """Say what was in the state, and write the last row's number."""
    yield Row(k=key[0], said=str(self.value.get()))
    self.value.update((list(rows)[-1].x,))


@pytest.mark.parametrize("seed", range(rounds(1, 3)))
def test_a_processor_does_what_it_does_under_pysparks_own_tester(seed: int, tmp_path: Path) -> None:
    tester_class = pytest.importorskip("pyspark.sql.streaming.tws_tester").TwsTester
    tester = tester_class(Obeying(), timeMode="ProcessingTime")
    draw = random.Random(seed)
    clock = NOW_MS
    tester.setProcessingTime(clock)
    options: dict[str, Any] = {"time_mode": "ProcessingTime"}
    run = {"executors": 2, "checkpoint": tmp_path / "c"}
    processed = Processed(Obeying(), run=run, **options)
    for epoch in range(12):
        seconds = draw.randrange(4)
        rows = [
            Row(k=draw.choice("abc"), op=draw.choice(OPS), x=draw.randrange(4))
            for _ in range(draw.randrange(1, 9))
        ]
        expected = []
        if seconds:
            clock += seconds * 1000
            expected += [tuple(row) for row in tester.setProcessingTime(clock)]
        for key in dict.fromkeys(row.k for row in rows):
            of_key = [row for row in rows if row.k == key]
            expected += [tuple(row) for row in tester.test(key, of_key)]
        said = processed.epoch(
            [row.asDict() for row in rows], f"{seconds} seconds" if seconds else None
        )
        assert sorted(said) == sorted(expected), (seed, epoch)
        if epoch == 5:
            processed.run.migrate(dict.fromkeys(range(8), "2"))
        if epoch == 8:  # a restart; the clock of the new run continues
            processed.run.close()
            now = dt.datetime.fromtimestamp(clock / 1000, dt.UTC)
            processed = Processed(Obeying(), run={**run, "now": now}, **options)


def test_values_are_fitted_to_their_schema_as_the_jvm_does() -> None:
    schema = "a int, b double, c string, d boolean, e decimal(5,2), f timestamp, g array<int>"

    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        when = dt.datetime(2024, 5, 1, 8, 0, 0, 5)
        self.value.update((2**31 + 5, 7, 12, "yes", None, when, [1, 2**32, None, "x"]))
        yield Row(k=key[0], said=str(self.value.get()))

    (said,) = Processed(Written(value_of(schema), body)).epoch([{"k": "a", "op": "", "x": 1}])
    when = repr(dt.datetime(2024, 5, 1, 8, 0, 0, 5))
    assert said[1] == f"(-2147483643, None, '12', None, None, {when}, [1, 0, None, None])"


def test_a_value_of_another_width_or_null_where_none_may_be_fails_the_epoch() -> None:
    strict = StructType([StructField("n", IntegerType(), nullable=False)])
    for schema, row, message in (
        ("a int", (1, 2), r"STRUCT_ARRAY_LENGTH_MISMATCH.* 1 fields are required while 2"),
        (strict, (None,), r"0th field 'n' of input row cannot be null"),
        ("a int", None, "not iterable"),
    ):

        def body(self: Any, key: Any, rows: Any, _: Any, row: Any = row) -> Any:
            self.value.update(row)
            return iter(())

        with pytest.raises(UserFunctionError, match=message):
            Processed(Written(value_of(schema), body)).epoch([{"k": "a", "op": "", "x": 1}])


def test_state_expires_by_spark_s_rules() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.value = handle.getValueState("v", "x long", ttlDurationMs=2000)
        self.list = handle.getListState("l", "x long", ttlDurationMs=2000)
        self.map = handle.getMapState("m", "i long", "x long", ttlDurationMs=2000)

    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        said = self.value.get(), list(self.list.get()), list(self.map.iterator())
        for row in rows:
            if row.op == "write":
                self.value.update((row.x,))
                self.list.appendValue((row.x,))
                self.map.updateValue((row.x,), (row.x,))
        yield Row(k=key[0], said=str(said))

    processed = Processed(Written(declare, body), time_mode="processingTime")
    write, read = [{"k": "a", "op": "write", "x": 1}], [{"k": "a", "op": "", "x": 0}]
    processed.epoch(write)
    assert processed.epoch(read, "1 second") == [("a", "((1,), [(1,)], [((1,), (1,))])")]
    processed.epoch([{"k": "a", "op": "write", "x": 2}])
    # Of the value, the second write is the only one; elements and items expire one by one.
    assert processed.epoch(read, "1 second") == [("a", "((2,), [(2,)], [((2,), (2,))])")]
    assert processed.epoch(read, "1 second") == [("a", "(None, [], [])")]
    for state in ("v", "m"):
        assert processed.run.state("op", state=state).num_rows == 0


@pytest.mark.parametrize(
    ("declare", "mode", "condition"),
    [
        (lambda s, h: h.registerTimer(5), "None", "INVALID_TIME_MODE"),
        (lambda s, h: h.registerTimer(5), "EventTime", "INVALID_HANDLE_STATE"),
        (lambda s, h: h.getValueState("v", "x int", 5), "EventTime", "MODE_TO_ASSIGN_TTL"),
        (lambda s, h: h.getListState("v", "x int", -5), "ProcessingTime", "TTL_DURATION_MUST_BE"),
        (lambda s, h: h.getMapState(" v", "x int", "x int"), "None", "INVALID_NAME"),
        (lambda s, h: [h.getValueState("v", "x int") for _ in "ab"], "None", "already exists"),
        (
            lambda s, h: [h.getValueState("v", "x int"), h.getListState("v", "x int")],
            "None",
            "DUPLICATE_STATE_VARIABLE_DEFINED",
        ),
        (lambda s, h: h.getValueState("v", "x int").update((1,)), "None", "v.update.*PRE_INIT"),
    ],
)  # fmt: skip
def test_what_init_may_not_do_is_refused_before_anything_starts(
    declare: Any, mode: str, condition: str
) -> None:
    with pytest.raises(UserFunctionError, match=condition):
        Processed(Written(declare, says_before), time_mode=mode)


def test_metrics_count_the_variables_by_sparks_names() -> None:
    class Several:
        def init(self, handle: Any) -> None:
            handle.getValueState("seen", "n int")
            handle.getListState("recent", "n int", 1000)
            handle.getMapState("by_name", "name string", "n int")
            handle.deleteIfExists("old")

        def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
            return iter(())

        def close(self) -> None:
            pass

    spec = spec_of(
        Several(),
        time_mode="ProcessingTime",
        pandas=False,
        initial=None,
        where="transformWithState",
        operator="several",
    )
    assert {name: count for name, count in spec.metrics.items() if count} == {
        "numDeletedStateVars": 1,
        "numValueStateVars": 1,
        "numListStateVars": 1,
        "numListStateWithTTLVars": 1,
        "numMapStateVars": 1,
    }


def test_what_a_call_may_not_do_fails_the_epoch_with_spark_s_condition() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.list = handle.getListState("numbers", "x long")
        self.gone = handle.getValueState("gone", "x long")
        handle.deleteIfExists("gone")

    for call, condition in (
        (lambda self: self.handle.registerTimer(1), "register_timer with invalid timeMode=None"),
        (lambda self: self.list.put([]), "EMPTY_LIST_VALUE.*StateName numbers"),
        (lambda self: self.handle.getValueState("w", "x int"), "invalid handle state=INITIALIZED"),
        (
            lambda self: self.gone.get(),
            "Error getting value state: Value state gone is not initialized",
        ),
    ):

        def body(self: Any, key: Any, rows: Any, _: Any, call: Any = call) -> Any:
            call(self)
            return iter(())

        with pytest.raises(UserFunctionError, match=condition):
            Processed(Written(declare, body)).epoch([{"k": "a", "op": "", "x": 1}])


def test_a_timer_that_was_set_for_the_past_fires_after_the_rows_of_the_epoch() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.value = handle.getValueState("v", "x long")

    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs() - row.x)
        yield Row(k=key[0], said=str(list(self.handle.listTimers())))

    def expired(self: Any, key: Any, times: Any, info: Any) -> Any:
        past = info.getExpiryTimeInMs() - NOW_MS
        if past == -2:  # neither makes a difference in this epoch
            self.handle.deleteTimer(NOW_MS - 1)
            self.handle.registerTimer(NOW_MS + 500)
        yield Row(k=key.k, said=f"{past} {list(self.handle.listTimers())}")

    processed = Processed(Written(declare, body, expired), time_mode="ProcessingTime")
    said = processed.epoch([{"k": "a", "op": "", "x": x} for x in (1, 2, 2)])
    assert said == [
        ("a", f"[{NOW_MS - 2}, {NOW_MS - 1}]"),
        ("a", f"-2 [{NOW_MS - 2}, {NOW_MS + 500}]"),
        ("a", f"-1 [{NOW_MS + 500}]"),
    ]
    assert processed.epoch(advance="1 second") == [("a", f"500 [{NOW_MS + 500}]")]


def test_event_time_timers_fire_at_the_watermark_and_late_rows_are_left_out() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.value = handle.getValueState("v", "x long")

    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        seconds = [row.at.second for row in rows]
        for second in seconds:
            self.handle.registerTimer(NOW_MS + second * 1000)
        watermark = times.getCurrentWatermarkInMs()
        yield Row(k=key[0], said=f"{seconds} {watermark and watermark - NOW_MS}")

    def expired(self: Any, key: Any, times: Any, info: Any) -> Any:
        yield Row(k=key[0], said=f"timer {info.getExpiryTimeInMs() - NOW_MS}")

    processed = Processed(
        Written(declare, body, expired),
        columns="k string, at timestamp",
        time_mode="EventTime",
        source={"event_time": "at", "slack": "2 seconds"},
    )

    def at(*seconds: int) -> list[dict[str, Any]]:
        return [{"k": "a", "at": f"2024-01-01 00:00:{s:02d}"} for s in seconds]

    # The watermark becomes 6 s.
    assert processed.epoch(at(5, 8)) == [("a", "[5, 8] 0"), ("a", "timer 5000")]
    # Rows are late by the watermark of the epoch before this one; now the watermark becomes 8 s.
    said = processed.epoch(at(6, 7, 10))
    assert said == [("a", "[7, 10] 6000"), ("a", "timer 7000"), ("a", "timer 8000")]
    assert processed.epoch(at(7, 8, 9)) == [("a", "[9] 8000")]


@pytest.mark.parametrize("pandas", [False, True])
def test_the_initial_state_comes_in_the_first_epoch_alone(pandas: bool, tmp_path: Path) -> None:
    def first(self: Any, key: Any, initial: Any, times: Any) -> None:
        number = int(initial.at[0, "n"]) if pandas else initial.n
        self.value.update((number,))

    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        import pandas as pd

        said = str(self.value.get())
        self.value.update((-1,))
        return [
            pd.DataFrame({"k": [key[0]], "said": [said]}) if pandas else Row(k=key[0], said=said)
        ]

    def run() -> Processed:
        return Processed(
            Written(value_of("n long"), body, initial=first),
            initial_state=arrow(n=[7, 8, 9], k=["a", "b", "c"]),
            pandas=pandas,
            run={"executors": 3, "checkpoint": tmp_path / "c"},
        )

    processed = run()
    rows = [{"k": key, "op": "", "x": 0} for key in "ad"]
    assert sorted(processed.epoch(rows)) == [("a", "(7,)"), ("d", "None")]
    processed.run.close()
    again = run()
    rows = [{"k": key, "op": "", "x": 0} for key in "abd"]
    assert sorted(again.epoch(rows)) == [("a", "(-1,)"), ("b", "(8,)"), ("d", "(-1,)")]


def test_frames_have_the_types_that_spark_s_worker_gives_them() -> None:
    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        (frame,) = list(rows)
        types = [str(dtype) for dtype in frame.dtypes]
        said = f"{list(frame.columns)} {types} {list(frame.index)} {frame.iloc[0, 2]}"
        frame["said"] = said
        yield frame[["said", "k"]]  # by name, in any order
        yield frame[["said", "k"]].iloc[:0]

    processed = Processed(
        Written(value_of("x long"), body), columns="k string, i int, t timestamp", pandas=True
    )
    said = processed.epoch([{"k": "a", "i": 1, "t": "2024-05-01 08:00"}] * 2)
    expected = "['k', 'i', 't'] ['object', 'int64', 'datetime64[ns]'] [0, 1] 2024-05-01 08:00:00"
    assert said == [("a", expected)] * 2


def test_a_changed_schema_goes_by_the_rules_of_evolution(tmp_path: Path) -> None:
    def epoch(schema: Any, row: Any) -> list[tuple[Any, ...]]:
        def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
            yield Row(k=key[0], said=str(self.value.get()))
            self.value.update(row)

        run = {"checkpoint": tmp_path / "c"}
        processed = Processed(Written(value_of(schema), body), run=run)
        said = processed.epoch([{"k": "a", "op": "", "x": 1}])
        processed.run.close()
        return said

    assert epoch("n int, t string", (5, "t")) == [("a", "None")]
    assert epoch("t string, n long, d date", ("u", 6, None)) == [("a", "('t', 5, None)")]
    assert epoch("n long", (7,)) == [("a", "(6,)")]
    with pytest.raises(CheckpointMismatchError, match="column n was bigint, and is now int"):
        epoch("n int", (1,))
    with pytest.raises(CheckpointMismatchError, match=r"column n was \w+, and is now timestamp"):
        epoch("n timestamp", (1,))


def test_delete_if_exists_deletes_the_state_of_an_earlier_version(tmp_path: Path) -> None:
    def epoch(names: str, *, deleted: str = "") -> str:
        def declare(self: Any, handle: Any) -> None:
            for name in deleted:
                handle.deleteIfExists(name)
            self.states = {name: handle.getValueState(name, "x long") for name in names}

        def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
            said = {name: state.get() for name, state in self.states.items()}
            yield Row(k=key[0], said=str(said))
            for state in self.states.values():
                state.update((1,))

        processed = Processed(Written(declare, body), run={"checkpoint": tmp_path / "c"})
        ((_, said),) = processed.epoch([{"k": "a", "op": "", "x": 1}])
        processed.run.close()
        return str(said)

    assert epoch("vw") == "{'v': None, 'w': None}"
    with pytest.raises(CheckpointMismatchError, match="no longer has 'v'"):
        epoch("w")
    assert epoch("w", deleted="v") == "{'w': (1,)}"
    assert epoch("w", deleted="v") == "{'w': (1,)}"
    assert epoch("vw") == "{'v': None, 'w': (1,)}"


def test_a_row_that_does_not_fit_the_output_names_the_key() -> None:
    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        yield Row(k=key[0], said=5 if key[0] == "b" else None)

    processed = Processed(Written(value_of("x long"), body))
    with pytest.raises(UserFunctionError, match=r"rows for key \('b',\) that do not fit"):
        processed.epoch([{"k": key, "op": "", "x": 1} for key in "abc"])


def test_columns_of_returned_rows_are_found_by_name_and_may_be_absent() -> None:
    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        yield Row(said="x", other=1, k=key[0])
        yield Row(k=key[0])

    processed = Processed(Written(value_of("x long"), body))
    assert processed.epoch([{"k": "a", "op": "", "x": 1}]) == [("a", "x"), ("a", None)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_mode": "Whenever"}, "UNKNOWN_TIME_MODE"),
        ({"output_mode": "Complete"}, "output_mode='Complete'"),
        ({"initial_state": arrow(n=[1])}, "lacks the key column 'k'"),
        ({"initial_state": 5}, "a value of type int"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFlowError, match=message):
        Processed(Written(value_of("x long"), says_before), **options)
    with pytest.raises(InvalidFlowError, match="a class, not a StatefulProcessor"):
        Processed(Obeying)


def test_names_of_variables_become_names_of_states_that_differ() -> None:
    names = ["count", "countState", "count_state", "timers", "_x", "x y", "ü", "Count", "x_timers"]
    names += ["x_count_x53_tate", "count_x53_tate", "x_"]
    made = [state_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(name.isascii() and name == name.lower() and name != "timers" for name in made)


def test_a_processor_without_state_runs() -> None:
    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        yield Row(k=key[0], said=str(len(list(rows))))

    processed = Processed(Written(lambda self, handle: None, body))
    assert processed.epoch([{"k": "a", "op": "", "x": 1}] * 3) == [("a", "3")]


def test_the_key_is_named_where_the_processor_fails() -> None:
    def body(self: Any, key: Any, rows: Any, _: Any) -> Any:
        raise ValueError("no such plane")

    processed = Processed(Written(value_of("x long"), body))
    with pytest.raises(UserFunctionError, match=r"raised ValueError for key \('a',\): no such"):
        processed.epoch([{"k": "a", "op": "", "x": 1}])


def test_calls_that_may_be_diverted_do_what_others_do() -> None:
    draw = random.Random(1)
    runs = []
    for diverts in (False, True):
        flow = gw.Flow("adopted", num_key_groups=8)
        rows: Any = flow.source("rows", gw.testing.stream(COLUMNS)).key_by("k")
        processor = Written(value_of("x long"), says_before)
        said = rows.transform_with_state(processor, output=OUTPUT, name="op")
        flow.sink("out", said, gw.sinks.memory())
        if diverts:
            flow.divert_errors("failed", said, gw.sinks.noop())
        runs.append(gw.testing.cluster(flow))
    for _ in range(3):
        drawn = [{"k": draw.choice("abcdef"), "op": "", "x": draw.randrange(99)} for _ in range(9)]
        for run in runs:
            run.epoch({"rows": drawn})
    one_call, general = (run.rows("out") for run in runs)
    assert one_call == general


def test_a_call_of_a_keyed_stream_that_there_is_none_of_suggests_another() -> None:
    flow = gw.Flow("f")
    keyed: Any = flow.source("rows", gw.testing.stream("k string")).key_by("k")
    with pytest.raises(AttributeError, match="has no 'transform_with'"):
        keyed.transform_with(Obeying(), output=OUTPUT)


def test_a_row_that_is_emitted_at_the_watermark_fails_the_batch_as_in_spark() -> None:
    operator: Any = SimpleNamespace(columns=RowColumns(emitted_time="t"), name="passing")
    times = pa.array([None, 5_000_000], pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_arrays([times], names=["t"])
    SparkFunctionOperator._check_emitted(operator, rows, EpochTime(closed=4_999_999))
    with pytest.raises(gw.errors.EpochFailedError, match="EMITTING_ROWS_OLDER_THAN_WATERMARK"):
        SparkFunctionOperator._check_emitted(operator, rows, EpochTime(closed=5_000_999))


def test_values_of_sparks_state_become_what_a_processor_would_have_written() -> None:
    days = dt.date(2024, 1, 2)
    value = Variable(
        kind="value", name="v", schema=_schema("a int, t timestamp, s struct<d: date>")
    )
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    own = value.stored({"a": 1, "t": moment, "s": {"d": days}})
    assert own == value.rows.to_record((1, moment, (days,)))
    listed = Variable(
        kind="list", name="l", schema=_schema("p array<map<string, int>>, d decimal(9,2)")
    )
    elements = [{"p": [[("k", 1)], None], "d": Decimal("1.50")}, {"p": None, "d": None}]
    assert listed.stored(elements) == [
        listed.rows.to_record(([{"k": 1}, None], Decimal("1.5"))),
        listed.rows.to_record((None, None)),
    ]
    items = Variable(
        kind="map",
        name="m",
        schema=_schema("b binary, f double"),
        key_schema=_schema("x int, y string"),
    )
    stored = items.stored([({"x": 1, "y": None}, {"b": b"\x00", "f": float("inf")})])
    assert stored == {items.keys.to_key((1, None)): items.rows.to_record((b"\x00", float("inf")))}


def _schema(text: str) -> str:
    """Return a schema as JSON."""
    return read_spark_schema(text, "The schema").json()
