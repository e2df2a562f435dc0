"""Queries of a session share its task slots, of which one of every executor stays free."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.support.lane_tasks import slots

from godwit.spark.resident.lanes import RECENT_S, QuerySlots, SlotShares, SlotsTakenError

LANES = [(f"local-{n}", 0) for n in range(4)]


def claim(query: QuerySlots, *, yields: bool = True) -> int:
    """Claim slots for four lanes in one process, and return the number of tasks."""
    query.record_epoch(large=False)
    return len(query.claim(LANES, yields=yields))


@pytest.mark.parametrize(("number", "tasks"), [(2, 1), (3, 2), (4, 3), (5, 4), (9, 4)])
def test_tasks_leave_one_slot_free_and_are_at_most_as_many_as_lanes(
    number: int, tasks: int
) -> None:
    query = slots(number)
    groups = query.claim(LANES, yields=True)
    assert len(groups) == tasks
    assert sorted(place for group in groups for place in group) == LANES
    assert not query.has_changed(LANES, yields=True)


def test_lanes_of_a_task_are_of_one_executor_and_each_executor_has_a_slot_free() -> None:
    query = SlotShares().join(lambda executor: (executor, int(executor)), lambda: 0.0)
    places = [("2", 0), ("2", 1), ("3", 0), ("3", 1), ("3", 2)]
    groups = query.claim(places, yields=True)
    assert groups == [[("2", 0), ("2", 1)], [("3", 0), ("3", 2)], [("3", 1)]]


def test_an_executor_with_one_slot_has_no_resident_lane() -> None:
    with pytest.raises(SlotsTakenError, match="executor local-0 has 1 task slot"):
        claim(slots(1))


def test_a_second_query_waits_until_the_first_has_given_its_share_back() -> None:
    shares = SlotShares()
    first, second = slots(5, shares), slots(5, shares)
    assert claim(first) == 4
    with pytest.raises(SlotsTakenError, match="2 queries share 5 task slots"):
        claim(second)
    assert first.has_changed(LANES, yields=True)
    first.free()
    assert claim(first) == claim(second) == 2
    assert not first.has_changed(LANES, yields=True)
    second.leave()
    assert first.has_changed(LANES, yields=True)  # twice as many are free
    first.free()
    assert claim(first) == 4


def test_a_query_without_epochs_has_no_share_but_keeps_the_slots_that_it_occupies() -> None:
    now_s = 0.0
    shares = SlotShares()
    first, second = slots(4, shares, lambda: now_s), slots(4, shares, lambda: now_s)
    assert claim(first) == 3
    now_s = RECENT_S + 1
    with pytest.raises(SlotsTakenError):
        claim(second)
    first.free()
    assert claim(second) == 3


def test_lanes_that_the_system_chose_make_way_for_large_epochs_of_other_queries() -> None:
    now_s = 0.0
    shares = SlotShares()
    first, second = slots(4, shares, lambda: now_s), slots(4, shares, lambda: now_s)
    assert claim(first) == 3
    second.record_epoch(large=True)
    assert first.has_changed(LANES, yields=True)
    first.free()
    with pytest.raises(SlotsTakenError, match="another query of the session has epochs with many"):
        claim(first)
    assert claim(first, yields=False) == 1  # the user has asked for them
    first.free()
    now_s = RECENT_S + 1
    assert claim(first) == 3


@dataclass(slots=True)
class Drawn:
    """A session of executors in which queries come, go, and run epochs."""

    rng: random.Random
    now_s: float = 0.0

    def play(self) -> None:
        shares = SlotShares()
        capacity = {str(n): self.rng.randint(1, 9) for n in range(self.rng.randint(1, 3))}
        queries: list[QuerySlots] = []
        for _ in range(200):
            self.now_s += self.rng.choice([0.0, 0.5, 4.0])
            if not queries or self.rng.random() < 0.1:
                queries.append(shares.join(lambda e: (e, capacity[e]), lambda: self.now_s))
            query = self.rng.choice(queries)
            draw = self.rng.random()
            if draw < 0.1:
                query.leave()
                queries.remove(query)
            elif draw < 0.2:
                query.free()
            else:
                self._epoch(query, capacity)
            used = sum((q.occupied for q in queries), Counter[str]())
            assert all(tasks <= capacity[executor] - 1 for executor, tasks in used.items())

    def _epoch(self, query: QuerySlots, capacity: dict[str, int]) -> None:
        places = [(e, n) for e, count in capacity.items() for n in range(count)]
        query.record_epoch(large=self.rng.random() < 0.1)
        if query.occupied and query.has_changed(places, yields=True):
            query.free()
        if not query.occupied:
            try:
                groups = query.claim(places, yields=True)
            except SlotsTakenError:
                assert not query.occupied
            else:
                assert sorted(place for group in groups for place in group) == sorted(places)
                assert all(len({executor for executor, _ in group}) == 1 for group in groups)


@pytest.mark.parametrize("seed", range(40))
def test_a_slot_of_every_executor_stays_free_in_any_order_of_events(seed: int) -> None:
    Drawn(random.Random(seed)).play()
