"""Policy for hot keys: divides their rows among lanes, and gathers them when they cool.

Lanes report which keys of an operator have most work: of a join, rows that come, rows of state that
are looked at for them, and pairs; of any other operator, microseconds.  A key with more than a
lane's share is given a grid of parts (`godwit.operators.spreading`), as few as bring each part
below half of that share, in the lanes that have least to do.  A key group cannot be split by moving
it, so balancing does nothing for a key like that; the parts are key groups like others, which it
moves.

Invariant: results do not depend on how keys are spread.

Source: where to split hot keys, by counts of the key's rows beside a worker's share, as in Nasir et
al. ("When Two Choices Are not Enough", 2016); join matrix, `godwit.control.planners.spreading`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.control.planners.spreading import SidesOfKey, choose_shape, place_parts
from godwit.control.policy import Hysteresis, Proposal, check_epoch_settings
from godwit.model.decision_events import ManualChange
from godwit.model.errors import InvalidFlowError, InvalidPlanError, MigrationError
from godwit.model.frames import user_class
from godwit.model.key_groups import OperatorWork
from godwit.model.naming import did_you_mean, listing
from godwit.operators.spreading import (
    WHOLE,
    Grid,
    hash_undivided,
    key_group_of_part,
    keys_as_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.control.policy import FlowEpoch, ManualOverrides
    from godwit.engine.spreading import SpreadOrders
    from godwit.model.assignment import Assignment
    from godwit.model.key_groups import KeyWork
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow

_GOAL: Final = 0.5
"""Most of a part, as a share of what a lane gets on average."""
_WORTH: Final = 0.7
"""A grid is given up for one whose parts have this share of the work of today's, or less."""
_MIN_WORK: Final = 4096
"""Rows and pairs of an epoch, or microseconds, below which no lane is worth relieving."""
_CANDIDATES: Final = 64
"""Parts to choose from, for each that is needed."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """Settings for dividing the rows of hot keys among several lanes (parallel tasks).

    Pass it as ``gw.Adaptation(spreading=...)``. It applies to joins with ``spread=``, and to
    ``process`` with ``merge=``.

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
    >>> gw.Adaptation(spreading=gw.control.Spreading(spread_above=0.5)).spreading.spread_above
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
                f"gw.control.Spreading was given gather_below={self.gather_below!r} and "
                f"spread_above={self.spread_above!r}.",
                remedy="Give shares of what a lane gets, the first below the second: between the "
                "two everything stays as it is.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadKeyOver:
    """Request to divide the rows of one hot key among parts, or to gather them again.

    Each part of `grid` is in a key group of its own; the grid `WHOLE` gathers the key.
    """

    operator: str
    hash: int  # of the key
    key: str  # its values as JSON
    grid: Grid


