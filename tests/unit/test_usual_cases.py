"""Of tests with many long cases some run, spread evenly, unless all or one are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import usual_cases

FILE = "tests/unit/test_of_many.py"


@pytest.fixture(autouse=True)
def _three_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GODWIT_LONG", raising=False)
    monkeypatch.setattr(usual_cases, "USUAL", {FILE: {"test_drawn": 3, "test_of_minutes": 0}})


def ran(*arguments: str, keyword: str = "", names: tuple[str, ...] = ()) -> list[str]:
    """Return which tests run, of eight cases, one that is long and one that is not listed."""
    listed = names or (*(f"test_drawn[{n}]" for n in range(8)), "test_of_minutes", "test_short")
    items: Any = [_Item(f"{FILE}::{name}") for name in listed]
    left_out: list[Any] = []

    def deselected(items: list[Any]) -> None:
        """Note what is left out; pytest passes it by this name."""
        left_out.extend(items)

    config: Any = SimpleNamespace(
        option=SimpleNamespace(keyword=keyword),
        args=arguments or ("tests",),
        hook=SimpleNamespace(pytest_deselected=deselected),
    )
    everything = [*items]
    usual_cases.leave_out_long_cases(config, items)
    assert {*items, *left_out} == {*everything}
    return [item.nodeid.partition("::")[2] for item in items]


class _Item:
    """An item as pytest collects it."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_cases_are_spread_evenly_and_others_stay() -> None:
    assert ran() == ["test_drawn[0]", "test_drawn[2]", "test_drawn[5]", "test_short"]


def test_all_run_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ran(keyword="drawn")) == len(ran(f"{FILE}::test_drawn[1]")) == 10
    monkeypatch.setenv("GODWIT_LONG", "1")
    assert len(ran()) == 10


def test_a_test_that_is_gone_is_an_error() -> None:
    with pytest.raises(AssertionError, match="test_of_minutes"):
        ran(names=("test_drawn[0]",))
