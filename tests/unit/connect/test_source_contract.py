"""`gw.testing` reads sources of Godwit's own, from positions that commit records keep."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.number_source import Numbers, PartlyUnreadable

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import decode_record, encode_commit
from godwit.checkpoint.records import PLAYED, POSITIONS, BatchRef, CommitRecord
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.engine.outputs import staged_sinks
from godwit.local import LocalRun
from godwit.model.errors import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    GodwitError,
    InvalidFlowError,
    InvalidInputError,
    SourceError,
    UserFunctionError,
)
from godwit.model.events import BackgroundFailed, FlowChanged, RowsUnreadable
from godwit.sinks.simple_sinks import NoopSink

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

DAY = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def sums(source: Any, name: str = "numbers", **options: Any) -> gw.Flow:
    flow = gw.Flow("sums", num_key_groups=8)
    numbers = flow.source(name, source, **options)
    totals = numbers.key_by("key").compute(name="totals", n=gw.count(), total=gw.sum("number"))
    flow.sink("totals", totals, gw.sinks.noop())
    return flow


def totals_of(run: gw.testing.Run) -> dict[str, tuple[int, int]]:
    rows = run.current("totals").to_pylist()
    return {row["key"]: (row["n"], row["total"]) for row in rows}


def expected(source: Numbers, count: int | None = None) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for number in range(source.count if count is None else count):
        n, total = found.get(source.key_of(number), (0, 0))
        found[source.key_of(number)] = (n + 1, total + number)
    return found


def last_batch(checkpoint: Path) -> BatchRef:
    latest = CommitLog.open_read_only(CheckpointStorage.open(str(checkpoint))).latest
    assert latest is not None
    assert latest.last_batch is not None
    return latest.last_batch


def test_a_source_is_read_epoch_by_epoch_until_nothing_is_left() -> None:
    source = Numbers(100, most=30)
    played = gw.testing.run(sums(source), executors={"1": 2, "2": 1})
    assert totals_of(played) == expected(source)
    assert [outcome.rows_in for outcome in played.epochs] == [30, 30, 30, 10]
    assert source.calls[0] == ("open", None)
    assert source.calls[-1] == ("close",)
    assert ("splits", {"next": 90}, {"next": 100}, 3) in source.calls
    assert set(source.asked) == {("key", "number")}  # and no column that nobody reads


def test_a_read_ends_with_what_was_there_at_the_beginning() -> None:
    source = Numbers(10, most=5)

    def more(rows: pa.RecordBatch) -> pa.RecordBatch:
        source.count += 5
        return rows

    source.at_read = more
    played = gw.testing.run(sums(source))
    assert totals_of(played) == expected(source, 10)


def test_epochs_and_their_rows_can_be_bounded() -> None:
    source = Numbers(100)
    played = gw.testing.run(sums(source), rows_per_epoch=40)
    assert [outcome.rows_in for outcome in played.epochs] == [40, 40, 20]
    source = Numbers(100, most=7)
    played = gw.testing.run(sums(source), epochs=3)
    assert [outcome.rows_in for outcome in played.epochs] == [7, 7, 7]


def test_rows_that_cannot_be_read_are_counted_and_go_to_a_sink_with_their_epoch() -> None:
    for rejects, sink in ((None, ""), (gw.sinks.noop(), "numbers_unreadable")):
        source = PartlyUnreadable(100, most=30, rejects=rejects)
        played = gw.testing.run(sums(source), executors={"1": 2, "2": 1})
        read = [number for number in range(100) if number % 7]
        assert sum(n for n, _ in totals_of(played).values()) == len(read)
        assert sum(total for _, total in totals_of(played).values()) == sum(read)
        told = [event for event in played.events if isinstance(event, RowsUnreadable)]
        assert [(event.rows, event.sink, event.is_warning) for event in told] == [
            (rows, sink, not sink) for rows in (5, 4, 4, 2)
        ]
        assert sum(outcome.rows_in for outcome in played.epochs) == len(read)
        if sink:
            bad = played.rows(sink)
            assert sorted(bad["number"].to_pylist()) == [*range(0, 100, 7)]
            assert bad["error"][0].as_py().endswith("is no number")


def test_rows_that_cannot_be_read_are_written_once_by_each_lane(tmp_path: Path) -> None:
    written: dict[int, int] = {}

    class Writer:
        target = str(tmp_path)

        def write(self, rows: pa.Table, *, epoch: int, place: int) -> None:
            assert place not in written, "what a lane writes again replaces what it has written"
            written[place] = rows.num_rows

    class Sink(NoopSink):
        wants_rows = True

        def lane_writer(self) -> Any:
            return Writer()

    class WithSinks(LocalRun):
        def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:
            return staged_sinks(flow)

    run = WithSinks(
        sums(PartlyUnreadable(100, rejects=Sink())).compiled(),
        CheckpointStorage.open(str(tmp_path / "checkpoint")),
        executors={"1": 4},
        settings=gw.Lanes(local_dir=str(tmp_path / "local")),
    )
    run.sources.open()
    assert run.read_epoch() is not None
    run.sources.close()
    assert sum(written.values()) == 15


def test_rows_that_cannot_be_read_have_the_columns_that_the_source_says() -> None:
    source = PartlyUnreadable(10, rejects=gw.sinks.noop())
    source.unreadable = pa.schema([("number", pa.int64())])
    with pytest.raises(GodwitError, match="not a record batch with the columns"):
        gw.testing.run(sums(source))
    for wrong, message in ((Numbers(3), "and reads all"), (PartlyUnreadable(3), "not a sink")):
        wrong.rejects = "out/"
        with pytest.raises(InvalidFlowError, match=message):
            gw.testing.run(sums(wrong))


def test_rows_that_are_given_stand_for_a_source() -> None:
    source = Numbers(100)
    played = gw.testing.run(sums(source), {"numbers": [{"key": "z", "number": 5}]})
    assert totals_of(played) == {"z": (1, 5)}
    assert source.calls == []


def test_rows_cannot_be_given_for_a_source_that_has_been_read() -> None:
    with gw.testing.cluster(sums(Numbers(3))) as run:
        run.epoch()
        with pytest.raises(InvalidInputError, match="'numbers', which has been read"):
            run.epoch({"numbers": [{"key": "z", "number": 5}]})


def test_an_epoch_reads_what_there_is_and_is_none_where_there_is_nothing() -> None:
    source = Numbers(4)
    with gw.testing.cluster(sums(source)) as run:
        assert run.epoch()["totals"].num_rows == 3
        assert run.epoch() == {}
        assert len(run.epochs) == 1
        source.count = 5
        assert run.epoch()["totals"].to_pylist() == [{"key": "b", "n": 2, "total": 5}]
        assert ("committed", {"next": 5}) in source.calls
    assert source.calls[-1] == ("close",)


def test_a_run_goes_on_from_the_position_in_the_checkpoint(tmp_path: Path) -> None:
    source = Numbers(50, most=20)
    gw.testing.run(sums(source), epochs=2, checkpoint=tmp_path)
    batch = last_batch(tmp_path)
    assert (batch.number, batch.digest) == (1, POSITIONS)
    assert batch.positions == {"numbers": {"next": 40}}
    assert batch.identities == {"numbers": "numbers numbers"}
    again = Numbers(50, most=20)
    played = gw.testing.run(sums(again), checkpoint=tmp_path)
    assert again.calls[:2] == [("open", {"next": 40}), ("committed", {"next": 40})]
    assert played.rows("totals").to_pylist() != []
    assert {r["key"]: (r["n"], r["total"]) for r in played.state("totals").to_pylist()} == expected(
        again
    )
    assert last_batch(tmp_path).number == 2


def test_where_a_source_starts_is_committed_though_there_are_no_rows(tmp_path: Path) -> None:
    played = gw.testing.run(sums(Numbers(0)), checkpoint=tmp_path)
    assert [outcome.rows_in for outcome in played.epochs] == [0]
    assert last_batch(tmp_path).positions == {"numbers": {"next": 0}}
    assert gw.testing.run(sums(Numbers(0)), checkpoint=tmp_path).epochs == []


def test_a_restart_in_the_same_process_opens_the_source_again() -> None:
    source = Numbers(10, most=4)
    with gw.testing.cluster(sums(source), executors=2) as run:
        run.epoch()
        run.kill("2")
        run.epoch()
        run.restart(executors=3)
        run.epoch()
        assert totals_of(run) == expected(source)
    assert [call for call in source.calls if call[0] in ("open", "close")] == [
        ("open", None),
        ("close",),
        ("open", {"next": 8}),
        ("close",),
    ]


def test_a_source_with_another_identity_is_refused(tmp_path: Path) -> None:
    gw.testing.run(sums(Numbers(5)), checkpoint=tmp_path)
    with pytest.raises(CheckpointMismatchError) as caught:
        gw.testing.run(sums(Numbers(5, name="others")), checkpoint=tmp_path)
    text = str(caught.value)
    assert "Source 'numbers' reads numbers others" in text
    assert "of a source that reads numbers numbers" in text


def test_a_source_with_another_name_is_known_by_what_it_reads(tmp_path: Path) -> None:
    flow = sums(Numbers(6, most=3), event_time="ts")
    gw.testing.run(flow, epochs=1, checkpoint=tmp_path)
    source = Numbers(6)
    played = gw.testing.run(sums(source, "renamed"), checkpoint=tmp_path)
    assert source.calls[0] == ("open", {"next": 3})
    assert last_batch(tmp_path).positions == {"renamed": {"next": 6}}
    (changed,) = [event for event in played.events if isinstance(event, FlowChanged)]
    assert "source 'numbers' is 'renamed' now" in changed.results


def both(*sources: tuple[str, Any]) -> gw.Flow:
    flow = gw.Flow("sums", num_key_groups=8)
    first, *others = (flow.source(name, source) for name, source in sources)
    united = first.union(*others) if others else first
    totals = united.key_by("key").compute(name="totals", n=gw.count(), total=gw.sum("number"))
    flow.sink("totals", totals, gw.sinks.noop())
    return flow


def test_a_source_may_leave_and_come_back(tmp_path: Path) -> None:
    def started(*names: str) -> tuple[gw.testing.Run, list[Numbers]]:
        sources = [Numbers(4, name=name) for name in names]
        flow = both(*((source.name, source) for source in sources))
        return gw.testing.run(flow, checkpoint=tmp_path), sources

    started("a", "b")
    played, _ = started("b", "c")
    (changed,) = [event for event in played.events if isinstance(event, FlowChanged)]
    assert set(changed.results) == {
        "source 'c' is new and is read from its start",
        "source 'a' is gone; its position stays in the checkpoint",
    }
    assert last_batch(tmp_path).positions == {name: {"next": 4} for name in "abc"}
    played, (a, c) = started("a", "c")
    assert played.epochs == []  # both were read to their ends
    assert a.calls[0] == ("open", {"next": 4})
    assert c.calls[0] == ("open", {"next": 4})


def test_sources_may_change_names(tmp_path: Path) -> None:
    def flow(a: str, b: str) -> gw.Flow:
        return both(("a", Numbers(5, name=a)), ("b", Numbers(8, name=b)))

    gw.testing.run(flow("x", "y"), epochs=1, checkpoint=tmp_path)
    swapped = both(("a", Numbers(8, name="y")), ("b", Numbers(5, name="x")))
    assert gw.testing.run(swapped, checkpoint=tmp_path).epochs == []
    with pytest.raises(CheckpointMismatchError, match="Source 'a' reads numbers y"):
        gw.testing.run(flow("y", "z"), checkpoint=tmp_path)


def test_rows_that_were_given_leave_a_checkpoint_that_says_so(tmp_path: Path) -> None:
    flow = both(("a", Numbers(4, name="x")), ("b", Numbers(4, name="y")))
    gw.testing.run(flow, {"a": [{"key": "z", "number": 5}]}, checkpoint=tmp_path)
    batch = last_batch(tmp_path)
    assert batch.digest == PLAYED
    assert batch.positions == {"b": {"next": 4}}


def test_maps_on_a_source_get_arrow_tables() -> None:
    def odd(table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(pc.bit_wise_and(table["number"], 1), 1)).select(
            ["number", "key"]
        )

    flow = gw.Flow("odd", num_key_groups=8)
    numbers = flow.source("numbers", Numbers(20))
    flow.sink(
        "totals",
        numbers.map(odd).key_by("key").compute(n=gw.count(), total=gw.sum("number")),
        gw.sinks.noop(),
    )
    played = gw.testing.run(flow, executors=2)
    assert sum(n for n, _ in totals_of(played).values()) == 10
    assert sum(total for _, total in totals_of(played).values()) == sum(range(1, 20, 2))


def test_a_map_that_fails_is_named_with_its_source() -> None:
    def broken(table: pa.Table) -> pa.Table:
        if table.num_rows:
            raise ValueError("no such thing")
        return table

    flow = gw.Flow("broken", num_key_groups=8)
    stream = flow.source("numbers", Numbers(20)).map(broken)
    flow.sink("totals", stream.key_by("key").compute(n=gw.count()), gw.sinks.noop())
    with pytest.raises(UserFunctionError, match="Map 'broken' on source 'numbers' raised"):
        gw.testing.run(flow)


def test_windows_close_by_the_event_time_of_a_source() -> None:
    source = Numbers(130, most=50)
    flow = gw.Flow("hours", num_key_groups=8)
    numbers = flow.source("numbers", source, event_time="ts")
    hourly = numbers.key_by("key").window(gw.tumbling("1 hour")).compute(n=gw.count())
    flow.sink("hourly", hourly, gw.sinks.noop())
    played = gw.testing.run(flow, now=DAY + dt.timedelta(days=1))
    rows = played.rows("hourly").to_pylist()
    assert {(row["key"], row["window_end"], row["n"]) for row in rows} == {
        (key, DAY + dt.timedelta(hours=hour), 20) for key in "abc" for hour in (1, 2)
    }
    assert played.watermarks == {"numbers": DAY + dt.timedelta(minutes=129)}
    assert set(source.asked) == {("key", "ts")}


def test_a_map_may_compute_the_event_time_anew() -> None:
    def later(table: pa.Table) -> pa.Table:
        moved = pc.add(table["ts"], pa.scalar(9 * 3600 * 10**6, pa.duration("us")))
        return table.set_column(2, "ts", moved)

    flow = gw.Flow("hours", num_key_groups=8)
    numbers = flow.source("numbers", Numbers(130, most=50), event_time="ts")
    for name, stream in (("here", numbers), ("there", numbers.map(later))):
        windows = stream.key_by("key").window(gw.tumbling("1 hour"), name=name)
        flow.sink(name, windows.compute(n=gw.count()), gw.sinks.noop())
    played = gw.testing.run(flow, now=DAY + dt.timedelta(days=1))
    assert [row["n"] for row in played.rows("here").to_pylist()] == [20] * 6
    assert [row["n"] for row in played.rows("there").to_pylist()] == [20] * 6
    assert played.late == []
    assert played.watermarks == {
        "numbers": DAY + dt.timedelta(minutes=129),
        "numbers/there": DAY + dt.timedelta(minutes=129, hours=9),
    }


@pytest.mark.parametrize("method", ["open", "start", "end", "latest", "splits"])
def test_what_a_source_raises_is_told_with_its_name(method: str) -> None:
    source = Numbers(5)
    source.fails[method] = ValueError("on fire")
    with pytest.raises(SourceError, match=r"Source 'numbers' could not .*ValueError: on fire"):
        gw.testing.run(sums(source))
    assert source.calls[-1] == ("close",)


def test_a_commit_counts_though_the_source_cannot_be_told() -> None:
    source = Numbers(5)
    source.fails = {"committed": ValueError("on fire"), "close": ValueError("still on fire")}
    played = gw.testing.run(sums(source))
    assert totals_of(played) == expected(source)
    failed = [event for event in played.events if isinstance(event, BackgroundFailed)]
    assert [event.what for event in failed] == [
        "telling source 'numbers' of a commit",
        "closing source 'numbers'",
    ]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda rows: rows.slice(1), "returned 4 rows of 0..5, which has 5"),
        (lambda rows: rows.select(["number", "key"]), "returned columns 'number', 'key' instead"),
        (
            lambda rows: rows.to_pylist(),
            "returned a value of type list instead of a pyarrow",
        ),
        (
            lambda rows: rows.set_column(1, "number", rows["number"].cast(pa.int32())),
            "returned column 'number' as int32, but its schema has int64",
        ),
        (lambda _rows: 1 / 0, "could not be read .0..5.: ZeroDivisionError"),
    ],
)
def test_rows_that_break_the_contract_are_refused(changed: Any, says: str) -> None:
    source = Numbers(5)
    source.at_read = changed
    with (
        gw.testing.cluster(sums(source)) as run,
        pytest.raises(SourceError, match=f"Source 'numbers' {says}"),
    ):
        run.epoch()


def test_a_failed_epoch_is_read_again() -> None:
    source = Numbers(5)
    source.at_read = lambda _rows: 1 / 0
    with gw.testing.cluster(sums(source)) as run:
        with pytest.raises(SourceError):
            run.epoch()
        source.at_read = lambda rows: rows
        run.epoch()
        assert totals_of(run) == expected(source)


def test_a_position_that_no_record_can_hold_is_refused() -> None:
    for position in ({"next": object()}, 2**70, {b"key": 1}, DAY):
        source = Numbers(5)
        source.start = lambda position=position: position  # type: ignore[method-assign,misc]
        with pytest.raises(SourceError, match="a position that a commit record cannot store"):
            gw.testing.run(sums(source))


def test_a_flow_says_what_is_wrong_with_a_source() -> None:
    flow = gw.Flow("wrong")
    source = Numbers(5)
    flow.source("numbers", source)
    with pytest.raises(InvalidFlowError, match="the same object as source 'numbers'"):
        flow.source("more", source)
    with pytest.raises(InvalidFlowError, match="neither a DataFrame nor a source"):
        flow.source("others", Numbers)  # type: ignore[arg-type]
    with pytest.raises(InvalidFlowError, match="event time 'tz', but no such column"):
        gw.testing.run(sums(Numbers(5), event_time="tz"))


def test_explain_says_what_a_source_reads(capsys: pytest.CaptureFixture[str]) -> None:
    flow = gw.Flow("explained", num_key_groups=8)
    stream = flow.source("numbers", Numbers(5)).map(lambda table: table)
    flow.sink("n", stream.key_by("key").compute(n=gw.count()), gw.sinks.noop())
    flow.explain()
    text = " ".join(capsys.readouterr().out.split())
    assert "source 'numbers' (numbers numbers), after 1 map on the source side" in text


def given_rows(checkpoint: Path) -> None:
    stream = gw.testing.stream("key string, number long")
    gw.testing.run(sums(stream), {"numbers": [{"key": "a", "number": 1}]}, checkpoint=checkpoint)


def test_sources_do_not_go_on_where_dataframes_were_read(tmp_path: Path) -> None:
    given_rows(tmp_path)
    with pytest.raises(CheckpointMismatchError) as caught:
        gw.testing.run(sums(Numbers(5)), checkpoint=tmp_path)
    text = str(caught.value)
    assert "reads sources of Godwit's own ('numbers')" in text
    assert "of a flow that read DataFrames" in text


def test_dataframes_do_not_go_on_where_sources_were_read(tmp_path: Path) -> None:
    gw.testing.run(sums(Numbers(5)), checkpoint=tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"reads DataFrames \('numbers'\)"):
        given_rows(tmp_path)


def test_inspect_shows_how_far_sources_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gw.testing.run(sums(Numbers(5)), checkpoint=tmp_path)
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert 'source numbers numbers numbers, read up to {"next":5}' in told
    assert main(["checkpoint", "inspect", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == {
        "numbers": {"reads": "numbers numbers", "position": {"next": 5}}
    }


def test_a_long_position_is_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Numbers(0)
    source.start = lambda: {"next": 0, "files": bytes(30_000)}  # type: ignore[method-assign]
    source.latest = lambda position, **_: position  # type: ignore[method-assign]
    source.end = lambda position: position  # type: ignore[method-assign]
    gw.testing.run(sums(source), checkpoint=tmp_path)
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert len(told) < 5000
    assert "39.1 KiB" in told


def test_a_position_counts_elsewhere_if_a_user_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gw.testing.run(sums(Numbers(5)), checkpoint=tmp_path)
    moved = Numbers(8, name="moved")
    with pytest.raises(CheckpointMismatchError, match="keep-offsets PATH numbers"):
        gw.testing.run(sums(moved), checkpoint=tmp_path)
    assert main(["checkpoint", "keep-offsets", str(tmp_path), "number"]) == 2
    assert "Its sources are numbers." in capsys.readouterr().err
    assert main(["checkpoint", "keep-offsets", str(tmp_path), "numbers"]) == 0
    played = gw.testing.run(sums(moved), checkpoint=tmp_path)
    assert [outcome.rows_in for outcome in played.epochs] == [3]
    assert last_batch(tmp_path).identities == {"numbers": "numbers moved"}
    rows = {r["key"]: (r["n"], r["total"]) for r in played.state("totals").to_pylist()}
    assert rows == expected(moved)
    with pytest.raises(CheckpointMismatchError, match="reads numbers numbers"):
        gw.testing.run(sums(Numbers(8)), checkpoint=tmp_path)


def test_records_without_positions_are_read_and_odd_ones_are_refused() -> None:
    old = msgspec.msgpack.encode({"number": 3, "digest": "x"})
    batch = msgspec.msgpack.decode(old, type=BatchRef)
    assert (batch.positions, batch.identities) == ({}, {})
    for positions in ({"a": 1}, {"a": dt.datetime(2024, 5, 1, tzinfo=dt.UTC)}):
        identities = {"b": "x"} if positions == {"a": 1} else {"a": "x"}
        odd = BatchRef(number=0, digest="x", positions=positions, identities=identities)
        record = CommitRecord(epoch=0, run_id="r", batch=odd)
        with pytest.raises(CorruptCheckpointError, match="position"):
            decode_record(encode_commit(record)[0], CommitRecord, path="commits/000000000000.rec")


def test_files_are_read_where_the_last_run_left_them(tmp_path: Path) -> None:
    def write(name: str, first: int, stop: int) -> None:
        numbers = pa.array(range(first, stop), pa.int64())
        keys = pa.array(["abc"[number % 3] for number in range(first, stop)])
        pq.write_table(
            pa.table({"key": keys, "number": numbers}), tmp_path / "in" / name, row_group_size=7
        )

    (tmp_path / "in").mkdir()
    write("1.parquet", 0, 40)
    flow = sums(gw.sources.parquet(tmp_path / "in"))
    played = gw.testing.run(flow, epochs=1, checkpoint=tmp_path / "ck", executors=2)
    write("0.parquet", 40, 55)
    with gw.testing.cluster(flow, checkpoint=tmp_path / "ck") as run:
        while run.epoch():
            pass
        rows = {r["key"]: (r["n"], r["total"]) for r in run.state("totals").to_pylist()}
    assert rows == expected(Numbers(55))
    assert sum(outcome.rows_in for outcome in (*played.epochs, *run.epochs)) == 55


def test_a_source_that_another_query_reads_is_refused_until_that_one_ends(tmp_path: Path) -> None:
    source = gw.sources.memory("key string, number long", [("a", 1)])
    with gw.testing.cluster(sums(source), checkpoint=tmp_path / "one") as one:
        one.epoch()
        with pytest.raises(SourceError, match="the same object") as refused:
            gw.testing.run(sums(source), checkpoint=tmp_path / "two")
        assert "Create a source for each query" in refused.value.remedy
        one.restart()
        assert one.state("totals").num_rows == 1
    assert gw.testing.run(sums(source), checkpoint=tmp_path / "two").state("totals").num_rows == 1


def timed(own: Numbers, frame: str = "frame") -> gw.Flow:
    flow = gw.Flow("timed", num_key_groups=8)
    framed = flow.source(
        frame, gw.testing.stream("key string, number long, ts timestamp"), event_time="ts"
    )
    both = framed.union(flow.source("own", own, event_time="ts"))
    counted = both.key_by("key").window(gw.tumbling("10 minutes"), name="w").compute(n=gw.count())
    flow.sink("counts", counted, gw.sinks.noop())
    return flow


def test_a_window_waits_for_both_kinds_of_sources_over_restarts_and_new_names(
    tmp_path: Path,
) -> None:
    def row(minute: int) -> dict[str, Any]:
        return {"key": "a", "number": minute, "ts": DAY + dt.timedelta(minutes=minute)}

    own = Numbers(31, keys=1)
    with gw.testing.cluster(timed(own), checkpoint=tmp_path) as run:
        run.epoch({"frame": [row(3)]})
        assert run.rows("counts").num_rows == 0
    with gw.testing.cluster(timed(own, "renamed"), checkpoint=tmp_path) as run:
        out = run.epoch({"renamed": [row(25)]})["counts"].to_pylist()
        assert [window["n"] for window in out] == [11, 10]


def test_a_source_does_not_take_the_place_of_one_of_the_other_kind(tmp_path: Path) -> None:
    def flow_of(own: str, frame: str) -> gw.Flow:
        flow = gw.Flow("kinds", num_key_groups=8)
        framed = flow.source(frame, gw.testing.stream("key string, number long, ts timestamp"))
        both = framed.union(flow.source(own, Numbers(3)))
        flow.sink("t", both.key_by("key").compute(name="t", n=gw.count()), gw.sinks.noop())
        return flow

    gw.testing.run(flow_of("a", "b"), {"b": []}, checkpoint=tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"reads sources of Godwit's own \('b'\)"):
        gw.testing.run(flow_of("b", "a"), {"a": []}, checkpoint=tmp_path)
