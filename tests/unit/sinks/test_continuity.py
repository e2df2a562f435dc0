"""Targets that do not go on from the checkpoint: noticed at the start, and what the user may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.epoch_rows import Committed, point

from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.sinks.continuity import Position, Way, continue_delivery, divergence_choice
from godwit.sinks.sink import Sink
from godwit.sinks.target_sink import is_shared

if TYPE_CHECKING:
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, SinkContext


class Ledger(Sink):
    """A target that is nothing but the points of its epochs."""

    def __init__(self, *points: HistoryPoint, keeps: bool = True, why_not: str | None = None):
        self.points, self._keeps, self._why_not = list(points), keeps, why_not

    @property
    def keeps_epochs(self) -> bool:
        return self._keeps

    def last_delivered(self) -> HistoryPoint | None:
        return self.points[-1] if self.points else None

    def cannot_roll_back(self) -> str | None:
        return self._why_not

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        left = [p for p in self.points if is_shared(p, epochs)]
        if (left[-1].epoch if left else -1) < min_epoch:
            raise SinkError("too few", remedy="")
        self.points = left

    def continue_after(self, point: HistoryPoint) -> None:
        self.points.append(point)

    def open(self, context: SinkContext) -> None:
        raise NotImplementedError

    def deliver(self, output: EpochOutput) -> None:
        raise NotImplementedError


def target(last: int, history: str = "h") -> Ledger:
    return Ledger(*(point(number, history) for number in range(last + 1)))


def go_on(
    sink: Sink,
    latest: int,
    way: Way = "refuse",
    *,
    before: int | None = None,
    history: str = "h",
    parted: dict[str, int] | None = None,
    **position: bool,
) -> str | None:
    epochs = Committed(latest_epoch=latest, history=history, parted=parted or {})
    known: dict[str, Any] = {"stays": True, "copied": False, **position}
    found = Position(before=latest - 1 if before is None else before, **known)
    return continue_delivery(sink, "out", epochs, found, way)


@pytest.mark.parametrize("last", [3, 4])
def test_a_target_has_the_last_epoch_or_the_one_before(last: int) -> None:
    assert go_on(target(last), 4) is None


def test_epochs_without_rows_are_not_missed() -> None:
    assert go_on(target(1), 4, before=1) is None


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (target(7), r"epochs up to 7, and the checkpoint ends with epoch 4"),
        (target(7, "other"), r"epochs up to 7 of another history, and the checkpoint ends"),
        (target(4, "other"), r"epochs up to 4 of another history"),
        (target(2), r"epochs up to 2, and epochs up to 3 were delivered to it"),
        (Ledger(HistoryPoint(query_id="", history="", epoch=-1, digest="")), "has nothing, and"),
        (Ledger(HistoryPoint(query_id="", history="", epoch=7, digest="")), "epochs up to 7"),
    ],
)
def test_a_target_that_does_not_go_on_is_refused_with_the_ways_out(
    sink: Sink, message: str
) -> None:
    with pytest.raises(SinkError, match=message) as caught:
        go_on(sink, 4)
    assert "new_writer" in caught.value.remedy
    behind = caught.value.context["divergence"] == "behind"
    assert ("roll_back" in caught.value.remedy) != behind


def test_an_epoch_of_an_earlier_version_goes_by_its_number() -> None:
    assert go_on(Ledger(HistoryPoint(query_id="", history="", epoch=4, digest="")), 4) is None


def test_a_target_that_is_ahead_is_rolled_back_to_the_checkpoint() -> None:
    sink = target(7)
    told = go_on(sink, 4, "roll_back")
    assert told is not None
    assert "rolled back to epoch 4" in told
    assert sink.points[-1] == point(4)


def test_a_target_is_rolled_back_to_where_the_copy_was_made() -> None:
    sink = target(7)
    told = go_on(sink, 2, "roll_back", history="backup", parted={"h": 2})
    assert told is not None
    assert sink.points[-1] == point(2)


def test_a_target_loses_nothing_where_epochs_would_be_missing_afterwards() -> None:
    sink = target(7, "other")
    with pytest.raises(SinkError, match="too few"):
        go_on(sink, 11, "roll_back", before=10, parted={"other": 5})
    assert len(sink.points) == 8


def test_what_a_target_cannot_take_back_is_not_offered() -> None:
    sink = Ledger(point(7), why_not="nobody knows which rows they are")
    with pytest.raises(SinkError) as caught:
        go_on(sink, 4)
    assert "nobody knows which rows they are" in caught.value.remedy
    assert "roll_back" not in caught.value.remedy
    with pytest.raises(SinkError, match="epochs up to 7"):
        go_on(sink, 4, "roll_back")
    assert sink.points == [point(7)]


def test_a_target_that_is_behind_cannot_be_rolled_back() -> None:
    with pytest.raises(SinkError, match="epochs up to 3 were delivered"):
        go_on(target(2), 4, "roll_back")


@pytest.mark.parametrize(
    ("sink", "options", "after"),
    [
        (target(7), {}, 4),
        (target(7), {"history": "backup", "parted": {"h": 4}}, 4),
        (target(7, "other"), {}, 3),  # the last epoch is in no history but this
        (target(1), {}, 3),  # the last epoch is not there
        (Ledger(), {"copied": True}, 4),
    ],
)
def test_a_new_writer_begins_after_what_the_target_has_of_the_checkpoint(
    sink: Ledger, options: dict[str, Any], after: int
) -> None:
    told = go_on(sink, 4, "new_writer", **options)
    assert told is not None
    assert f"a new writer after epoch {after}" in told
    assert sink.points[-1].epoch == after


def test_a_copy_does_not_write_where_its_original_does() -> None:
    with pytest.raises(SinkError, match="is that of the query it was copied from"):
        go_on(Ledger(), 4, copied=True)
    assert go_on(Ledger(), 4, copied=True, stays=False, before=-1) is None


def test_a_target_that_lost_everything_is_told_of() -> None:
    told = go_on(Ledger(), 4)
    assert told is not None
    assert "has nothing of this query, though epochs up to 3 had rows for it" in told
    assert go_on(Ledger(), 4, stays=False) is None  # another target


def test_sinks_that_keep_no_epochs_are_not_asked() -> None:
    assert go_on(Ledger(keeps=False), 4) is None


def test_a_checkpoint_without_epochs_is_behind_any_target() -> None:
    assert go_on(Ledger(), -1) is None
    with pytest.raises(SinkError, match="epochs up to 0, and the checkpoint has none"):
        go_on(target(0), -1)
    sink = target(0)
    go_on(sink, -1, "new_writer")
    assert sink.points[-1].epoch == -1


def test_a_way_may_be_given_for_one_sink() -> None:
    assert divergence_choice("roll_back", "a") == "roll_back"
    assert divergence_choice({"a": "new_writer"}, "a") == "new_writer"
    assert divergence_choice({"a": "new_writer"}, "b") == "refuse"
