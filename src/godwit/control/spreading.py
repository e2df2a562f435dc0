"""Policy that divides hot keys' rows among lanes, and merges the parts when they cool down.

Lanes report which keys of an operator have most work: of a join, rows that come, rows of state that
are looked at for them, and pairs; of any other operator, microseconds.  A key with more than a
lane's share is given a grid of parts (`godwit.operators.hot_keys`), as few as bring each part
below half of that share, in the lanes that have least to do.  A key group cannot be split by moving
it, so balancing does nothing for a key like that; the parts are key groups like others, which it
moves.

Invariant: results do not depend on how keys are spread.

Source: where to split hot keys, by counts of the key's rows beside a worker's share, as in Nasir et
al. ("When Two Choices Are not Enough", 2016); join matrix, `godwit.control.planners.spreading`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from godwit.checkpoint.records import Grid
from godwit.control.planners.spreading import SidesOfKey, choose_shape
from godwit.control.policy import Hysteresis, check_epoch_settings
from godwit.engine.policies import Proposal
from godwit.model.decision_events import ManualChange
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.key_groups import OperatorWork
from godwit.operators.hot_key_orders import SpreadKeyOver, parts_for
from godwit.operators.hot_keys import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.control.policy import ManualOverrides
    from godwit.engine.policies import FlowEpoch
    from godwit.model.key_groups import KeyWork
    from godwit.operators.hot_key_orders import SpreadOrders
    from godwit.plan.compiled import CompiledFlow

_GOAL_PART_SHARE: Final = 0.5
"""Max. work of a part, as a share of a lane's average."""
_MAX_WORK_RATIO: Final = 0.7
"""A grid is replaced by one whose parts have at most this share of its parts' work."""
_MIN_WORK: Final = 4096
"""Min. rows and pairs, or microseconds, of an epoch for dividing keys."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """Settings for dividing the rows of hot keys among several lanes (parallel tasks).

    Pass it as ``gw.control.Adaptation(spreading=...)``. It applies to joins with ``spread=``, and
    to ``process`` with ``merge=``.

    Attributes
    ----------
    epochs
        Number of epochs with input from one decision to the next, which uses their measurements.
    spread_above, gather_below
        The rows of a key are divided if its work is more than `spread_above` times the work of an
        average lane, and go to one lane again if it is at most `gather_below` times that. In
        between nothing changes. Work is the number of rows and pairs of a join, or the time of
        ``process``.
    confirm
        Number of consecutive decisions that must agree before anything changes.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> hot = gw.control.Spreading(spread_above=0.5)
    >>> gw.control.Adaptation(spreading=hot).spreading.spread_above
    0.5
    """

    epochs: int = 8
    spread_above: float = 1.0
    gather_below: float = 0.25
    confirm: int = 2

    def __post_init__(self) -> None:
        check_epoch_settings(self)
        bounds = (self.gather_below, self.spread_above)
        if not all(type(bound) in (int, float) for bound in bounds) or not (
            0 <= self.gather_below < self.spread_above
        ):
            raise InvalidFlowError(
                f"gw.control.Spreading has gather_below={self.gather_below!r} and "
                f"spread_above={self.spread_above!r}.",
                remedy="Give shares of a lane's average work, the first below the second; "
                "between the two, nothing changes.",
            )


def spreading_of(flow: CompiledFlow, settings: Spreading | None) -> Spreading | None:
    """Check the settings for dividing hot keys against a flow, and return them.

    Raises `InvalidFlowError` if there are settings and no operator whose keys may be divided.
    """
    if settings is None or any(operator.max_parts for operator in flow.operators):
        return settings
    raise InvalidFlowError(
        f"The setting spreading of adaptation has no effect: flow {flow.name!r} has no join(..., "
        "spread=...) and no state with merge=.",
        remedy="For a join, give the number of parts of a hot key, as in "
        'join(payments.key_by("order"), between=("0 seconds", "1 hour"), spread=4), for a '
        "function, give the merging of two states, as in state=gw.ValueState(dict, merge=add), "
        "or omit spreading=.",
        flow=flow.name,
    )


@dataclass(slots=True, kw_only=True)
class _Period:
    """Measurements of one operator since the last evaluation."""

    work: OperatorWork = field(default_factory=OperatorWork)
    cpu_ms: dict[int, float] = field(default_factory=dict)  # key group → CPU time


class SpreadHotKeys:
    """Policy that finds hot keys, and proposes parts for them."""

    def __init__(
        self,
        orders: Mapping[str, SpreadOrders],  # operator → how its keys are spread
        settings: Spreading,
        *,
        overrides: ManualOverrides,
    ) -> None:
        self._spread_orders, self._settings, self._overrides = orders, settings, overrides
        self._hysteresis = Hysteresis(confirm=settings.confirm)
        self._periods = {name: _Period() for name in orders}
        self._epochs = 0
        self._standing_proposals: dict[tuple[str, int], Proposal] = {}

    def observe(self, epoch: FlowEpoch) -> None:
        """Add an epoch to the period; after `Spreading.epochs` epochs with input, evaluate it."""
        outcome = epoch.outcome
        for name, period in self._periods.items():
            period.work += outcome.key_work.get(name, OperatorWork())
            load = outcome.loads.get(epoch.flow.component_of(name).name)
            if load is not None:
                for key_group, spent in zip(load.key_groups, load.cpu_ms, strict=True):
                    known = period.cpu_ms.get(int(key_group), 0.0)
                    period.cpu_ms[int(key_group)] = known + float(spent)
        self._epochs += outcome.batch is not None
        if self._epochs < self._settings.epochs:
            return
        self._standing_proposals.clear()
        for name, period in self._periods.items():
            if not self._overrides.holds(ManualChange.HOT_KEYS.of(name), epoch.at_s):
                self._propose_for_hot_keys(name, period, epoch)
        self._periods, self._epochs = {name: _Period() for name in self._spread_orders}, 0

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Yield the changes of the last evaluation, until they are answered."""
        yield from tuple(self._standing_proposals.values())

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out or rejected."""
        change = proposal.change
        self._standing_proposals.pop((change.operator, change.hash), None)
        self._hysteresis.reset(f"{change.operator} {change.hash}")

    def _propose_for_hot_keys(self, name: str, period: _Period, epoch: FlowEpoch) -> None:
        """Create proposals for the hot keys of an operator, from the period's measurements."""
        orders, plan = (
            self._spread_orders[name],
            epoch.component_views[epoch.flow.component_of(name).name],
        )
        spreads = orders.spreads
        measured = {work.hash: work for work in period.work.keys}
        cold = [key_hash for key_hash in spreads.keys if key_hash not in measured]
        lanes = sum(plan.assignment.lanes)
        for key_hash in (*measured, *cold):
            if orders.is_changing(key_hash):
                continue
            grid_now = spreads.grid_of(key_hash)
            sides = _rows_of_sides(measured.get(key_hash), grid_now)
            shape = self._wanted_grid(sides, grid_now, period.work.total / lanes, orders, lanes)
            subject = f"{name} {key_hash}"
            if not self._hysteresis.is_confirmed(subject, shape):
                continue
            assert shape is not None, "an empty change confirms that nothing changes"
            key = measured[key_hash].key if key_hash in measured else spreads.keys[key_hash].key
            count = shape[0] * shape[1]
            grid = Grid(
                rows=shape[0],
                columns=shape[1],
                parts=parts_for(
                    key_hash,
                    count,
                    taken=grid_now,
                    assignment=plan.assignment,
                    cpu_ms=period.cpu_ms,
                    share=count * sides.work_of_part(*shape) / max(period.work.total, 1),
                    hashes_whole=orders.operator.hashes_whole,
                ),
            )
            share = sides.total * lanes / max(period.work.total, 1)
            work_before, work_after = (
                sides.work_of_part(grid_now.rows, grid_now.columns),
                sides.work_of_part(*shape),
            )
            relief = (
                sides.copied_rows(grid_now.rows, grid_now.columns)
                if grid == WHOLE
                else work_before - work_after
            )
            self._standing_proposals[name, key_hash] = Proposal(
                subject=ManualChange.HOT_KEYS.of(name),
                reverses=frozenset({ManualChange.HOT_KEYS.of(name)}),
                change=SpreadKeyOver(operator=name, hash=key_hash, key=key, grid=grid),
                reason=f"it has {share:.2f} times the average work of a lane",
                gain=relief / self._settings.epochs,  # in rows an epoch
                cost=max(
                    sides.copied_rows(*shape) - sides.copied_rows(grid_now.rows, grid_now.columns),
                    0.0,
                )
                / lanes
                / self._settings.epochs,
                numbers={
                    "share": share,
                    "left_rows": sides.left,
                    "right_rows": sides.right,
                    "pairs": sides.pairs,
                },
            )

    def _wanted_grid(
        self, key: SidesOfKey, now: Grid, mean: float, orders: SpreadOrders, lanes: int
    ) -> tuple[int, int] | None:
        """Return the required grid of parts (rows, columns) of a key; ``None``: no change.

        `now`: its present grid. `mean`: mean load of the operator's `lanes` lanes.
        """
        if key.total <= self._settings.gather_below * mean:
            return None if now == WHOLE else (1, 1)
        little = mean * lanes < _MIN_WORK * self._settings.epochs
        if little or key.total <= self._settings.spread_above * mean:
            return None
        most = min(orders.operator.max_parts, lanes)
        shape = choose_shape(key, max_parts=most, goal=_GOAL_PART_SHARE * mean)
        if key.work_of_part(*shape) > _MAX_WORK_RATIO * key.work_of_part(now.rows, now.columns):
            return None
        return shape


def _rows_of_sides(work: KeyWork | None, grid: Grid) -> SidesOfKey:
    """Return a key's rows of each side and its pairs, each counted once, from work over parts."""
    if work is None:
        return SidesOfKey(left=0.0, right=0.0, pairs=0.0)
    return SidesOfKey(
        left=work.left / grid.columns, right=work.right / grid.rows, pairs=float(work.pairs)
    )
