"""Preview of a plan: its effects, before it is carried out, as data derived from a solution alone.

The pause is a prediction from sizes and bandwidths, not a measurement.  Executors send and receive
at the same time, so all transfers together take as long as the busiest up- or downlink (paper 1
§3.2 shows that a schedule of phases reaches this).  A running query knows where copies would come
from, and how quickly they came from there of late (`godwit.placement.copy_routes`); without that,
one bandwidth is taken for every link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.text import human_bytes, text_block
from godwit.placement import metrics
from godwit.placement.arrays import wrong_value
from godwit.placement.copy_routes import busiest_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.placement.copy_routes import CopyRoute
    from godwit.placement.solution import PlannedMove, Solution

DEFAULT_BANDWIDTH = 125e6
"""Bytes per second of one link: one gigabit."""
DEFAULT_CHANGED_SHARE = 0.05
"""Share of the state that changes while it is being copied."""
DEFAULT_FETCHED_SHARE = 0.15
"""Time until the first rows of state that is fetched on demand, as a share of its transfer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorChange:
    """One executor before and after."""

    # which executor, and whether it is marked for removal
    name: str
    draining: bool
    # load index (load per capacity)
    load_before: float
    load_after: float
    # how many key groups it owns
    key_groups_before: int
    key_groups_after: int
    # state it sends and receives
    bytes_out: float
    bytes_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """Predicted effects of a plan."""

    # as in the solution
    method: str
    status: str
    reason: str
    gap: float | None
    executors: tuple[ExecutorChange, ...]  # in the order of the problem
    moves: tuple[PlannedMove, ...]  # in the order they would be made
    # ψ, and its share of all state
    moved_bytes: float
    moved_share: float
    mean_index: float  # load index of every executor if the load were spread perfectly
    # largest deviation of an executor's load index from the mean
    load_distance_before: float
    load_distance_after: float
    transfer_s: float  # seconds the busiest link needs
    # by migration strategy: predicted seconds that the rows of a moving key group wait at worst.
    # ``live`` copies in the background and waits only for what changed meanwhile; ``disruptive``
    # waits for the transfer; ``on_demand`` finds the state of its rows' keys first;
    # ``stop_the_world`` writes and reads all moving state first, for everyone.
    pause_s: Mapping[str, float]
    split_key_groups: int = 0  # key groups whose rows go to two executors; no state moves for them
    routes: tuple[CopyRoute, ...] = ()  # where copies would come from, as far as someone knows

    def __repr__(self) -> str:
        return (
            f"<PlanPreview by {self.method}: {self.status}, {len(self.moves)} moves, "
            f"{human_bytes(self.moved_bytes)}>"
        )

    def _repr_html_(self) -> str:
        """Return `to_text` as HTML, for notebooks."""
        return text_block(self.to_text())

    def to_text(self, *, most_moves: int = 20) -> str:
        """Return the preview as two tables; at most `most_moves` moves are listed."""
        lines = [f"{self.method}: {self.status}" + (f" ({self.reason})" if self.reason else "")]
        lines += [
            (
                f"moves {len(self.moves)} key groups, {human_bytes(self.moved_bytes)} "
                f"({self.moved_share:.1%} of the state)"
            ),
            *(
                [f"splits {self.split_key_groups} key groups over two executors each"]
                if self.split_key_groups
                else []
            ),
            f"load distance {self.load_distance_before:.4g} -> {self.load_distance_after:.4g}"
            + ("" if self.gap is None else f", gap to the bound {self.gap:.2%}"),
            f"transfer {self.transfer_s:.3g} s; predicted pause "
            + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.pause_s.items()),
            *_describe_copies(self.routes),
            "",
            table(
                ("executor", "load", "->", "key groups", "->", "sends", "receives"),
                [
                    (
                        change.name + (" (draining)" if change.draining else ""),
                        f"{change.load_before:.4g}",
                        f"{change.load_after:.4g}",
                        str(change.key_groups_before),
                        str(change.key_groups_after),
                        human_bytes(change.bytes_out),
                        human_bytes(change.bytes_in),
                    )
                    for change in self.executors
                ],
            ),
        ]
        if self.moves:
            rows = [
                (
                    str(m.key_group),
                    m.source,
                    m.destination,
                    human_bytes(m.state_bytes),
                    f"{m.load:.4g}",
                    f"{m.relief_per_byte:.3g}",
                )
                for m in self.moves[:most_moves]
            ]
            lines += ["", table(("key group", "from", "to", "state", "load", "per byte"), rows)]
        if len(self.moves) > most_moves:
            lines.append(f"... and {len(self.moves) - most_moves} more")
        return "\n".join(lines)