def spreading_of(flow: CompiledFlow, settings: Spreading | None) -> Spreading | None:
    """Check the settings for dividing hot keys against a flow, and return them.

    Raises `InvalidFlowError` if there are settings and no operator whose keys may be divided.
    """
    if settings is None or any(operator.max_parts for operator in flow.operators):
        return settings
    raise InvalidFlowError(
        f"The setting spreading of adaptation has nothing to decide: flow {flow.name!r} has no "
        "join(..., spread=...) and no process(..., merge=...).",
        remedy="Say of a join into how many parts rows of a hot key may be divided, as in "
        'join(payments.key_by("order"), between=("0 seconds", "1 hour"), spread=4), or how two '
        "states of a function become one, as in process(..., merge=add), or leave spreading= out.",
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
        self._orders, self._settings, self._overrides = orders, settings, overrides
        self._hysteresis = Hysteresis(confirm=settings.confirm)
        self._periods = {name: _Period() for name in orders}
        self._epochs = 0
        self._standing: dict[tuple[str, int], Proposal] = {}

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
        self._standing.clear()
        for name, period in self._periods.items():
            if not self._overrides.holds(ManualChange.HOT_KEYS.of(name), epoch.at_s):
                self._evaluate(name, period, epoch)
        self._periods, self._epochs = {name: _Period() for name in self._orders}, 0

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Yield the changes of the last evaluation, until they are answered."""
        yield from tuple(self._standing.values())

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out or rejected."""
        change = proposal.change
        self._standing.pop((change.operator, change.hash), None)
        self._hysteresis.reset(f"{change.operator} {change.hash}")

    def _evaluate(self, name: str, period: _Period, epoch: FlowEpoch) -> None:
        """Create proposals for the hot keys of an operator, from the period's measurements."""
        orders, plan = self._orders[name], epoch.component_views[epoch.flow.component_of(name).name]
        spreads = orders.spreads
        measured = {of.hash: of for of in period.work.keys}
        cold = [key_hash for key_hash in spreads.keys if key_hash not in measured]
        lanes = sum(plan.assignment.lanes)
        for key_hash in (*measured, *cold):
            if orders.is_changing(key_hash):
                continue
            now = spreads.grid_of(key_hash)
            sides = _sides(measured.get(key_hash), now)
            shape = self._shape(sides, now, period.work.total / lanes, orders, lanes)
            subject = f"{name} {key_hash}"
            if not self._hysteresis.is_confirmed(subject, shape):
                continue
            assert shape is not None, "nothing confirms no change"
            key = measured[key_hash].key if key_hash in measured else spreads.keys[key_hash].key
            count = shape[0] * shape[1]
            grid = Grid(
                rows=shape[0],
                columns=shape[1],
                parts=parts_for(
                    key_hash,
                    count,
                    taken=now,
                    assignment=plan.assignment,
                    cpu_ms=period.cpu_ms,
                    share=count * sides.work_of_part(*shape) / max(period.work.total, 1),
                    hashes_whole=orders.operator.hashes_whole,
                ),
            )
            share = sides.total * lanes / max(period.work.total, 1)
            before, after = sides.work_of_part(now.rows, now.columns), sides.work_of_part(*shape)
            relief = sides.copied_rows(now.rows, now.columns) if grid == WHOLE else before - after
            self._standing[name, key_hash] = Proposal(
                subject=ManualChange.HOT_KEYS.of(name),
                change=SpreadKeyOver(operator=name, hash=key_hash, key=key, grid=grid),
                reason=f"it has {share:.2f} times the work of a lane",
                gain=relief / self._settings.epochs,  # in rows an epoch
                cost=max(sides.copied_rows(*shape) - sides.copied_rows(now.rows, now.columns), 0.0)
                / lanes
                / self._settings.epochs,
                numbers={
                    "share": share,
                    "left_rows": sides.left,
                    "right_rows": sides.right,
                    "pairs": sides.pairs,
                },
            )

    def _shape(
        self, key: SidesOfKey, now: Grid, mean: float, orders: SpreadOrders, lanes: int
    ) -> tuple[int, int] | None:
        """Return the grid of parts (rows, columns) that a key should have; ``None``: no change.

        `now`: its present grid. `mean`: mean load of the operator's `lanes` lanes.
        """
        if key.total <= self._settings.gather_below * mean:
            return None if now == WHOLE else (1, 1)
        little = mean * lanes < _MIN_WORK * self._settings.epochs
        if little or key.total <= self._settings.spread_above * mean:
            return None
        most = min(orders.operator.max_parts, lanes)
        shape = choose_shape(key, max_parts=most, goal=_GOAL * mean)
        if key.work_of_part(*shape) > _WORTH * key.work_of_part(now.rows, now.columns):
            return None
        return shape


def _sides(work: KeyWork | None, grid: Grid) -> SidesOfKey:
    """Return a key's rows of each side and its pairs, each counted once, from work over parts."""
    if work is None:
        return SidesOfKey(left=0.0, right=0.0, pairs=0.0)
    return SidesOfKey(
        left=work.left / grid.columns, right=work.right / grid.rows, pairs=float(work.pairs)
    )


def parts_for(
    key_hash: int,
    count: int,
    *,
    taken: Grid,
    assignment: Assignment,
    cpu_ms: Mapping[int, float],
    share: float = 1.0,
    hashes_whole: bool = True,
) -> tuple[int, ...]:
    """Choose `count` parts for a key, on different lanes with the least load.

    `key_hash`: see `key_group_of_part`. `taken`: the present grid, whose parts are in use.
    `assignment`: that of the operator's component. `cpu_ms`: key group → load, if it has any.
    `share`: share of all that load in the key's parts. `hashes_whole`: see
    `KeyedOperator.hashes_whole`.
    """
    if count == 1:
        return WHOLE.parts
    width = max(assignment.lanes)
    place = assignment.executor_of.astype(np.int64) * width + assignment.lane_of
    load = np.zeros(len(assignment.executors) * width)
    busy = np.zeros(assignment.num_key_groups)
    busy[list(cpu_ms)] = list(cpu_ms.values())
    np.add.at(load, place, busy)
    numbers = np.arange(1, 1 + _CANDIDATES * (count + len(taken.parts)), dtype=np.int64)
    numbers = numbers[~np.isin(numbers, taken.parts)]
    key_groups = key_group_of_part(key_hash, numbers, assignment.num_key_groups)
    home = key_group_of_part(
        key_hash,
        np.array(taken.parts, np.int64),
        assignment.num_key_groups,
        hashes_whole=hashes_whole,
    )
    # What is spread goes from where it is.
    np.subtract.at(load, place[home], busy[home])
    each = max(float(busy.sum()), 1.0) * share / count
    chosen = place_parts(place[key_groups], load, count, each)
    return tuple(int(numbers[at]) for at in chosen)


# -- by hand


def orders_of(spreading: Mapping[str, SpreadOrders], name: str) -> SpreadOrders:
    """Return the requests for hot keys of operator `name`.

    Raises `InvalidPlanError` if the operator's keys cannot be divided.
    """
    if name in spreading:
        return spreading[name]
    known = f"Those are {listing(spreading)}." if spreading else "No operator has either."
    raise InvalidPlanError(
        f"There is no join {name!r} with spread=, and no process with merge=.",
        remedy=f"{did_you_mean(str(name), list(spreading))}{known}",
        operator=name,
    )


def change_by_hand(
    orders: SpreadOrders, key: Any, shape: tuple[int, int] | None, assignment: Assignment
) -> SpreadKeyOver:
    """Return the change of a key's parts that a user requested; raise if it is not valid.

    `shape`: numbers of parts of the left and of the right rows; ``None``: make the key whole again.
    `assignment`: that of the operator's component. Raises `InvalidPlanError` if key or shape is not
    valid, and `MigrationError` while another change of the key is in progress.
    """
    operator, (left, right) = orders.operator, shape or (1, 1)
    name = operator.name
    if shape is not None and not (
        all(type(n) is int and n >= 1 for n in shape) and 2 <= left * right <= operator.max_parts
    ):
        raise InvalidPlanError(
            f"Operator {name!r} was to divide a key in left={left!r} and right={right!r} parts.",
            remedy="Give whole numbers from 1, whose product is from 2 to "
            f"{operator.max_parts}, the most parts that its keys may have.",
            operator=name,
        )
    if operator.part_states and right > 1:
        raise InvalidPlanError(
            f"Operator {name!r} was to divide a key in right={right!r} parts, and is no join.",
            remedy=f"Give the number of parts alone, as in left={left * right}.",
            operator=name,
        )
    row = _key_row(operator, key)
    (key_hash,), (text,) = hash_undivided(row).tolist(), keys_as_json(row)
    now = orders.spreads.grid_of(key_hash)
    change = SpreadKeyOver(operator=name, hash=key_hash, key=text, grid=WHOLE)
    if orders.is_changing(key_hash):
        raise being_changed(change)
    if now == WHOLE and shape is None:
        raise InvalidPlanError(
            f"Key {text} of operator {name!r} is not spread.",
            remedy="query.hot_keys says which are.",
            operator=name,
        )
    parts = parts_for(
        key_hash,
        left * right,
        taken=now,
        assignment=assignment,
        cpu_ms={},
        hashes_whole=operator.hashes_whole,
    )
    return replace(change, grid=Grid(rows=left, columns=right, parts=parts))


def being_changed(change: SpreadKeyOver) -> MigrationError:
    """Return the error that another change of the same key is in progress."""
    return MigrationError(
        f"A change of key {change.key} of operator {change.operator!r} is under way.",
        remedy="Wait for an epoch with input; of a join, until the watermark has passed what rows "
        "of before it can meet: its interval, and the slack.",
        operator=change.operator,
    )


def _key_row(operator: KeyedOperator, key: Any) -> pa.RecordBatch:
    """Return a user's key as one row of the operator's key columns; raise if it is not valid."""
    fields = list(operator.user_keys)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(fields):
        raise InvalidPlanError(
            f"Key {key!r} has {len(values)} values, and operator {operator.name!r} is keyed by "
            f"{listing(operator.user_keys.names)}.",
            remedy="Give a value for each key column, in a tuple if there are several.",
            operator=operator.name,
        )
    try:
        columns = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        types = ", ".join(f"{field.name} {field.type}" for field in fields)
        raise InvalidPlanError(
            f"Key {key!r} is none of operator {operator.name!r}: {error}.",
            remedy=f"Its key columns are {types}.",
            operator=operator.name,
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=operator.user_keys)
