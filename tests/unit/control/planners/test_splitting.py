"""The cost model of splitting and combining, against figures taken from the paper's formulas."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest

from godwit.control.planners.splitting import Choice, LayoutCosts, choose_layout, most_beneficial
from godwit.model.errors import InvalidProblemError

PAPER: dict[str, Any] = {
    "rows": 18_000,
    "row_ms": 0.02,
    "windows": 3,
    "partials": 10,
    "key_groups": 60,
    "partial_ms": 0.5,
    "migrations": 6,
    "move_latency_ms": 40,
}


def of_paper(*, windows: float, partial_ms: float, partials: float, **others: Any) -> LayoutCosts:
    """The paper's own model: T_p, E, W, PW_p, number of key groups, K_1, MK_p and L.

    A combined component changes a state for every window; a key group has PW_p copies of what is
    handed on of one; whatever is split migrates without state.
    """
    return LayoutCosts(
        combined_states=windows,
        partials=partials,
        partial_ms=partial_ms,
        instant_ms=partial_ms,
        move_ms=partial_ms * partials,
        **others,
    )


def costs(**given: float) -> LayoutCosts:
    """Costs that differ by the exchange (30 ms) and by what migrates (10 ms each)."""
    values: dict[str, Any] = {
        "rows": 1000,
        "row_ms": 0.1,
        "partials": 5,
        "key_groups": 6,
        "partial_ms": 1,
        "migrations": 0,
        "instant_ms": 1,
        "move_ms": 10,
        "move_latency_ms": 20,
    }
    return LayoutCosts(**values | given)


def test_the_papers_formulas_by_hand() -> None:
    found = of_paper(**PAPER)
    # Rows, what is handed on, and what is held twice.
    assert found.split_ms == pytest.approx(360 + 300 + 3)
    # Rows in all three windows, and state that moves.
    assert found.combined_ms == pytest.approx(1080 + 30)
    assert (found.split_latency_ms, found.combined_latency_ms) == (0, 240)


@pytest.mark.parametrize("seed", range(50))
def test_the_papers_choice_is_what_trying_both_forms_gives(seed: int) -> None:
    random = Random(seed)
    given: dict[str, Any] = {
        "rows": random.randint(0, 10_000),
        "row_ms": random.random() / 10,
        "windows": random.randint(1, 8),
        "partials": random.randint(1, 30),
        "key_groups": random.randint(1, 256),
        "partial_ms": random.random(),
        "migrations": random.randint(0, 256),
        "move_latency_ms": random.random() * 100,
    }
    bound = random.choice([math.inf, random.random() * 5000])
    ways = {
        "split": (
            given["rows"] * given["row_ms"]
            + given["partials"] * given["partial_ms"] * given["key_groups"]
            + given["migrations"] * given["partial_ms"],
            0.0,
        ),
        "combined": (
            given["rows"] * given["windows"] * given["row_ms"]
            + given["migrations"] * given["partial_ms"] * given["partials"],
            given["migrations"] * given["move_latency_ms"],
        ),
    }
    allowed = {form: cpu for form, (cpu, latency) in ways.items() if latency <= bound}
    best = min(allowed, key=lambda form: allowed[form])
    today = "combined" if best == "split" else "split"
    found = choose_layout(of_paper(**given), today, bound)  # type: ignore[arg-type]
    if found.layout != best:  # too little to be given up for
        assert found.layout in allowed
        cheap, dear = sorted(cpu for cpu, _ in ways.values())
        least = given["rows"] * given["row_ms"]
        near_bound = best == "combined" and ways["combined"][1] > 0.85 * bound
        assert near_bound or dear - cheap <= 0.15 * (dear - least) or dear - cheap <= 0.01 * dear
    assert choose_layout(of_paper(**given), best, bound).layout == best  # type: ignore[arg-type]


def test_what_is_calm_is_combined_and_what_migrates_much_is_split() -> None:
    assert choose_layout(costs(), "split").layout == "combined"
    assert choose_layout(costs(migrations=2), "split").layout == "combined"  # 32 against 20 ms
    assert choose_layout(costs(migrations=50), "combined").layout == "split"


def test_a_small_gain_changes_nothing() -> None:
    near = costs(migrations=3.2)  # 33.2 ms split, 32 ms combined
    assert not choose_layout(near, "split").changes
    assert not choose_layout(near, "combined").changes
    heavy = costs(rows=100_000)  # 30 ms of 10 seconds
    assert not choose_layout(heavy, "split").changes


def test_latency_is_bounded_whatever_it_costs() -> None:
    some = costs(migrations=1)  # 31 ms split, 10 ms and 20 ms of latency combined
    assert choose_layout(some, "combined", 25).layout == "combined"
    choice = choose_layout(some, "combined", 15)
    assert (choice.layout, choice.within, choice.saved_ms, choice.relieved_ms) == (
        "split",
        True,
        -21,
        5,
    )
    assert choose_layout(some, "split", 21).layout == "split"  # it would be back at the bound
    assert choose_layout(some, "split", 24).layout == "combined"


def test_where_neither_keeps_to_the_bound_the_quicker_one_is_chosen() -> None:
    slow = costs(migrations=10, with_state=5)
    choice = choose_layout(slow, "combined", 50)
    assert (choice.layout, choice.changes, choice.within) == ("split", True, False)
    assert choose_layout(slow, "split", 50) == Choice(layout="split", changes=False, within=False)
    alike = costs(migrations=2, with_state=2)  # as slow either way: then CPU time counts
    assert choose_layout(alike, "split", 1).layout == "combined"
    assert choose_layout(alike, "combined", 1).layout == "combined"


def test_key_groups_that_cannot_turn_cost_what_they_cost_combined() -> None:
    found = costs(migrations=4, with_state=3, stage_ms=7)
    assert found.split_ms == pytest.approx(100 + 30 + 7 + 1 + 3 * 10)
    assert found.split_latency_ms == 60


def test_the_most_beneficial_change_comes_first() -> None:
    def change(saved_ms: float, relieved_ms: float = 0) -> Choice:
        return Choice(
            layout="split", changes=True, within=True, saved_ms=saved_ms, relieved_ms=relieved_ms
        )

    stays = Choice(layout="combined", changes=False, within=True)
    every = {"a": change(5), "b": change(9), "c": change(-2, 3), "d": stays}
    order = []
    while (first := most_beneficial(every)) is not None:
        order.append(first)
        del every[first]
    assert order == ["c", "b", "a"]
    for names in itertools.permutations("xyz"):
        assert most_beneficial({name: change(1) for name in names}) == "x"


@pytest.mark.parametrize(
    "given",
    [{"rows": -1}, {"move_ms": math.nan}, {"move_latency_ms": math.inf}, {"with_state": 1}],
)
def test_figures_that_cannot_be_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        costs(**given)
    assert caught.value.remedy
