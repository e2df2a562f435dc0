"""Limit on the rows of an epoch: an overloaded stream's epochs stay bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.engine.policies import CommittedEpoch, PlacementChange, placement_change
from godwit.engine.row_limit import RowLimit, longest_epoch_s
from godwit.migration.outcome import EpochOutcome
from godwit.migration.state import ComponentView, ProtocolView, Transfer
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import KeyGroupLoad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment


def record(limit: RowLimit, rows: int | None, took_s: float) -> None:
    """Record an epoch of a stream with one source."""
    limit.record_epoch({"a": rows}, took_s)


def lengths(
    capacity_per_s: float,
    rate_per_s: float,
    *,
    limited: bool,
    epochs: int,
    fixed_s: float = 0.2,
    first_s: float = 1.5,
) -> list[float]:
    """Lengths of epochs that follow each other at once.

    `fixed_s`: part of each; `first_s`: time from which the first has its rows.
    """
    limit, took_s, waiting, seen = RowLimit(5.0), first_s, 0.0, []
    for _ in range(epochs):
        waiting += rate_per_s * took_s
        most = limit.rows if limited else None
        rows = int(waiting if most is None else min(waiting, most))
        waiting -= rows
        took_s = fixed_s + rows / capacity_per_s
        record(limit, rows, took_s)
        seen.append(took_s)
    return seen


def test_epochs_of_an_overloaded_stream_last_no_longer_than_they_may() -> None:
    assert lengths(1000, 4000, limited=False, epochs=5)[-1] > 500
    grown, *rest = lengths(1000, 4000, limited=True, epochs=12)
    assert grown < 7
    assert max(rest) <= 5.3
    # And they are as long as they may be, so little is lost by it, but for one that tells their
    # fixed part.
    assert sum(each < 4 for each in rest) == 1


@given(
    fixed_s=st.floats(0, 20),
    capacity_per_s=st.floats(50, 1e6),
    overload=st.floats(1.5, 20),
    first_s=st.floats(0.02, 100),
)
def test_half_of_an_epoch_is_for_its_rows_however_long_its_fixed_part_is(
    fixed_s: float, capacity_per_s: float, overload: float, first_s: float
) -> None:
    longest_s = longest_epoch_s(5.0, fixed_s)
    assert longest_s == max(5.0, 2 * fixed_s)
    seen = lengths(
        capacity_per_s,
        overload * capacity_per_s,
        limited=True,
        epochs=100,
        fixed_s=fixed_s,
        first_s=first_s,
    )
    assert max(seen[-10:]) <= 1.05 * longest_s + 2 / capacity_per_s
    assert min(seen[-10:]) >= 0.9 * longest_s - 2 / capacity_per_s


def test_a_stream_that_keeps_up_is_not_limited_whatever_a_burst_brings() -> None:
    limit = RowLimit(10.0)
    for rows in (1, 100, 5000):
        record(limit, rows, 0.3)
    assert limit.rows is None


def test_executors_that_came_raise_the_limit_within_a_few_epochs() -> None:
    limit = RowLimit(5.0)
    record(limit, 20_000, 20.0)
    assert limit.rows == 5000
    for _ in range(4):  # twenty times as fast since
        record(limit, limit.rows, 0.1 + limit.rows / 20_000)
    assert limit.rows > 80_000


def test_it_follows_the_assignment_of_the_next_epoch_at_once() -> None:
    """Executors that had just got their key groups had an epoch of what fewer could do before."""
    limit = RowLimit(2.5)
    record(limit, 5000, 2.0)
    record(limit, 2500, 1.25)
    assert limit.rows == 6667  # 0.3 ms a row, beside half a second
    for lanes_s, next_s, rows in (
        (0.75, 0.25, 20_000),
        (0.75, 1.5, 3334),
        (0.75, 0.01, 26_668),  # no more than fourfold
        (0.75, 100.0, 1667),
        (0.0, 0.0, 6667),
    ):
        limit.adapt(PlacementChange(lanes_s=lanes_s, next_s=next_s))
        assert limit.rows == pytest.approx(rows, abs=2)


def test_epochs_are_shorter_while_many_executors_are_to_join_but_not_for_ever() -> None:
    limit, most, seen = RowLimit(2.5), PlacementChange(awaits_many=True), []
    record(limit, 5000, 2.5)
    record(limit, 2500, 1.5)
    usual = limit.rows
    for _ in range(12):
        limit.adapt(most)
        seen.append(limit.rows or 0)
        record(limit, seen[-1], 0.5 + seen[-1] / 2500)
    assert usual == 5000
    assert all(rows == pytest.approx(2500, rel=0.01) for rows in seen[:8])
    assert all(rows == pytest.approx(5000, rel=0.01) for rows in seen[8:])
    # Nor where a short epoch would be its fixed part for the most part.
    limit = RowLimit(2.5)
    record(limit, 5000, 3.0)
    record(limit, 2500, 2.0)
    usual = limit.rows
    limit.adapt(most)
    assert limit.rows == usual


def test_epochs_under_two_assignments_do_not_tell_a_fixed_part() -> None:
    limit = RowLimit(2.5)
    record(limit, 10_000, 2.5)
    record(limit, 5000, 1.25)
    limit.adapt(PlacementChange(lanes_s=1.25, next_s=0.625))
    assert limit.rows == 20_000
    record(limit, 20_000, 2.6)
    # As if all but a tenth of a second was the fixed part, twice of which an epoch may take.
    assert limit.rows == pytest.approx(20_000 * 2.5 / 2.6, rel=0.01)


def test_it_says_of_an_epoch_that_it_was_cut_short() -> None:
    limit, cut = RowLimit(5.0), []
    for rows, took_s in ((20_000, 20.0), (4999, 1.0), (100, 0.2), (0, 0.1)):
        record(limit, rows, took_s)
        cut.append(limit.cut)
    assert cut == [False, True, False, False]


def test_one_odd_epoch_lowers_it_by_so_much_and_no_more() -> None:
    limit = RowLimit(5.0)
    record(limit, 20_000, 5.0)
    record(limit, 100, 40.0)
    assert limit.rows == 5000
    record(limit, None, 40.0)
    record(limit, 0, 40.0)
    assert limit.rows == 5000


def test_several_sources_share_it() -> None:
    limit = RowLimit(5.0)
    assert limit.per_source(("a", "b", "c")) is None
    limit.record_epoch({"a": 300, "b": 300, "c": 300}, 5.0)
    assert limit.per_source(("a", "b", "c")) == {"a": 300, "b": 300, "c": 300}
    assert limit.per_source(()) == {}
    limit.record_epoch({"a": 5000, "b": None, "c": 0}, 5.0)  # what b had is not known
    assert limit.rows == 900
    limit.record_epoch({"a": 1, "b": 0, "c": 0}, 5000.0)
    assert set((limit.per_source(tuple(map(str, range(1000)))) or {}).values()) == {1}


def test_a_busy_source_has_all_of_it_beside_idle_ones() -> None:
    """It had a third of it, and each epoch waited for the trigger as if it was not cut short."""
    limit, busy = RowLimit(5.0), 100_000  # that wait in a source, 1,000 of which take a second
    given: list[int] = []
    for _ in range(6):
        most = (limit.per_source(("a", "b", "c")) or {"a": 20_000})["a"]
        given.append(min(busy, most))
        limit.record_epoch({"a": given[-1], "b": 10, "c": 0}, 0.2 + (given[-1] + 10) / 1000)
    assert given[-1] == pytest.approx(4800, rel=0.02)
    assert limit.cut


def test_sources_that_become_busy_together_share_it_evenly_after_an_epoch_or_two() -> None:
    limit, took = RowLimit(5.0), []
    limit.record_epoch({"a": 20_000, "b": 0}, 20.2)
    for _ in range(8):
        rows = limit.per_source(("a", "b")) or {}
        took.append(0.2 + sum(rows.values()) / 1000)
        limit.record_epoch({**rows}, took[-1])
    assert max(took) < 10.2
    assert max(took[3:]) < 5.5
    assert rows["a"] == pytest.approx(rows["b"], rel=0.1)


def test_a_fixed_part_that_was_told_wrong_is_told_again() -> None:
    """Else each epoch would have a few rows less than the one before, for ever."""
    limit = RowLimit(2.0)
    for rows, took_s in ((100, 2.6), (300, 7.8)):  # the second was held up
        record(limit, rows, took_s)
    seen = []
    for _ in range(80):
        seen.append(limit.rows or 0)
        record(limit, limit.rows, 2.5 + seen[-1] / 1000)
    assert min(seen) < 50
    assert 2400 < seen[-1] < 2600  # as long for the rows as for the rest


@pytest.mark.parametrize("fixed_s", [2.6, 6.0, 12.0])
def test_noise_makes_epochs_of_a_long_fixed_part_no_smaller_for_long(fixed_s: float) -> None:
    dice, limit, rows, took = np.random.default_rng(2), RowLimit(5.0), [], []
    record(limit, 20_000, 20 + fixed_s)
    for noise in np.exp(dice.normal(0, 0.15, 400)):
        rows.append(limit.rows or 0)
        took.append((fixed_s + rows[-1] / 1000) * noise)
        record(limit, rows[-1], took[-1])
    for_rows = 1 - fixed_s / longest_epoch_s(5.0, fixed_s)
    assert sum(rows) / sum(took) / 1000 > 0.9 * for_rows
    assert min(rows) > 100


def test_a_quiet_stream_is_not_limited_to_the_few_rows_that_it_has() -> None:
    limit = RowLimit(5.0)
    record(limit, 20_000, 22.0)
    before = limit.rows
    for _ in range(10):
        record(limit, 10, 1.3)  # a long fixed part, and time to spare
    assert limit.rows == before


def test_rows_that_take_longer_lower_it_before_an_epoch_is_too_long() -> None:
    """An executor became slow: an uncut epoch showed it, and the next one took twice that."""
    limit = RowLimit(2.5)
    record(limit, 1000, 1.0)
    assert limit.rows == 2500
    record(limit, 1000, 2.2)
    assert limit.rows == pytest.approx(1000 * 2.5 / 2.2, rel=0.01)


def test_sources_that_take_turns_do_not_lower_the_limit() -> None:
    limit, names = RowLimit(5.0), [f"s{n}" for n in range(10)]
    record(limit, 5000, 5.0)
    for turn in range(40):
        most = limit.per_source(names) or {}
        rows = {name: most[name] if name == names[turn % 10] else 0 for name in names}
        limit.record_epoch({**rows}, 0.2 + sum(rows.values()) / 1000)
    assert limit.rows is not None
    assert limit.rows >= 4000


def view(
    assignment: Assignment,
    executors: Mapping[str, int],
    *,
    transfers: tuple[Transfer, ...] = (),
    draining: frozenset[str] = frozenset(),
) -> ProtocolView:
    return ProtocolView(
        executors=executors,
        draining=draining,
        committed=0,
        running=None,
        holds=(),
        components={"sum": ComponentView(assignment=assignment, transfers=transfers)},
    )


def test_what_an_epoch_would_take_as_key_groups_are_placed_now() -> None:
    """Four key groups of 0.1 to 0.4 s on one lane; then the second and fourth on another."""
    former = even_assignment(4, ["a"], [1])
    load = KeyGroupLoad(
        key_groups=np.arange(4),
        rows=np.full(4, 10),
        keys=np.full(4, 10),
        cpu_ms=np.full(4, 10.0),
        state_bytes=np.zeros(4, np.int64),
        busy_ms=np.array([100.0, 200.0, 300.0, 400.0]),
    )
    epoch = CommittedEpoch(
        outcome=EpochOutcome(epoch=0, batch=0, rows_in=40, loads={"sum": load}),
        component_views={"sum": ComponentView(assignment=former)},
        took_s=1.5,
    )
    stages = (("sum",),)
    both = even_assignment(4, ["a", "b"], [1, 1])
    copied = Transfer(key_group=0, destination="b", state_bytes=1, planned=True)
    two, three = {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}
    for present, lanes_s, next_s in (
        (view(former, two), 0.0, 0.0),  # nothing has moved
        (view(both, two), 1.0, 0.6),
        (view(both, two, transfers=(copied,)), 1.0, 1.0),  # it is about to change again
        (view(both, three), 1.0, 1.0),
        (view(both, three, draining=frozenset("c")), 1.0, 0.6),
    ):
        change = placement_change(stages, epoch, present, 0)
        assert (change.lanes_s, change.next_s) == pytest.approx((lanes_s, next_s))
    for present, pending, many in (
        (view(former, two), 0, True),  # the one without key groups
        (view(both, two), 1, False),
        (view(both, two), 2, True),
        (view(both, three), 1, True),
        (view(both, three, draining=frozenset("c")), 1, False),
    ):
        assert placement_change(stages, epoch, present, pending).awaits_many == many
