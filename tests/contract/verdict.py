"""Plays scenarios on realizations, and judges what came of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.contract.flow import NUM_KEY_GROUPS, Source, Undisturbed, key_group_of
from tests.contract.scenario import (
    Cancel,
    Deal,
    Drain,
    Executors,
    ForgetStore,
    Lanes,
    Migrate,
    Quiet,
    Regroup,
    Restart,
    Rows,
    Settle,
    Warming,
)

from godwit.migration import Bounds, Strategy
from godwit.model.assignment import even_assignment
from godwit.model.errors import MigrationError
from godwit.model.events import EpochCommitted, KeyGroupsSuspended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.contract.realization import Realization
    from tests.contract.scenario import Scenario, Step

    from godwit.model.assignment import Assignment
    from godwit.model.events import Event

__all__ = ["play"]


def play(scenario: Scenario, realization: Realization) -> None:
    """Play a scenario to its end, then judge it."""
    played = _Play(scenario, realization)
    realization.start(scenario.executors)
    try:
        for step in (*scenario.steps, Settle()):
            played.carry_out(step)
        _judge(scenario, realization, played.undisturbed, played.migrations)
    finally:
        realization.stop()


class _Play:
    def __init__(self, scenario: Scenario, realization: Realization) -> None:
        self.realization = realization
        self.source = Source(scenario.seed)
        self.undisturbed = Undisturbed(deep=scenario.deep, again=scenario.again)
        self.migrations: list[str] = []

    def component(self, operator: str) -> str:
        """Name the component of an operator."""
        return self.realization.component_of(operator)

    def carry_out(self, step: Step) -> None:
        realization = self.realization
        match step:
            case Rows():
                rows = self.source.rows(step.count, step.keys)
                self.undisturbed.epoch(rows)
                realization.epoch(rows, step.misfortune, step.loses)
            case Quiet():
                realization.quiet()
            case Settle():
                realization.settle()
            case Migrate():
                component = self.component(step.component)
                current = _with_newcomers(realization, component)
                to = None if step.to is None else realization.executor(step.to)
                target = _target(step.key_groups, to, current)
                self._migrate(component, target, step.strategy, step.bounds)
            case Deal():
                target = even_assignment(NUM_KEY_GROUPS, [*step.lanes], [*step.lanes.values()])
                self._migrate(self.component(step.component), target, Strategy.LIVE, Bounds())
            case Lanes():
                component = self.component(step.component)
                with _unless_regrouped():
                    realization.change_lanes(component, step.lanes, step.lane_of)
            case Cancel() if self.migrations:
                realization.cancel(self.migrations[-1])
            case Drain():
                executor = realization.executor(step.executor)
                realization.drain(executor)
                for component in realization.view.components:
                    self._empty(component, executor)
            case Executors():
                realization.see(step.there)
            case ForgetStore():
                realization.forget_store(step.executor)
            case Warming():
                realization.warming(step)
            case Regroup():
                realization.regroup(step.components)
            case Restart():
                realization.stop()
                realization.start(step.there)

    def _empty(self, component: str, executor: str) -> None:
        current = _with_newcomers(self.realization, component)
        others = [name for name in current.executors if name != executor]
        moves = {int(g): others[g % len(others)] for g in current.key_groups(executor)}
        self._migrate(component, current.moved(moves), Strategy.LIVE, Bounds())

    def _migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> None:
        if self.realization.view.components[component].migration is None:
            with _unless_regrouped():
                self.migrations.append(
                    self.realization.migrate(component, target, strategy, bounds)
                )


@contextmanager
def _unless_regrouped() -> Iterator[None]:
    """Let it be refused to move key groups of a component that is about to be another."""
    try:
        yield
    except MigrationError as error:
        if "is being regrouped" not in str(error):
            raise


def _with_newcomers(realization: Realization, component: str) -> Assignment:
    """List executors too that own nothing because they joined later."""
    there = realization.view.executors
    current = realization.view.components[component].assignment
    new = sorted(there.keys() - set(current.executors))
    lanes = [*current.lanes, *(there[name] for name in new)]
    return current.on([*current.executors, *new], lanes)


def _target(chosen: tuple[int, ...] | None, to: str | None, current: Assignment) -> Assignment:
    key_groups = range(current.num_key_groups) if chosen is None else chosen
    names = current.executors
    return current.moved(
        {g: to or names[(names.index(current.executor(g)) + 1) % len(names)] for g in key_groups}
    )


def _judge(
    scenario: Scenario,
    realization: Realization,
    undisturbed: Undisturbed,
    migrations: Sequence[str],
) -> None:
    view, told = realization.view, [type(event).__name__ for event in realization.events]
    assert not view.waiting
    assert not view.due
    for component in view.components.values():
        assert (component.migration, component.suspended, component.transfers) == (
            None,
            frozenset(),
            (),
        )
        owners = {component.assignment.executor(g) for g in range(NUM_KEY_GROUPS)}
        assert owners <= view.executors.keys() - view.draining
    assert not [kind for kind in scenario.told if kind not in told], told
    assert not [kind for kind in scenario.never if kind in told], told
    if scenario.ends is not None and "totals" in view.components:
        found = [realization.ended(migration) for migration in migrations]
        assert [(e.outcome.value, e.withdrawn) for e in found if e is not None] == [*scenario.ends]
    _judge_committed(realization.events)
    if realization.rows_out is not None:
        if scenario.same_epochs:
            assert "KeyGroupsSuspended" not in told
        _judge_rows(realization.rows_out, undisturbed)
        if not _some_waited_untold(scenario, realization.events):
            for sink in ("order", "totals"):
                _judge_key_groups_that_never_waited(
                    sink,
                    realization.rows_out[sink],
                    undisturbed,
                    realization.events,
                    anywhere=scenario.again,
                )


def _judge_committed(events: Sequence[Event]) -> None:
    """Epochs are committed in order, each once."""
    epochs = [event.epoch for event in events if type(event).__name__ == "EpochCommitted"]
    assert epochs == sorted(set(epochs))


def _judge_rows(
    found: Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]],
    undisturbed: Undisturbed,
) -> None:
    assert found.keys() == undisturbed.epochs.keys()
    numbers: dict[int, list[int]] = defaultdict(list)
    for _, rows in sorted(found["order"].items()):
        for key, number, _ in rows:
            numbers[key].append(number)
    assert numbers == undisturbed.order
    for sink in found.keys() - {"order"}:
        newest: dict[int, tuple[int, ...]] = {}
        for _, rows in sorted(found[sink].items()):
            newest.update((row[0], row[1:]) for row in rows)
        assert newest == undisturbed.newest(sink), sink


def _some_waited_untold(scenario: Scenario, events: Sequence[Event]) -> bool:
    """True if rows may have waited for state in an epoch whose driver died before it reported."""
    told = {event.epoch for event in events if isinstance(event, EpochCommitted)}
    untold = set(range(max(told, default=-1))) - told
    return bool(untold) and any(isinstance(step, ForgetStore) for step in scenario.steps)


def _judge_key_groups_that_never_waited(
    component: str,
    found: Mapping[int, Sequence[tuple[int, ...]]],
    undisturbed: Undisturbed,
    events: Sequence[Event],
    *,
    anywhere: bool,
) -> None:
    """Their rows came out in the very epochs in which they came in.

    `anywhere`: those that waited for any component are left out, whatever operators it had.
    """
    waited = {
        g
        for event in events
        if isinstance(event, KeyGroupsSuspended)
        and (anywhere or event.component in (component, "order"))
        for g in event.key_groups
    }
    keys = [key for key in undisturbed.order if key_group_of(key) not in waited]

    def of_these(epochs: Iterable[Iterable[tuple[int, ...]]]) -> list[Counter[tuple[int, ...]]]:
        counted = [Counter(row for row in rows if row[0] in keys) for rows in epochs]
        return [rows for rows in counted if rows]

    expected = of_these(epoch.elements() for epoch in undisturbed.epochs[component])
    assert of_these(rows for _, rows in sorted(found.items())) == expected, component
