"""Facts about the choice between shared panes and states per window, from reports of lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from godwit.control.windows import SharePanes
from godwit.library.windows.sharing import PaneMeter
from godwit.time.event_time import EpochTime, WindowWork
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow

M = 60_000_000
NOTHING = WindowWork(
    panes={},
    keys=0,
    written=0,
    write_ms=0.0,
    spread=0,
    spread_ms=0.0,
    scanned=0,
    scan_ms=0.0,
    merged=0,
    merge_ms=0.0,
)


def grid(*kinds: tuple[int, int]) -> PaneGrid:
    return PaneGrid.of(*(TimeWindow(length_us=n * M, every_us=e * M) for n, e in kinds))


def run(meter: PaneMeter, *, epochs: int, minutes: int, keys: int = 1000) -> list[bool]:
    """Epochs of so many minutes in which every key is in every pane; entries cost 5, all else 1."""
    time, chosen, policy = EpochTime(), [], SharePanes({"w": meter})
    epoch_seen: Any = None  # the engine tells the meter
    for epoch in range(epochs):
        panes = dict.fromkeys((m * M for m in range(epoch * minutes, (epoch + 1) * minutes)), keys)
        work = replace(
            NOTHING,
            panes=panes,
            keys=keys,
            written=len(panes) * keys,
            write_ms=len(panes) * keys * 5e-3,
            scanned=keys,
            scan_ms=keys * 1e-3,
            merged=keys,
            merge_ms=keys * 1e-3,
        )
        meter.add_epoch(time, [work])
        policy.observe(epoch_seen)
        for proposal in policy.propose(0.0):
            meter.duplicated = proposal.change.duplicated
            policy.answered(proposal)
        chosen.append(meter.duplicated)
        time = EpochTime(closed=time.until, until=(epoch + 1) * minutes * M)
    return chosen


def test_few_windows_of_many_panes_get_states_of_their_own() -> None:
    chosen = run(PaneMeter(grid((7, 7), (10, 10))), epochs=12, minutes=10)
    assert chosen[0] is False
    assert chosen[-1] is True


def test_many_windows_of_few_panes_share_them() -> None:
    assert not any(run(PaneMeter(grid((12, 1))), epochs=40, minutes=1))


def test_a_choice_is_taken_back_when_the_stream_changes() -> None:
    """Epochs of ten minutes touch ten panes and few windows; those of one minute do not."""
    meter = PaneMeter(grid((30, 10), (31, 31)))
    assert run(meter, epochs=12, minutes=10)[-1] is True
    again = PaneMeter(grid((30, 10), (31, 31)))
    again.duplicated = True
    assert run(again, epochs=120, minutes=1)[-1] is False


def test_nothing_is_chosen_before_the_longest_window_has_passed() -> None:
    meter = PaneMeter(grid((7, 7), (100, 100)))
    assert not any(run(meter, epochs=10, minutes=10))
    assert meter.counts.pane_entries == 100_000


def test_what_an_epoch_does_either_way_follows_from_the_keys_of_its_panes() -> None:
    meter = PaneMeter(grid((2, 1)))
    work = replace(NOTHING, panes={0: 80, M: 60}, keys=100)
    meter.add_epoch(EpochTime(), [work])
    counts = meter.counts
    assert counts.pane_entries == 140
    assert counts.spread == 280
    # Windows of minutes -1 and 0, 0 and 1, 1 and 2; of the middle one 20 % of 40 % miss both.
    assert counts.window_entries == pytest.approx(80 + 100 * (1 - 0.2 * 0.4) + 60)
    assert (counts.panes_scanned, counts.merged) == (0, 0)
    meter.add_epoch(EpochTime(closed=BEGINNING, until=2 * M), [])
    closing = meter.counts
    assert closing.panes_scanned == pytest.approx(140)
    assert closing.merged == pytest.approx(80 + 80 + 60, rel=0.05)  # in thirty-seconds of all keys
    assert closing.windows_scanned == pytest.approx(80 + 92 + 60)


def test_what_panes_have_gone_is_forgotten() -> None:
    meter = PaneMeter(grid((3, 1), (5, 5)))
    run(meter, epochs=500, minutes=1, keys=10)
    assert len(meter._missing) <= 10


def test_a_choice_tells_what_it_rests_on_and_stands_until_it_is_answered() -> None:
    meter = PaneMeter(grid((7, 7), (10, 10)))
    policy = SharePanes({"w": meter})
    epoch: Any = None
    time = EpochTime()
    for at in range(12):
        panes = dict.fromkeys((m * M for m in range(at * 10, at * 10 + 10)), 1000)
        meter.add_epoch(
            time, [replace(NOTHING, panes=panes, keys=1000, written=10_000, write_ms=50.0)]
        )
        policy.observe(epoch)
        time = EpochTime(closed=time.until, until=(at + 1) * 10 * M)
        if proposals := list(policy.propose(0.0)):
            break
    (proposal,) = proposals
    assert proposal.numbers["duplicated_ms"] < proposal.numbers["shared_ms"]
    assert "ms of CPU with shared panes" in proposal.reason
    assert list(policy.propose(0.0)) == [proposal]
    policy.answered(proposal)
    assert not list(policy.propose(0.0))
