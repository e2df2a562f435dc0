"""Transfers over shared links."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.assignment import Move
from godwit.model.errors import InvalidProblemError
from godwit_lab.experiments.paper1.transfer_schedules import shortest_s, transfer_s
from godwit_lab.simulator.transfers import Links, fair_rates


def test_rates_are_max_min_fair() -> None:
    # Two leave place 0, of which one meets a third at a narrow downlink.
    ends = np.array([[0, 2], [0, 3], [1, 3]])
    assert fair_rates(ends, np.array([10.0, 10.0, 10.0, 4.0])).tolist() == [8, 2, 2]


@pytest.mark.parametrize("seed", range(20))
def test_every_transfer_meets_a_full_link_on_which_none_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.column_stack((rng.integers(0, 5, 12), rng.integers(5, 10, 12)))
    capacity = rng.uniform(1, 10, 10)
    rates = fair_rates(ends, capacity)
    used = np.bincount(ends.ravel(), weights=np.repeat(rates, 2), minlength=10)
    assert (used <= capacity + 1e-9).all()
    for at, mine in enumerate(ends):
        bottlenecks = [e for e in mine if used[e] > capacity[e] - 1e-9]
        assert any(rates[(ends == e).any(axis=1)].max() <= rates[at] + 1e-9 for e in bottlenecks)


def test_a_transfer_gets_faster_when_another_ends() -> None:
    links: Links[str] = Links()
    for place in "abc":
        links.connect(place, up_bytes_per_s=10, down_bytes_per_s=10)
    links.start("short", "a", "b", 50)
    links.start("long", "a", "c", 100)
    assert links.next_end_s() == pytest.approx(10)
    assert links.advance(4) == []
    assert links.advance(99) == ["short"]
    assert links.now_s == pytest.approx(10)
    assert links.advance(99) == ["long"]
    assert links.now_s == pytest.approx(15)
    assert not links.busy


def test_a_link_that_carries_nothing_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="'a' carry 0 and 1"):
        Links[str]().connect("a", up_bytes_per_s=0, down_bytes_per_s=1)


def growing(seed: int, *, even: bool = True) -> list[Move]:
    """Moves from five executors to three new ones, listed destination by destination."""
    rng = np.random.default_rng(seed)
    sizes = np.full(96, 10**7) if even else rng.integers(10**6, 2 * 10**7, 96)
    return [
        Move(
            key_group=key_group,
            source=str(rng.integers(0, 5)),
            destination=str(5 + key_group // 32),
            state_bytes=int(sizes[key_group]),
        )
        for key_group in range(96)
    ]


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_phases_last_as_long_as_the_busiest_link_needs(seed: int, even: bool) -> None:
    moves = growing(seed, even=even)
    assert transfer_s(moves, 1e8, schedule="phases") == pytest.approx(shortest_s(moves, 1e8))


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_phases_are_faster_than_lopsided_moves_in_the_order_given(seed: int, even: bool) -> None:
    moves = growing(seed, even=even)
    phased = transfer_s(moves, 1e8, schedule="phases")
    assert transfer_s(moves, 1e8, schedule="unscheduled") >= 1.5 * phased


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_whole_key_groups_that_go_as_links_become_free_take_little_longer(
    seed: int, even: bool
) -> None:
    moves = growing(seed, even=even)
    assert transfer_s(moves, 1e8, schedule="whole") <= 1.1 * shortest_s(moves, 1e8)


def test_nothing_to_move_takes_no_time() -> None:
    assert transfer_s([], 1e8, schedule="phases") == 0
    assert shortest_s([], 1e8) == 0
