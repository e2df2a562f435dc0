"""What a simulated flow is made of: components in levels, and what they feed to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Component", "Feed", "levels_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Rows that a component gets from another one.

    Attributes
    ----------
    upstream
        The component that sends.
    selectivity
        Rows sent for every row that it processes.
    paired
        Share of them, in [0, 1], that key group *g* sends to one key group only, ``g`` modulo
        their number; the others go where the receiver's keys are. (Paper 2 §5.3: "1-1
        communication".)
    row_bytes
        Size of a row on its way.
    """

    upstream: str
    selectivity: float = 1.0
    paired: float = 0.0
    row_bytes: int = 100

    def __post_init__(self) -> None:
        if self.selectivity < 0 or not 0 <= self.paired <= 1 or self.row_bytes < 0:
            raise InvalidFlowError(
                f"The feed from {self.upstream!r} has selectivity {self.selectivity}, paired "
                f"{self.paired} and {self.row_bytes} bytes a row.",
                remedy="Give numbers that are not negative, and paired between 0 and 1.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One keyed component.

    Attributes
    ----------
    name
        Its name.
    key_groups
        Number of its key groups.
    row_ms, key_ms
        What the user's function takes for a row and for a distinct key of an epoch, on a core of
        speed 1, beside the runtime's own part.
    key_bytes
        State of one key.
    feeds
        Where its rows come from; none: the source.

    Raises
    ------
    InvalidFlowError
        If it has no key groups, or a cost or size is negative.
    """

    name: str
    key_groups: int = 128
    row_ms: float = 0.0
    key_ms: float = 0.0
    key_bytes: int = 100
    feeds: tuple[Feed, ...] = ()

    def __post_init__(self) -> None:
        if self.key_groups < 1 or min(self.row_ms, self.key_ms, self.key_bytes) < 0:
            raise InvalidFlowError(
                f"Component {self.name!r} has {self.key_groups} key groups, {self.row_ms} ms a row,"
                f" {self.key_ms} ms a key and {self.key_bytes} bytes a key.",
                remedy="Give at least one key group, and costs that are not negative.",
                component=self.name,
            )


def levels_of(components: Sequence[Component]) -> tuple[tuple[Component, ...], ...]:
    """Put components in levels: 1 if the source feeds them, else one more than what feeds them.

    Raises
    ------
    InvalidFlowError
        If there is none, two have one name, one is fed by nobody there is, or they feed each other
        in a circle.
    """
    named: Mapping[str, Component] = {c.name: c for c in components}
    if not components or len(named) < len(components):
        raise InvalidFlowError(
            f"Components are {[c.name for c in components]}.",
            remedy="Give at least one, each with a name of its own.",
        )
    for c in components:
        for feed in c.feeds:
            if feed.upstream not in named:
                raise InvalidFlowError(
                    f"Component {c.name!r} is fed by {feed.upstream!r}, which does not exist.",
                    remedy=f"Components are {', '.join(named)}.",
                )
    level: dict[str, int] = {}
    for _ in components:
        for c in components:
            if c.name not in level and all(f.upstream in level for f in c.feeds):
                level[c.name] = 1 + max((level[f.upstream] for f in c.feeds), default=0)
    circle = sorted(named.keys() - level.keys())
    if circle:
        raise InvalidFlowError(
            f"Components {', '.join(circle)} feed each other in a circle.",
            remedy="Let rows flow one way.",
        )
    return tuple(
        tuple(c for c in components if level[c.name] == at)
        for at in range(1, max(level.values()) + 1)
    )
