"""A few drawn flows; `python -m tests.streams` plays as many as there is time for."""

from __future__ import annotations

import pytest
from tests.streams.covering import covering
from tests.streams.cuts import play_in_cuts
from tests.streams.playing import play, play_by_testing
from tests.support.bounds import evict_always
from tests.support.rounds import rounds

from godwit.checkpoint import partial_copies


@pytest.mark.parametrize("seed", [2, 14])
def test_a_drawn_flow_gives_what_plain_python_says(seed: int) -> None:
    assert play(seed) == []


GROUPS = 6
DRAWN = rounds(12, 120)


@pytest.mark.campaign
@pytest.mark.parametrize("group", range(GROUPS))
def test_drawn_flows_of_many_pairs_give_what_plain_python_says(group: int) -> None:
    played = {seed: play(seed) for seed in covering(DRAWN)[group::GROUPS]}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.parametrize(("seed", "on_demand"), [(3, False), (8, True), (25, True)][: rounds(2, 3)])
def test_a_drawn_flow_that_is_played_by_testing_gives_what_plain_python_says(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, on_demand: bool
) -> None:
    if on_demand:
        monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    assert play_by_testing(seed, on_demand=on_demand) == []


@pytest.mark.parametrize("seed", [8, 25][: rounds(1, 2)])
def test_a_drawn_flow_whose_lanes_evict_in_every_epoch_gives_what_plain_python_says(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    evict_always(monkeypatch)
    assert play_by_testing(seed, on_demand=True) == []


@pytest.mark.campaign
def test_several_drawn_flows_whose_lanes_evict_give_what_plain_python_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evict_always(monkeypatch)
    played = {seed: play_by_testing(seed, on_demand=True) for seed in SEVERAL}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.campaign
def test_several_drawn_flows_fetch_their_state_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    played = {seed: play_by_testing(seed, on_demand=True) for seed in SEVERAL}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


NUMBERS = (8, 24, 5, 1, 12, 64)
SEVERAL = range(100, 100 + rounds(3, 40))


@pytest.mark.parametrize("seed", [4, 16])
def test_a_drawn_flow_goes_on_in_another_number_of_key_groups_after_each_restart(
    seed: int,
) -> None:
    assert play_by_testing(seed, numbers=NUMBERS) == []


@pytest.mark.campaign
def test_several_drawn_flows_go_on_in_other_numbers_of_key_groups() -> None:
    played = {seed: play_by_testing(seed, numbers=NUMBERS) for seed in SEVERAL}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.parametrize("seed", [1, 5, 9, 14][: rounds(2, 4)])
def test_a_drawn_flow_gives_one_result_however_its_rows_are_cut_into_epochs(seed: int) -> None:
    assert play_in_cuts(seed) == []


@pytest.mark.campaign
def test_several_drawn_flows_give_one_result_each_however_their_rows_are_cut() -> None:
    played = {seed: play_in_cuts(seed) for seed in SEVERAL}
    assert {seed: differences for seed, differences in played.items() if differences} == {}
