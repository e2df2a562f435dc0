"""Key groups whose state is fetched on demand: when, and what happens elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.migration.test_protocol import assignment, drop, end, suspend, switch, warm

from godwit.migration import Bounds, LossPolicy, Policy, Strategy
from godwit.migration.coordinator import Coordinator
from godwit.migration.copies import Copies
from godwit.migration.messages import (
    Announce,
    DropCopies,
    MigrationRequested,
    RunStarted,
    StartWarming,
)
from godwit.migration.on_demand import MoveCosts, OnDemand, move_costs
from godwit.migration.outcome import EpochOutcome
from godwit.migration.protocol import MigrationProtocol
from godwit.model import events
from godwit.model.errors import MigrationError
from godwit.model.key_groups import KeyGroupLoad

SIZES = dict.fromkeys(range(6), 100)


def fetched(*key_groups: int) -> Announce:
    values = {"component": "sum", "key_groups": key_groups, "on_demand": True}
    return Announce(events.KeyGroupsLoaded, values)


def protocol(
    owners: str = "aaabbb", *, obstacle: str = "", min_bytes: int = 200, **policy: Any
) -> MigrationProtocol:
    """A protocol after its first epoch; each key group has 100 bytes."""
    executors = "abc"
    begun = MigrationProtocol(
        RunStarted(
            run_id="r",
            executors=dict.fromkeys(executors, 1),
            assignments={"sum": assignment(owners, executors)},
            committed=9,
            state_bytes={"sum": SIZES},
            on_demand=OnDemand(obstacles={"totals": obstacle}, min_bytes=min_bytes),
        ),
        Policy(**policy),
        Copies({"sum": ["totals"]}),
    )
    run_epoch(begun, 10)
    return begun


def run_epoch(run: MigrationProtocol, epoch: int) -> tuple[Any, ...]:
    view = run.next_epoch()["sum"]
    run.begin_epoch(epoch)
    reach: dict[str, dict[int, int]] = {}
    for g in set(range(6)) - view.suspended:
        reach.setdefault(view.assignment.executor(g), {})[g] = epoch - 1
    return run.commit_epoch(EpochOutcome(epoch=epoch, reach={"sum": reach}))


def request(run: MigrationProtocol, owners: str) -> MigrationRequested:
    target = assignment(owners, "abc")
    return MigrationRequested(id="m", component="sum", target=target, strategy=Strategy.ON_DEMAND)


def index(executor: str, key_groups: tuple[int, ...], attempt: int = 1) -> StartWarming:
    return replace(warm(executor, key_groups, attempt), index_only=True)


def owners(run: MigrationProtocol) -> str:
    place = run.next_epoch()["sum"].assignment
    return "".join(place.executor(g) for g in range(6))


def test_all_key_groups_switch_once_they_are_indexed_and_are_not_loaded_whole() -> None:
    run = protocol()
    assert run.migrate(request(run, "ccabbb")) == (index("c", (0, 1)),)
    assert run_epoch(run, 11) == ()
    assert owners(run) == "aaabbb"
    assert not run.next_epoch()["sum"].load
    orders = run.warmed(index("c", (0, 1)), {})
    assert orders == (switch("ccabbb", "abc"), fetched(0, 1))
    view = run.next_epoch()["sum"]
    assert view.load == {0, 1}
    assert view.whole | view.suspended == set()
    assert end(moved=2) in run_epoch(run, 12)
    assert run.next_epoch()["sum"].load == set()


def test_key_groups_switch_when_the_last_destination_has_ended() -> None:
    run = protocol()
    first, second = index("b", (0, 1)), index("c", (2, 3), 2)
    assert run.migrate(request(run, "bbccbb")) == (first, second)
    run.begin_epoch(11)
    assert run.warming_failed(first, "no room") == ()
    assert run.warmed(second, {}) == ()  # not while an epoch runs
    run.commit_epoch(EpochOutcome(epoch=11, reach={}))
    assert owners(run) == "bbccbb"


def test_key_groups_switch_after_two_seconds_though_they_are_not_indexed() -> None:
    run = protocol()
    run.migrate(request(run, "ccabbb"))
    assert run.view().awaits
    run.hold_epoch(seconds=1)
    assert owners(run) == "aaabbb"
    run.hold_epoch(seconds=1)
    assert owners(run) == "ccabbb"
    assert run.warmed(index("c", (0, 1)), {}) == ()  # late
    assert end(moved=2) in run_epoch(run, 12)
    assert run.warmed(index("c", (0, 1)), {}) == ()


def test_the_index_of_a_cancelled_migration_is_deleted() -> None:
    run = protocol()
    run.migrate(request(run, "bbccbb"))
    orders = run.cancel("m", "not needed")
    assert [order for order in orders if isinstance(order, DropCopies)] == [
        drop("b", 0, 1),
        drop("c", 2, 3),
    ]


def test_a_lost_destination_is_waited_for_no_longer() -> None:
    run = protocol()
    run.migrate(request(run, "bbccbb"))
    run.warmed(index("b", (0, 1)), {})
    assert owners(run) == "aaabbb"
    run.remove_executor("c")
    assert owners(run) == "bbabbb"


def test_key_groups_of_a_lost_source_go_at_once_where_they_were_to_go() -> None:
    run = protocol()
    run.migrate(request(run, "ccabbb"))
    run.remove_executor("a")
    assert owners(run)[:2] == "cc"
    assert {0, 1} <= run.next_epoch()["sum"].load


def test_a_disruptive_migration_loads_its_key_groups_whole() -> None:
    run = protocol()
    fact = MigrationRequested(
        id="m",
        component="sum",
        target=assignment("ccabbb", "abc"),
        strategy=Strategy.DISRUPTIVE,
    )
    run.migrate(fact)
    assert run.next_epoch()["sum"].whole == {0, 1}
    run_epoch(run, 11)
    assert run.next_epoch()["sum"].whole == set()


def test_too_little_state_migrates_live_and_the_reason_is_said() -> None:
    run = protocol()
    fact = request(run, "cbabbb")  # a key group each to two executors
    strategy, reason = run.suitable_strategy(fact)
    assert (strategy, reason) == (
        Strategy.LIVE,
        "no lane gets 200 B of state, but 100 B",
    )
    run.migrate(fact)
    view = run.next_epoch()["sum"]
    assert view.strategy is Strategy.LIVE
    assert {t.key_group for t in view.transfers} == {0, 1}


def test_operators_that_read_other_keys_are_refused() -> None:
    run = protocol(obstacle="operator 'totals' reads all keys")
    with pytest.raises(MigrationError, match=r"reads all keys\. Migrate it by 'live'"):
        run.migrate(request(run, "ccabbb"))
    assert run.next_epoch()["sum"].migration is None


def test_key_groups_of_a_lost_executor_are_fetched_by_default() -> None:
    run = protocol()
    assert run.remove_executor("a")[-1] == fetched(0, 1, 2)
    view = run.next_epoch()["sum"]
    assert view.load == {0, 1, 2}
    assert view.suspended == set()


@pytest.mark.parametrize(
    "different",
    [{"min_bytes": 400}, {"obstacle": "no"}, {"on_loss": LossPolicy.SUSPEND}],
    ids=str,
)
def test_other_lost_key_groups_are_suspended(different: dict[str, Any]) -> None:
    run = protocol(**different)
    assert suspend(0, 1, 2) in run.remove_executor("a")
    assert run.next_epoch()["sum"].load == set()


# The choice between live and on demand.


class Clock:
    """Ports of a coordinator whose clock the test sets; events are listed."""

    def __init__(self) -> None:
        self.at_s, self.events = 0.0, list[events.Event]()

    def now_s(self) -> float:
        return self.at_s

    def announce(self, event: events.Event) -> None:
        self.events.append(event)

    def warm(self, order: object) -> None: ...
    def drop(self, order: object) -> None: ...


def load_of(busy_ms: float, keys: int) -> KeyGroupLoad:
    """The load of six key groups of which each is as busy, over as many keys."""
    return KeyGroupLoad(
        key_groups=np.arange(6),
        rows=np.full(6, keys),
        keys=np.full(6, keys),
        cpu_ms=np.full(6, busy_ms),
        busy_ms=np.full(6, busy_ms),
        state_bytes=np.full(6, 100_000_000),
    )


def strategy_of(
    *,
    busy_ms: float = 500.0,
    keys: int = 1_000,
    other_ms: float = 0.0,
    running: bool = False,
    **changed: Any,
) -> tuple[str, str]:
    """Let a third of the key groups of executor a move to an idle one; return strategy and reason.

    Every second has an epoch, and each key group 100 MB. `other_ms`: busy time of a third executor.
    `running`: an epoch runs.
    """
    ports, executors = Clock(), dict.fromkeys("abc", 1)
    places = assignment("aaaaaa", "abc")
    coordinator = Coordinator(
        RunStarted(
            run_id="r",
            executors=executors,
            assignments={"sum": places},
            on_demand=OnDemand(
                **{"obstacles": {"totals": ""}, "min_bytes": 2**26, **changed.pop("demand", {})}
            ),
        ),
        states={"sum": ["totals"]},
        policy=Policy(),
        ports=ports,
    )
    for epoch in range(8):
        ports.at_s += 1.0
        coordinator.begin(epoch)
        coordinator.commit(
            EpochOutcome(
                epoch=epoch,
                batch=epoch,
                loads={"sum": load_of(busy_ms, keys)},
                executor_busy_ms={"a": 6 * busy_ms, "b": other_ms},
            )
        )
    if running:
        coordinator.begin(8)
    coordinator.migrate(
        MigrationRequested(
            id="m",
            component="sum",
            target=places.moved({0: "c", 1: "c"}),
            **{
                "chooses": True,
                "state_bytes": dict.fromkeys(range(6), 100_000_000),
                **changed,
            },
        )
    )
    (started,) = (e for e in ports.events if isinstance(e, events.MigrationStarted))
    return started.strategy, started.reason


def test_an_overloaded_executor_sheds_large_state_on_demand() -> None:
    strategy, reason = strategy_of()
    assert strategy == "on_demand"
    assert reason == (
        "lanes take 3000 ms an epoch and would for 6.7 epochs, but 2008 ms while state is fetched, "
        "after 400 ms once"
    )


def test_few_moves_at_a_time_take_epochs_however_quick_copies_are() -> None:
    places, target = assignment("aaaaaa", "ac"), assignment("ccccaa", "ac")
    costs = [
        move_costs(
            places,
            target,
            lanes={"a": 1, "c": 2},
            busy_ms={"a": 60.0, "c": 8.0},
            loads=dict.fromkeys(range(6), 10.0),
            keys=dict.fromkeys(range(6), 3.0),
            state_bytes=dict.fromkeys(range(6), 100),
            bytes_per_s=1e3,
            period_s=2.0,
            bounds=Bounds(max_moves=at_once),
        )
        for at_once in (4, 1)
    ]
    expected = MoveCosts(
        before_ms=60, after_ms=24, coming_ms=24, keys=6, size_bytes=200, epochs=0.2
    )
    assert costs == [expected, replace(expected, epochs=1.5)]


@pytest.mark.parametrize(
    "case",
    [
        {"chooses": False},  # as a user asks for "live"
        {"busy_ms": 5.0, "keys": 20_000},  # fetching would take longer than epochs do
        {"busy_ms": 10.0},  # the index would
        {"other_ms": 3_000.0},  # another executor would stay as slow
        {"demand": {"timed": ["totals"]}},
        {"demand": {"obstacles": {}}},
        {"demand": {"min_bytes": 2**28}},
    ],
    ids=str,
)
def test_other_migrations_stay_live(case: dict[str, Any]) -> None:
    assert strategy_of(**case) == ("live", "")


LITTLE: dict[str, Any] = {
    "state_bytes": dict.fromkeys(range(6), 100_000),
    "relief": 0.1,
    "demand": {"local": True},
}
"""Two key groups whose state a lane loads in 7 ms, in which it is relieved of 100 ms an epoch."""


def test_little_state_is_loaded_by_the_next_epoch() -> None:
    strategy, reason = strategy_of(**LITTLE)
    assert strategy == "disruptive"
    assert reason == "a lane loads its state in 7 ms, and lanes are relieved of 1e+02 ms an epoch"


@pytest.mark.parametrize(
    "case",
    [
        {"chooses": False},
        {"running": True},  # copies may be made meanwhile
        {"demand": {"local": False}},  # an object store answers each request after a while
        {"relief": 0.01},  # of 10 ms, where loading may take 14
        {"relief": 0.0},  # as executors drain
        {"state_bytes": dict.fromkeys(range(6), 2_000_000)},
    ],
    ids=str,
)
def test_state_is_copied_where_loading_takes_longer_than_it_gains(case: dict[str, Any]) -> None:
    assert strategy_of(**LITTLE | case) == ("live", "")


def test_overloaded_lanes_load_what_is_too_little_to_be_fetched() -> None:
    size: dict[str, Any] = {"state_bytes": dict.fromkeys(range(6), 2_000_000), "relief": 0.5}
    demand = {"local": True, "obstacles": {"totals": ""}}
    assert strategy_of(demand=demand | {"min_bytes": 2**22}, **size)[0] == "disruptive"
    assert strategy_of(demand=demand | {"min_bytes": 2**21}, **size)[0] == "on_demand"
