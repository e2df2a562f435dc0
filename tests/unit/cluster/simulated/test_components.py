"""Components in levels."""

from __future__ import annotations

import pytest

from godwit.cluster.simulated.components import Component, Feed, levels_of
from godwit.model.errors import InvalidFlowError


def test_a_component_is_one_level_below_the_lowest_that_feeds_it() -> None:
    a, b = Component(name="a"), Component(name="b", feeds=(Feed(upstream="a"),))
    c = Component(name="c", feeds=(Feed(upstream="a"), Feed(upstream="b")))
    d = Component(name="d")
    assert [[x.name for x in level] for level in levels_of([c, b, a, d])] == [
        ["a", "d"],
        ["b"],
        ["c"],
    ]


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ([], "at least one"),
        ([Component(name="a"), Component(name="a")], "name of its own"),
        ([Component(name="a", feeds=(Feed(upstream="x"),))], "'x', which does not exist"),
        (
            [
                Component(name="a", feeds=(Feed(upstream="b"),)),
                Component(name="b", feeds=(Feed(upstream="a"),)),
            ],
            "a, b feed each other in a circle",
        ),
    ],
)
def test_what_is_no_flow_is_refused(components: list[Component], text: str) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        levels_of(components)


def test_costs_below_nothing_are_refused() -> None:
    with pytest.raises(InvalidFlowError, match="-1"):
        Component(name="a", row_ms=-1)
    with pytest.raises(InvalidFlowError, match="between 0 and 1"):
        Feed(upstream="a", paired=2)
