"""The simulator is exact: against recomputation row by row, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.model.assignment import Move
from godwit_lab.experiments.paper1.transfer_schedules import shortest_s, transfer_s
from godwit_lab.simulator.history import Delays
from godwit_lab.simulator.holdings import WaitBuffers
from godwit_lab.simulator.transfers import Links

profile = settings(derandomize=True, deadline=None, max_examples=rounds(30, 150))
SIZES = st.integers(1, 50)
PLACES = st.sampled_from("abcde")


@st.composite
def moves(draw: st.DrawFn) -> list[Move]:
    """Transfers between five places."""
    made = []
    for g in range(draw(st.integers(1, 25))):
        source, destination = draw(PLACES), draw(PLACES)
        if source != destination:
            size = draw(SIZES)
            made.append(Move(key_group=g, source=source, destination=destination, state_bytes=size))
    return made


@profile
@given(moves())
def test_phases_last_as_long_as_the_busiest_link_needs_whatever_the_sizes(some: list[Move]) -> None:
    assert transfer_s(some, 10.0, schedule="phases") == pytest.approx(shortest_s(some, 10.0))


@profile
@given(moves())
def test_no_schedule_is_shorter_than_the_busiest_link_needs(some: list[Move]) -> None:
    for schedule in ("phases", "whole", "unscheduled"):
        taken = transfer_s(some, 10.0, schedule=schedule)
        assert taken >= shortest_s(some, 10.0) - 1e-6


@profile
@given(moves(), st.lists(st.floats(0.01, 5.0), min_size=1, max_size=20))
def test_transfers_end_when_all_their_bytes_have_passed(
    some: list[Move], steps: list[float]
) -> None:
    """However time is cut into steps: the same ends, at the same times."""
    ends: list[dict[int, float]] = []
    for cut in (steps, [1e9]):
        links: Links[int] = Links()
        for place in "abcde":
            links.connect(place, up_bytes_per_s=7.0, down_bytes_per_s=5.0)
        for move in some:
            links.start(move.key_group, move.source, move.destination, move.state_bytes)
        ended: dict[int, float] = {}
        pending = [*cut, 1e9]
        while links.busy:
            until_s = links.now_s + pending[0]
            for name in links.advance(until_s):
                ended[name] = links.now_s
            if links.now_s >= until_s and len(pending) > 1:
                pending.pop(0)
        ends.append(ended)
    assert ends[0].keys() == {move.key_group for move in some}
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)


@profile
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12
    ),
    st.floats(0.01, 0.99),
)
def test_a_quantile_leaves_that_share_of_the_rows_below(
    pieces: list[tuple[int, float, float]], share: float
) -> None:
    delays = Delays(np.array([(n, min(a, b), max(a, b)) for n, a, b in pieces]))
    at = delays.quantile_s(share)
    count, least, most = delays.pieces.T
    width = np.maximum(most - least, 1e-12)
    below = (count * ((at - 3e-9 - least) / width).clip(0, 1)).sum()
    upto = (count * ((at + 3e-9 - least) / width).clip(0, 1)).sum()
    assert below <= share * count.sum() + 1e-3
    assert upto >= share * count.sum() - 1e-3


@profile
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), min_size=3, max_size=3),
            st.lists(st.booleans(), min_size=3, max_size=3),
        ),
        max_size=15,
    )
)
def test_rows_wait_in_order_and_none_is_lost(epochs: list[tuple[list[int], list[bool]]]) -> None:
    """A key group that runs processes what waits; numbers of rows and their times agree."""
    buffers = WaitBuffers(component="sums", key_groups=3)
    waiting: list[list[tuple[int, int]]] = [[], [], []]  # (epoch, rows), oldest first
    for epoch, (rows, runs) in enumerate(epochs):
        arrived = np.array([[float(sum(rows)), epoch, epoch]])
        left = buffers.commit(np.array(rows), np.array(runs), np.array(runs), arrived)
        expected: dict[int, float] = {}
        for g in range(3):
            waiting[g].append((epoch, rows[g]))
            if runs[g]:
                for came, number in waiting[g]:
                    expected[came] = expected.get(came, 0) + number
                waiting[g] = []
        found: dict[int, float] = {}
        for number, came, _ in left.tolist():
            found[int(came)] = found.get(int(came), 0) + number
        assert found == pytest.approx({e: n for e, n in expected.items() if n})
        assert buffers.waiting.tolist() == [sum(n for _, n in queue) for queue in waiting]
