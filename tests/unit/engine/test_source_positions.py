"""What the driver keeps of sources: positions, batches, lag; failures that harm no epoch."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.support.number_source import Numbers

import godwit as gw
from godwit.checkpoint.records import PLAYED, POSITIONS, BatchRef
from godwit.engine.source_positions import RecordedSources, SourcePositions, recorded_sources
from godwit.model.errors import SourceError
from godwit.sources.source import Lag, Split


def kept(*sources: Numbers, recorded: RecordedSources | None = None) -> tuple[Any, list[str]]:
    failures: list[str] = []
    positions = SourcePositions(
        {source.name: source for source in sources},
        recorded or RecordedSources(),
    )
    positions.on_failure = lambda what, error: failures.append(f"{what}: {error}")
    positions.open()
    return positions, failures


def test_a_batch_has_the_rows_of_all_sources_in_numbered_splits() -> None:
    positions, _ = kept(Numbers(4, name="a"), Numbers(0, name="b"), Numbers(5, name="c"))
    planned = positions.plan(2)
    assert [(s.number, s.source, s.split.what) for s in planned.splits] == [
        (0, "a", "0..2"),
        (1, "a", "2..4"),
        (2, "c", "0..2"),
        (3, "c", "2..5"),
    ]
    assert (planned.split_rows, planned.split_bytes) == (9, 9 * 24)
    assert planned.begins == {name: {"next": 0} for name in "abc"}
    ends = {"a": {"next": 4}, "b": {"next": 0}, "c": {"next": 5}}
    assert planned.ref == BatchRef(
        number=0,
        digest=POSITIONS,
        positions=ends,
        identities={name: f"numbers {name}" for name in "abc"},
    )
    assert positions.plan(2).ref == planned.ref  # until it is committed
    positions.committed(planned.ref)
    assert positions.plan(2) is None
    assert positions.positions == ends


def test_a_look_that_finds_nothing_copies_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    positions, _ = kept(Numbers(4))
    positions.committed(positions.plan(2).ref)

    def copied(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("godwit.engine.source_positions._normalised_position", copied)
    assert positions.plan(2) is None
    assert positions.reached({"numbers": {"next": 4}})


def test_positions_that_cannot_be_compared_are_compared_as_a_record_has_them() -> None:
    class Odd(dict[str, int]):
        def __eq__(self, _other: object) -> bool:
            raise ValueError("no")

        __hash__ = None

    source = Numbers(4)
    source.latest = lambda *_, **__: Odd(next=4)  # type: ignore[method-assign]
    positions, _ = kept(source)
    planned = positions.plan(2)
    assert planned.ref.positions == {"numbers": {"next": 4}}
    positions.committed(planned.ref)
    assert positions.plan(2) is None


def test_rows_are_unknown_where_one_split_does_not_say() -> None:
    source = Numbers(4)
    split = Split(rows=None, size_bytes=3, what="all", payload=None)
    source.splits = lambda *_: [split]  # type: ignore[method-assign]
    positions, _ = kept(source)
    planned = positions.plan(2)
    assert (planned.split_rows, planned.split_bytes) == (None, 3)


def test_what_is_no_list_of_splits_is_refused() -> None:
    for splits in (None, [1], "text"):
        source = Numbers(4)
        source.splits = lambda *_, splits=splits: splits  # type: ignore[method-assign]
        positions, _ = kept(source)
        with pytest.raises(SourceError, match="Source 'numbers' returned a value of type"):
            positions.plan(2)


@pytest.mark.parametrize("everything", [False, True])
def test_a_source_that_goes_backwards_is_refused_by_name(everything: bool) -> None:
    class CutOff(Numbers):
        def start(self) -> Any:
            return 0

        def latest(self, position: Any, **_: Any) -> Any:
            del position
            return self.count

        end = latest

        def splits(self, begin: Any, end: Any, parallelism: int) -> Any:
            return super().splits({"next": begin}, {"next": end}, parallelism)

    source = CutOff(1200)
    positions, _ = kept(source)
    positions.committed(positions.plan(2, everything=everything).ref)
    source.count = 80
    with pytest.raises(
        SourceError, match=r"'numbers' goes backwards.* read it to 1,200, .* ends at 80"
    ):
        positions.plan(2, everything=everything)
    assert positions.positions == {"numbers": 1200}


def test_a_call_that_has_not_returned_is_known_by_source_and_method() -> None:
    clock, told = [100.0], []

    class Slow(Numbers):
        def latest(self, position: Any, **limits: Any) -> Any:
            clock[0] += 30
            told.extend([positions.unanswered(30), positions.unanswered(31)])
            return super().latest(position, **limits)

    positions = SourcePositions({"numbers": Slow(4)}, RecordedSources(), now_s=lambda: clock[0])
    positions.open()
    positions.plan(2)
    assert told == ["source 'numbers' has not returned from latest for 30 s", None]
    assert positions.unanswered(0) is None


def test_a_source_that_returns_no_position_is_refused() -> None:
    class Forgetful(Numbers):
        def latest(self, position: Any, **_: Any) -> Any:
            del position

        end = latest

    positions, _ = kept(Forgetful(4))
    with pytest.raises(SourceError, match=r"Source 'numbers' returned None instead of a position"):
        positions.plan(2)
    with pytest.raises(SourceError, match=r"Source 'numbers' returned None instead of a position"):
        positions.fix_ends()


def test_a_source_that_wants_to_end_the_process_is_named() -> None:
    source = Numbers(4)
    source.latest = lambda *_, **__: sys.exit("no more")  # type: ignore[method-assign]
    positions, _ = kept(source)
    with pytest.raises(SourceError, match=r"Source 'numbers' could not say .* SystemExit: no more"):
        positions.plan(2)


@pytest.mark.parametrize(
    ("position", "other", "before"),
    [
        (1, 2, True),
        (2, 2, False),
        ({"a": 1, "b": 7}, {"a": 2, "b": 7}, True),
        ({"a": 1, "b": 8}, {"a": 2, "b": 7}, False),
        ({"a": 1}, {"a": 2, "b": 7}, False),
        ({"day": "mon", "row": 3}, {"day": "mon", "row": 4}, True),
        ({"day": "mon", "row": 3}, {"day": "sun", "row": 4}, False),
        ([2, 0], [1, 500], False),
        ([1, 400], [1, 500], True),
        ([[1], [2]], [[1], [3]], True),
        ([1], [1, 2], False),
        ("2024", "2025", False),
        (None, 3, False),
        (float("nan"), 3, False),
        (False, True, False),
    ],
)
def test_positions_are_compared_number_by_number(position: Any, other: Any, before: bool) -> None:
    assert Numbers(4).precedes(position, other) is before
    assert not Numbers(4).precedes(other, other)


def test_a_source_says_which_of_two_positions_is_the_earlier() -> None:
    class Ordered(Numbers):
        def latest(self, position: Any, **_: Any) -> Any:
            del position
            return {"next": self.count}

        def precedes(self, position: Any, other: Any) -> bool:
            return bool(position["next"] < other["next"])

    source = Ordered(9)
    positions, _ = kept(source)
    positions.committed(positions.plan(2).ref)
    source.count = 4
    with pytest.raises(SourceError, match=r"read it to {'read': 9}, .* at {'read': 4}\."):
        positions.plan(2)


def test_a_batch_after_rows_that_were_given_is_marked_like_them() -> None:
    positions, _ = kept(Numbers(4))
    given = positions.with_test_rows()
    assert (given.ref.digest, given.splits) == (PLAYED, ())
    positions.committed(given.ref)
    assert positions.plan(1).ref.digest == PLAYED
    beside = positions.with_test_rows(positions.plan(1))
    assert beside.ref.positions == {"numbers": {"next": 4}}


def test_lag_and_descriptions_fail_without_harm() -> None:
    one, other = Numbers(4, name="one"), Numbers(7, name="other")
    positions, failures = kept(one, other)
    assert positions.lags() == {"one": Lag(rows=4), "other": Lag(rows=7)}
    assert positions.described({"one": {"next": 2}}) == {"one": {"read": 2}}
    one.fails = {"lag": ValueError("no"), "describe": ValueError("never")}
    assert positions.lags() == {"one": Lag(), "other": Lag(rows=7)}
    assert positions.described({"one": {"next": 2}}) == {"one": {"position": {"next": 2}}}
    assert failures == [
        "asking source 'one' for its lag: ValueError: no",
        "describing source 'one': ValueError: never",
    ]


def test_a_source_that_cannot_be_opened_leaves_none_open() -> None:
    one, other = Numbers(name="one"), Numbers(name="other")
    other.fails["open"] = OSError("not there")
    with pytest.raises(SourceError, match="Source 'other' could not be opened: OSError: not there"):
        kept(one, other)
    assert one.calls[-1] == other.calls[-1] == ("close",)


def test_positions_are_found_by_name_and_by_what_is_read() -> None:
    last = BatchRef(
        number=6,
        digest=POSITIONS,
        positions={"a": 1, "b": 2, "c": 3, "d": 4},
        identities={"a": "numbers x", "b": "numbers y", "c": "", "d": "numbers z"},
    )
    sources = {"a": Numbers(name="x"), "new": Numbers(name="y"), "c": Numbers(name="anything")}
    found = recorded_sources(last, sources, "uri")
    assert found.positions == {"a": 1, "new": 2, "c": 3, "d": 4}
    assert found.renamed == {"b": "new"}
    assert (found.number, found.played) == (6, False)
    assert found.changes == (
        "source 'b' is 'new' now",
        "source 'd' is gone; its position stays in the checkpoint",
    )


class _Reporting(Numbers):
    def open(self, position: Any) -> None:
        super().open(position)
        self.report(f"{self.name} was opened")

    def latest(self, position: Any, **options: Any) -> Any:
        self.report("a column is new")
        return super().latest(position, **options)


def test_what_sources_report_is_passed_on_once_with_their_names() -> None:
    sequence = gw.sources.sequence(_Reporting(1, name="old"), _Reporting(2, name="new"))
    positions = SourcePositions({"a": _Reporting(4), "b": sequence}, RecordedSources())
    positions.open()
    reports: list[tuple[str, str]] = []
    positions.on_report = lambda source, message: reports.append((source, message))
    for _ in range(2):
        planned = positions.plan(1)
    assert set(reports) == {
        ("a", "numbers was opened"),
        ("a", "a column is new"),
        ("b", "old was opened"),
        ("b", "new was opened"),
        ("b", "a column is new"),
    }
    assert len(reports) == 5
    assert planned is not None


def test_what_a_source_reports_is_an_event_of_the_run() -> None:
    flow = gw.Flow("reports")
    counts = flow.source("rows", _Reporting(4)).key_by("key").compute(n=gw.count())
    flow.sink("counts", counts, gw.sinks.noop())
    with gw.testing.cluster(flow) as run:
        run.epoch()
        reported = [e for e in run.events if isinstance(e, gw.events.SourceReported)]
    assert [(e.source, e.message) for e in reported] == [
        ("rows", "numbers was opened"),
        ("rows", "a column is new"),
    ]
    assert all(event.is_warning for event in reported)


def test_a_source_that_changes_a_position_in_place_loses_no_rows() -> None:
    class Careless(Numbers):
        def latest(self, position: Any, **_: Any) -> Any:
            position["next"] = self.count
            return position

        def splits(self, begin: Any, end: Any, parallelism: int) -> Any:
            found = super().splits(dict(begin), dict(end), parallelism)
            begin["next"] = end["next"] = 99
            return found

    positions, _ = kept(Careless(4))
    for _attempt in range(2):
        planned = positions.plan(1)
        assert planned.split_rows == 4
        assert planned.begins == {"numbers": {"next": 0}}
        assert planned.ref.positions == {"numbers": {"next": 4}}
    positions.committed(planned.ref)
    assert positions.plan(1) is None
