"""The epoch loop takes its steps in one order, and repeats what is cut short by a loss alone."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.engine.cluster import AttemptLostError
from godwit.engine.loop import EpochLoop
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.engine.latency import SourceLatency
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView


class Outcome:
    """As much of an outcome as the loop reads."""

    rows_in, rows_out = 3, 2
    watermarks = MappingProxyType({"rows": -1, "rows/sum": 2_500})

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class RecordedEpochs:
    """Epochs and observer in one: a list of what happened, in order.

    Epochs fail where `fails` says.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fails: dict[str, BaseException] = {}  # step → raised once there
        self.held = 0  # times that epochs are held before they begin
        self.waits = True
        self.committed_epochs = 0
        self.now = 0.0
        self.coordinator = cast("Any", CoordinatorOf(self))
        self.loop: EpochLoop[str] = EpochLoop(self, self.coordinator, self)

    def deliver_late(self) -> None:
        """Deliver as late as the loop allows: when it waits for it."""
        self.loop = EpochLoop(self, self.coordinator, self, beside=lambda deliver: deliver)

    def note(self, step: str) -> None:
        self.steps.append(step)
        error = self.fails.pop(step, None)
        if error is not None:
            raise error

    # -- the work ---------------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        return self.committed_epochs

    def wait_while_held(self) -> bool:
        self.note("wait")
        return self.waits

    def regroup(self, physical_plan: object) -> None:
        assert physical_plan == "plan"

    def plan(
        self,
        epoch: int,
        batch: str | None,
        component_views: Mapping[str, ComponentView],
        _coordinator: object,
    ) -> None:
        assert component_views == {}
        self.note(f"plan {epoch}")
        self.batch = batch

    def run_stages(self) -> None:
        self.note(f"run {self.batch}")

    def commit(self) -> None:
        self.note("commit")
        self.committed_epochs += 1

    def outcome(self, _copies: object) -> EpochOutcome:
        outcome: EpochOutcome = cast("Any", Outcome(self.committed_epochs - 1))
        return outcome

    def deliver(self) -> None:
        self.note("deliver")

    def latencies(self) -> dict[str, SourceLatency]:
        return {}

    def remarks(self, _outcome: object) -> list[tuple[type[events.Event], dict[str, object]]]:
        return [(events.RowsLeftOut, {})]

    def now_s(self) -> float:
        self.now += 1
        return self.now

    # -- the observer -----------------------------------------------------------------------------

    def committed(self, _outcome: object, _component_views: object, took_s: float) -> None:
        assert took_s > 0
        self.note("observe the commit")

    def delivered(self, _outcome: object, _stopwatch: object, _latencies: object) -> None:
        self.note("observe the delivery")


class CoordinatorOf:
    """The coordinator of a story."""

    plan, copies = "plan", None

    def __init__(self, story: RecordedEpochs) -> None:
        self._story = story
        self.view = self
        self.components: dict[str, object] = {}

    @contextmanager
    def locked(self) -> Iterator[CoordinatorOf]:
        yield self

    def begin(self, _epoch: int) -> dict[str, ComponentView] | None:
        if self._story.held:
            self._story.held -= 1
            return None
        return {}

    def commit(self, _outcome: object) -> None:
        self._story.note("coordinator: commit")

    def abort(self, epoch: int, reason: str) -> None:
        self._story.note(f"coordinator: abort {epoch}, {reason}")

    def announce(self, kind: type[events.Event], **_values: object) -> None:
        self._story.note(kind.__name__)


WHOLE = [
    "plan 0",
    "run rows",
    "commit",
    "coordinator: commit",
    "observe the commit",
    "deliver",
    "observe the delivery",
    "EpochCommitted",
    "RowsLeftOut",
]


@pytest.fixture
def story() -> Iterator[RecordedEpochs]:
    made = RecordedEpochs()
    yield made
    assert not made.fails, "a failure that did not happen"


def test_an_epoch_is_committed_before_anybody_hears_of_it_and_delivered_after(
    story: RecordedEpochs,
) -> None:
    assert story.loop.run("rows") is not None
    assert story.steps == WHOLE


def test_steps_are_told_as_they_are_done(story: RecordedEpochs) -> None:
    story.loop.at_step = lambda step, epoch: story.note(f"{step} {epoch}")
    story.loop.run("rows")
    own = [step for step in story.steps if step not in WHOLE]
    assert own == ["planned 0", "staged 0", "committed 0", "delivered 0"]
    assert story.steps.index("planned 0") < story.steps.index("run rows")
    assert story.steps.index("commit") < story.steps.index("committed 0")
    assert story.steps.index("committed 0") < story.steps.index("coordinator: commit")