def preview(
    solution: Solution,
    *,
    bandwidth_bytes_per_s: float = DEFAULT_BANDWIDTH,
    changed_share: float = DEFAULT_CHANGED_SHARE,
    routes: Sequence[CopyRoute] = (),
) -> PlanPreview:
    """Predict the effects of carrying out a solution.

    `bandwidth_bytes_per_s`: of one executor's link, each way; with `routes`, only for routes never
    measured. `changed_share`: share of the state that changes while it is copied. Raises
    `InvalidProblemError` if the bandwidth is not positive, or the share not in [0, 1].
    """
    for name, value, fine in (
        ("bandwidth_bytes_per_s", bandwidth_bytes_per_s, 0 < bandwidth_bytes_per_s < np.inf),
        ("changed_share", changed_share, 0 <= changed_share <= 1),
    ):
        if not fine:
            raise wrong_value(name, value, "give a positive bandwidth and a share between 0 and 1")
    problem, after = solution.problem, solution.assignment
    before, n = problem.current, problem.num_executors
    moved, state = solution.moved, problem.state_bytes
    sent = np.bincount(before[moved], weights=state[moved], minlength=n)
    received = np.bincount(after[moved], weights=state[moved], minlength=n)
    index_before = metrics.load_index(problem, before)
    index_after = solution.load_index
    count_before = np.bincount(before, minlength=n)
    split = solution.split
    count_after = np.bincount(after, minlength=n) if split is None else split.holders(n)
    total = float(state.sum())
    size = solution.moved_bytes
    transfer = float(max(sent.max(), received.max())) / bandwidth_bytes_per_s
    if routes:
        transfer = busiest_s(routes, bandwidth_bytes_per_s)
    return PlanPreview(
        method=solution.method,
        status=solution.status.value,
        reason=solution.reason,
        gap=solution.gap,
        executors=tuple(
            ExecutorChange(
                name=name,
                draining=bool(problem.draining[e]),
                load_before=float(index_before[e]),
                load_after=float(index_after[e]),
                key_groups_before=int(count_before[e]),
                key_groups_after=int(count_after[e]),
                bytes_out=float(sent[e]),
                bytes_in=float(received[e]),
            )
            for e, name in enumerate(problem.executors)
        ),
        moves=solution.moves,
        moved_bytes=size,
        moved_share=size / total if total else 0.0,
        mean_index=metrics.mean_index(problem) if split is None else split.mean_index(problem),
        split_key_groups=0 if split is None else split.num_split,
        load_distance_before=metrics.load_distance(problem, before),
        load_distance_after=solution.load_distance,
        transfer_s=transfer,
        pause_s={
            "live": transfer * changed_share,
            "disruptive": transfer,
            "on_demand": transfer * DEFAULT_FETCHED_SHARE,
            "stop_the_world": 2 * transfer + solution.migration_cost_s,
        },
        routes=tuple(routes),
    )


def _describe_copies(routes: Sequence[CopyRoute]) -> list[str]:
    """Return lines of text that say where copies come from, one for each source and reason."""
    routes_by_way: dict[str, list[CopyRoute]] = {}
    for route in routes:
        if route.source == route.destination:
            way = "there already, to be brought forward from the checkpoint"
        else:
            way = "from the checkpoint" if route.source is None else "from other executors"
            rate = route.bytes_per_s
            way += f" at {human_bytes(rate)}/s (measured)" if rate else " (never measured)"
            way += f": {route.why}" if route.why else ""
        routes_by_way.setdefault(way, []).append(route)
    return [
        f"copies of {sum(len(route_.key_groups) for route_ in copied)} key groups, "
        f"{human_bytes(sum(route_.size_bytes for route_ in copied))}, {way}"
        for way, copied in routes_by_way.items()
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Format a text table with titles `head`; the first `left` columns are aligned left."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
