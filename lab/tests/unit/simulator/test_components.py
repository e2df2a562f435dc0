"""Components in levels."""

from __future__ import annotations

import pytest

from godwit.model.errors import InvalidFlowError
from godwit_lab.simulator.flow import SimulatedComponent, UpstreamFeed, levels_of


def test_a_component_is_one_level_below_the_lowest_that_feeds_it() -> None:
    a, b = (
        SimulatedComponent(name="a"),
        SimulatedComponent(name="b", feeds=(UpstreamFeed(upstream="a"),)),
    )
    c = SimulatedComponent(name="c", feeds=(UpstreamFeed(upstream="a"), UpstreamFeed(upstream="b")))
    d = SimulatedComponent(name="d")
    assert [[x.name for x in level] for level in levels_of([c, b, a, d])] == [
        ["a", "d"],
        ["b"],
        ["c"],
    ]


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ([], "at least one"),
        ([SimulatedComponent(name="a"), SimulatedComponent(name="a")], "name of its own"),
        (
            [SimulatedComponent(name="a", feeds=(UpstreamFeed(upstream="x"),))],
            "'x', which does not exist",
        ),
        (
            [
                SimulatedComponent(name="a", feeds=(UpstreamFeed(upstream="b"),)),
                SimulatedComponent(name="b", feeds=(UpstreamFeed(upstream="a"),)),
            ],
            "a, b feed each other in a circle",
        ),
    ],
)
def test_what_is_no_flow_is_refused(components: list[SimulatedComponent], text: str) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        levels_of(components)


def test_costs_below_nothing_are_refused() -> None:
    with pytest.raises(InvalidFlowError, match="-1"):
        SimulatedComponent(name="a", row_ms=-1)
    with pytest.raises(InvalidFlowError, match="between 0 and 1"):
        UpstreamFeed(upstream="a", paired=2)