@pytest.mark.parametrize("step", ["plan 0", "run rows", "commit"])
def test_an_attempt_that_loses_an_executor_is_told_and_repeated_with_its_batch(
    story: RecordedEpochs, step: str
) -> None:
    story.fails[step] = AttemptLostError("executor 1 was lost")
    story.loop.run("rows")
    cut = WHOLE.index(step) + 1
    assert story.steps == [*WHOLE[:cut], "coordinator: abort 0, executor 1 was lost", *WHOLE]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt("wrong")])
def test_any_other_error_is_told_and_raised(story: RecordedEpochs, error: BaseException) -> None:
    story.fails["run rows"] = error
    with pytest.raises(type(error)):
        story.loop.run("rows")
    assert story.steps == ["plan 0", "run rows", "coordinator: abort 0, wrong"]


@pytest.mark.parametrize("step", ["observe the commit", "deliver"])
def test_what_fails_after_the_commit_is_no_failed_attempt(story: RecordedEpochs, step: str) -> None:
    story.fails[step] = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong"):
        story.loop.run("rows")
    assert story.steps == WHOLE[: WHOLE.index(step) + 1]
    assert story.next_epoch == 1


COMMITTED, DELIVERED = WHOLE[: WHOLE.index("deliver")], WHOLE[WHOLE.index("deliver") :]


def test_an_epoch_that_is_delivered_beside_the_next_is_so_before_that_one_commits(
    story: RecordedEpochs,
) -> None:
    story.deliver_late()
    story.loop.run("rows")
    assert story.steps == COMMITTED
    story.steps.clear()
    story.loop.run("rows")
    second = [step.replace("0", "1") for step in COMMITTED]
    assert story.steps == [*second[:2], *DELIVERED, *second[2:]]
    story.steps.clear()
    for _ in range(2):
        story.loop.finish_delivery()
    assert story.steps == DELIVERED


def test_an_epoch_is_not_committed_where_the_delivery_of_the_one_before_failed(
    story: RecordedEpochs,
) -> None:
    story.deliver_late()
    story.loop.run("rows")
    story.steps.clear()
    story.fails["deliver"] = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong"):
        story.loop.run("rows")
    assert story.steps == ["plan 1", "run rows", "deliver", "coordinator: abort 1, wrong"]
    assert story.next_epoch == 1
    story.loop.finish_delivery()  # nothing is left of it


def test_a_delivery_does_not_wait_for_an_attempt_that_counts(story: RecordedEpochs) -> None:
    story.deliver_late()
    story.loop.run("rows")
    story.steps.clear()
    story.fails["run rows"] = AttemptLostError("executor 1 was lost")
    story.loop.run("rows")
    second = [step.replace("0", "1") for step in COMMITTED]
    lost = ["plan 1", "run rows", "coordinator: abort 1, executor 1 was lost"]
    assert story.steps == [*lost, *second[:2], *DELIVERED, *second[2:]]


def test_nothing_is_left_to_deliver_while_epochs_are_held(story: RecordedEpochs) -> None:
    story.deliver_late()
    story.loop.run("rows")
    story.steps.clear()
    story.held, story.waits = 1, False
    assert story.loop.run("rows") is None
    assert story.steps == [*DELIVERED, "wait"]


def test_an_epoch_that_is_held_waits_or_is_given_up(story: RecordedEpochs) -> None:
    story.held = 2
    story.loop.run("rows")
    assert story.steps == ["wait", "wait", *WHOLE]
    story.steps.clear()
    story.held, story.waits = 1, False
    assert story.loop.run("rows") is None
    assert story.steps == ["wait"]


def test_a_loss_while_epochs_are_held_gives_the_epoch_up_where_nobody_waits(
    story: RecordedEpochs,
) -> None:
    story.fails["run rows"] = AttemptLostError("executor 1 was lost")
    story.waits = False
    story.loop.at_step = lambda step, _: setattr(story, "held", int(step == "planned"))
    assert story.loop.run("rows") is None
    assert story.steps == [
        "plan 0",
        "run rows",
        "coordinator: abort 0, executor 1 was lost",
        "wait",
    ]
