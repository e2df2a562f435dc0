"""Cost model of one-phase and two-phase windows.

Windows that are consolidated in another component (*split*) migrate without their state, and hand
every partial on through an exchange; in one component (*combined*) there is no exchange, and
whatever migrates takes its state along.

Invariant: of the two layouts, the one of less CPU time is chosen among those whose migrations take
no longer than the user allows; if neither is within that, the one whose migrations take least.
Equal costs are equal choices, and a layout is given up only for one that is better by a margin.

Source: Madsen et al. (Enorm) §5.1.1, the cost of Split and of Combine, and §5.1.2, the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

from godwit.model.errors import InvalidProblemError
from godwit.model.naming import check_number

if TYPE_CHECKING:
    from collections.abc import Mapping

WindowLayout = Literal["split", "combined"]

_CHANGE_RATIO: Final = 0.85
"""A layout is adopted if its differing costs are at most this share of the current layout's."""
_LEAST_SAVED: Final = 0.01
"""Min. saving of CPU time, as a share, for a change of the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCosts:
    """Work and costs of a windowed aggregate in one period, p in the paper.

    CPU time and latencies are in milliseconds.

    Raises `InvalidProblemError` if a figure is negative or no finite number, or more migrations are
    with_state than there are.
    """

    rows: float  # T_p: rows to process
    row_ms: float  # E: CPU time of a row in one state
    # states that a row changes: 1 and W (the overlapping windows) in the paper
    split_states: float = 1.0
    combined_states: float = 1.0
    partials: float  # PW_p: partial windows that are handed to consolidation
    key_groups: int  # number of key groups
    # K_1: CPU time to hand one key group's part of one partial window to another component
    partial_ms: float
    migrations: float  # MK_p: key groups that migrate to balance load
    instant_ms: float  # CPU time to migrate a key group without its state: K_1 in the paper
    move_ms: float  # K_x: CPU time to migrate a key group with all its state, x = PW_p in the paper
    move_latency_ms: float  # L: how long it takes to migrate a key group with its state
    # of `migrations`, those that take their state along even when split. 0 in the paper.
    with_state: float = 0.0
    # CPU time of what epochs do for the exchange whether or not anything crosses it. 0 in the
    # paper, where tuples flow.
    stage_ms: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            what = f"The figure {field.name} of a layout's costs"
            check_number(what, value, least=0, whole=False, error=InvalidProblemError)
            if not math.isfinite(value):
                raise InvalidProblemError(f"{what} is {value}.", remedy="Give a finite number.")
        if self.with_state > self.migrations:
            raise InvalidProblemError(
                f"There are {self.migrations} migrations, but {self.with_state} of them are "
                "counted as moving state.",
                remedy="Count these among the migrations, too.",
            )

    @property
    def split_ms(self) -> float:
        """CPU time of two phases: T_p·E + PW_p·K_1·#keygroups + MK_p·K_1, moves and stages."""
        handed_ms = self.partials * self.partial_ms * self.key_groups + self.stage_ms
        instant_total_ms = (self.migrations - self.with_state) * self.instant_ms
        return (
            self.rows * self.row_ms * self.split_states
            + handed_ms
            + instant_total_ms
            + self.with_state * self.move_ms
        )

    @property
    def combined_ms(self) -> float:
        """CPU time of the one-phase layout, in milliseconds: T_p·W·E + MK_p·K_(PW_p)."""
        return self.rows * self.row_ms * self.combined_states + self.migrations * self.move_ms

    @property
    def split_latency_ms(self) -> float:
        """Time of migrations in the two-phase layout: L for each key group whose state moves."""
        return self.with_state * self.move_latency_ms

    @property
    def combined_latency_ms(self) -> float:
        """Time of migrations in the one-phase layout, in milliseconds: MK_p·L."""
        return self.migrations * self.move_latency_ms

    def ms(self, layout: WindowLayout) -> float:
        """Return the CPU time of a layout, in milliseconds."""
        return self.split_ms if layout == "split" else self.combined_ms

    def latency_ms(self, layout: WindowLayout) -> float:
        """Return the time that migrations take in a layout, in milliseconds."""
        return self.split_latency_ms if layout == "split" else self.combined_latency_ms

    @property
    def common_ms(self) -> float:
        """CPU time, in milliseconds, that is the same in the one-phase and the two-phase layout."""
        states = min(self.split_states, self.combined_states)
        return self.rows * self.row_ms * states + self.with_state * self.move_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Choice of a layout, and its saving."""

    layout: WindowLayout  # the layout
    changes: bool  # whether it is another one than today's
    within: bool  # whether its migrations take no longer than they may
    # CPU time a period that is saved by changing; negative if latency is bought with it
    saved_ms: float = 0.0
    relieved_ms: float = 0.0  # latency above the limit that a change removes


def choose_layout(
    costs: LayoutCosts, today: WindowLayout, max_latency_ms: float = math.inf
) -> Choice:
    """Choose the layout of windows with the least CPU time within a latency bound.

    `costs`: of one period. `today`: the layout that was in use. `max_latency_ms`: bound on the time
    that all migrations of a period take together.
    """
    other: WindowLayout = "combined" if today == "split" else "split"
    within = {layout: costs.latency_ms(layout) <= max_latency_ms for layout in (today, other)}
    saved_ms = costs.ms(today) - costs.ms(other)
    gained_ms = costs.latency_ms(today) - costs.latency_ms(other)
    if not within[today]:
        if within[other] or gained_ms > 0 or (gained_ms == 0 and _is_worth(costs, today, other)):
            return Choice(
                layout=other,
                changes=True,
                within=within[other],
                saved_ms=saved_ms,
                relieved_ms=costs.latency_ms(today) - max(max_latency_ms, costs.latency_ms(other)),
            )
    elif costs.latency_ms(other) <= _CHANGE_RATIO * max_latency_ms and _is_worth(
        costs, today, other
    ):
        return Choice(layout=other, changes=True, within=True, saved_ms=saved_ms)
    return Choice(layout=today, changes=False, within=within[today])


def _is_worth(costs: LayoutCosts, today: WindowLayout, other: WindowLayout) -> bool:
    """Return whether the `other` layout saves enough CPU time to replace `today`."""
    now_ms, then_ms = costs.ms(today), costs.ms(other)
    tells_ms = now_ms - costs.common_ms
    saved_ms = now_ms - then_ms
    return saved_ms >= (1 - _CHANGE_RATIO) * tells_ms and saved_ms > _LEAST_SAVED * now_ms


def most_beneficial(choices: Mapping[str, Choice]) -> str | None:
    """Return the component to change first: furthest above its bound, then largest saving.

    `choices`: component → its choice, for equal lengths of time. ``None`` if no component should
    change. Ties: the first by name.
    """
    changing = {name: choice for name, choice in choices.items() if choice.changes}
    return min(
        changing,
        key=lambda name: (-changing[name].relieved_ms, -changing[name].saved_ms, name),
        default=None,
    )
