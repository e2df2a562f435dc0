"""All scenarios: those that someone thought of, and those that are drawn."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.contract.scenario import (
    THREE,
    TWO,
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
    Scenario,
    Settle,
    Warming,
)

from godwit.migration import Bounds, CopiesFrom, LossPolicy, Policy, Strategy

if TYPE_CHECKING:
    from tests.contract.scenario import Misfortune, Step

__all__ = ["ON_DEMAND", "REGROUPED", "SCENARIOS", "drawn", "scenario"]

LOAD = Policy(on_loss=LossPolicy.LOAD)
PEERS = Policy(copies_from=CopiesFrom.PEERS)
ONE = {"local-0": 1}
STRATEGIES = tuple(
    strategy
    for strategy in Strategy
    if not (strategy.activates_standby or strategy is Strategy.ON_DEMAND)
)


def _rows(epochs: int) -> tuple[Step, ...]:
    return (Rows(),) * epochs


def _exchange(strategy: Strategy = Strategy.LIVE, bounds: Bounds | None = None) -> tuple[Step, ...]:
    """All key groups of both components change their executor."""
    limits = Bounds() if bounds is None else bounds
    return tuple(
        Migrate(component=component, strategy=strategy, bounds=limits)
        for component in ("order", "totals")
    )


_ENDED = (("finished", 0), ("finished", 0))

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="nothing happens", steps=_rows(6), same_epochs=True, never=("EpochAborted",)),
    Scenario(name="nothing happens on two levels", steps=_rows(6), deep=True, same_epochs=True),
    *(
        Scenario(
            name=f"a {strategy.value} migration",
            steps=(*_rows(3), *_exchange(strategy), *_rows(5)),
            same_epochs=True,
            told=("MigrationStarted", "AssignmentSwitched", "MigrationFinished"),
            ends=_ENDED,
        )
        for strategy in STRATEGIES
    ),
    *(
        Scenario(
            name=f"a {strategy.value} migration on two levels",
            steps=(
                *_rows(3),
                *_exchange(strategy),
                Migrate(component="shards", to="local-0", strategy=strategy),
                *_rows(5),
            ),
            deep=True,
            same_epochs=True,
            ends=(*_ENDED, ("finished", 0)),
        )
        for strategy in STRATEGIES
    ),
    *(
        Scenario(
            name=f"a {strategy.value} migration while no row arrives",
            steps=(*_rows(2), *_exchange(strategy), Settle(), *_rows(2)),
            same_epochs=True,
            ends=_ENDED,
        )
        for strategy in STRATEGIES
    ),
    Scenario(
        name="a migration one key group at a time, each fresh",
        steps=(*_rows(2), *_exchange(bounds=Bounds(max_moves=1, max_lag=0)), *_rows(20)),
        same_epochs=True,
        ends=_ENDED,
    ),
    Scenario(
        name="a migration of key groups each larger than the bound",
        steps=(*_rows(3), *_exchange(bounds=Bounds(max_bytes=1)), *_rows(5)),
        same_epochs=True,
        ends=_ENDED,
    ),
    Scenario(
        name="a migration before the first row",
        steps=(*_exchange(), *_rows(3)),
        same_epochs=True,
        ends=_ENDED,
    ),
    Scenario(
        name="migrations there and back",
        steps=(*_rows(3), *_exchange(), Settle(), *_rows(2), *_exchange(), *_rows(3)),
        same_epochs=True,
        ends=_ENDED * 2,
    ),
    Scenario(
        name="a migration that is cancelled keeps what has switched",
        steps=(
            *_rows(3),
            Migrate(component="order", bounds=Bounds(max_moves=2)),
            Rows(),
            Warming(goes="held"),
            Rows(),
            Cancel(),
            Warming(goes="works"),
            *_rows(3),
        ),
        same_epochs=True,
        told=("MigrationCancelled",),
    ),
    Scenario(
        name="a migration of copies that executors send one another",
        steps=(
            *_rows(3),
            *_exchange(bounds=Bounds(max_moves=3)),
            Migrate(component="shards", to="local-0"),
            *_rows(5),
            Settle(),
            *_exchange(),
            *_rows(2),
        ),
        deep=True,
        policy=PEERS,
        same_epochs=True,
        told=("MigrationFinished",),
        ends=(*_ENDED, ("finished", 0), *_ENDED),
    ),
    Scenario(
        name="the checkpoint has what an executor was to send and does not hold any more",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            *_exchange(),
            ForgetStore(executor="local-0"),
            Warming(goes="works"),
            *_rows(4),
        ),
        policy=PEERS,
        told=("MigrationFinished",),
    ),
    Scenario(
        name="an executor dies that was to send copies",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Migrate(component="order", to="local-2"),
            Executors(there={"local-0": 1, "local-2": 1}),
            Warming(goes="works"),
            *_rows(4),
        ),
        executors=THREE,
        policy=PEERS,
        told=("ExecutorLost", "KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="an executor joins and is given key groups",
        steps=(
            *_rows(3),
            Executors(there=THREE),
            Migrate(component="order", to="local-2"),
            *_rows(5),
        ),
        same_epochs=True,
        told=("ExecutorAdded", "MigrationFinished"),
    ),
    Scenario(
        name="an executor is drained and leaves",
        steps=(
            *_rows(3),
            Drain(executor="local-1"),
            *_rows(2),
            Settle(),
            Executors(there=ONE),
            *_rows(3),
        ),
        same_epochs=True,
        told=("MigrationFinished", "ExecutorLost"),
    ),
    Scenario(
        name="the rows of a lost executor wait and the others continue",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there=ONE),
            *_rows(3),
            Warming(goes="works"),
            *_rows(2),
        ),
        told=("ExecutorLost", "KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="rows that wait are drained while no row arrives",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there=ONE),
            *_rows(3),
            Warming(goes="works"),
        ),
        told=("KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="rows that wait at the first level feed the second when they are drained",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there=ONE),
            *_rows(2),
            Warming(goes="works"),
            Quiet(),
            *_rows(2),
        ),
        deep=True,
        told=("KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="a lost executor's state is loaded at once",
        steps=(*_rows(3), Executors(there=ONE), *_rows(3)),
        policy=LOAD,
        same_epochs=True,
        told=("ExecutorLost", "KeyGroupsLoaded"),
    ),
    Scenario(
        name="a lost executor's state is loaded at once on two levels",
        steps=(*_rows(3), Executors(there=ONE), *_rows(3)),
        deep=True,
        policy=LOAD,
        same_epochs=True,
    ),
    Scenario(
        name="an executor is lost, and the one that holds its waiting rows' copies too",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there={"local-1": 1, "local-2": 1}),
            *_rows(2),
            Warming(goes="works"),
            Quiet(),
            Warming(goes="held"),
            Executors(there={"local-2": 1, "local-3": 1}),
            *_rows(2),
            Warming(goes="works"),
            *_rows(2),
        ),
        executors=THREE,
        told=("KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="all executors are lost and another one comes",
        steps=(*_rows(3), Executors(there={"local-7": 2}), *_rows(3)),
        told=("ExecutorLost", "ExecutorAdded"),
    ),
    Scenario(
        name="the destination of a migration is lost",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Migrate(component="order", to="local-2"),
            Rows(),
            Executors(there=TWO),
            Warming(goes="works"),
            *_rows(3),
        ),
        executors=THREE,
        told=("ExecutorLost",),
    ),
    Scenario(
        name="the source of a migration is lost",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Migrate(component="order", to="local-2"),
            Rows(),
            Executors(there={"local-1": 1, "local-2": 1}),
            Warming(goes="works"),
            *_rows(3),
        ),
        executors=THREE,
        told=("ExecutorLost", "KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="an executor is lost while its lanes run",
        steps=(*_rows(3), Rows(loses="local-1"), *_rows(3)),
        told=("ExecutorLost", "EpochAborted"),
    ),
    Scenario(
        name="an executor is lost while its lanes run, and its state loaded",
        steps=(*_rows(3), Rows(loses="local-1"), *_rows(3)),
        deep=True,
        policy=LOAD,
        same_epochs=True,
        told=("ExecutorLost", "EpochAborted"),
    ),
    Scenario(
        name="an epoch comes to nothing and is carried out again",
        steps=(
            *_rows(2),
            Rows(misfortune="aborted"),
            *_exchange(),
            Rows(misfortune="aborted"),
            *_rows(3),
        ),
        same_epochs=True,
        told=("EpochAborted",),
        ends=_ENDED,
    ),
    Scenario(
        name="warming fails and is tried again",
        steps=(
            *_rows(3),
            Warming(goes="fails"),
            *_exchange(),
            *_rows(2),
            Warming(goes="works"),
            *_rows(6),
        ),
        same_epochs=True,
        told=("MigrationFinished",),
        ends=_ENDED,
    ),
    Scenario(
        name="warming always fails and what was planned is withdrawn",
        steps=(
            *_rows(3),
            Warming(goes="fails"),
            *_exchange(),
            *_rows(12),
            Settle(),
            Warming(goes="works"),
            Rows(),
        ),
        same_epochs=True,
        told=("MigrationCancelled",),
        ends=(("cancelled", 16), ("cancelled", 16)),
    ),
    Scenario(
        name="the reports of warming are lost and it is ordered again",
        steps=(
            *_rows(3),
            Warming(goes="lost"),
            *_exchange(),
            *_rows(10),
            Warming(goes="works"),
            *_rows(10),
        ),
        same_epochs=True,
        ends=_ENDED,
    ),
    Scenario(
        name="warming of suspended key groups fails until their lanes load them",
        steps=(
            *_rows(3),
            Warming(goes="fails"),
            Executors(there=ONE),
            *_rows(10),
            Settle(),
            Warming(goes="works"),
            Rows(),
        ),
        told=("KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="a component is dealt out over more lanes, and over fewer",
        steps=(
            *_rows(2),
            Deal(component="order", lanes={"local-0": 1, "local-1": 3}),
            *_rows(3),
            Deal(component="totals", lanes={"local-0": 4, "local-1": 1}),
            *_rows(3),
            Deal(component="order", lanes={"local-0": 2, "local-1": 1}),
            *_rows(3),
        ),
        executors={"local-0": 4, "local-1": 3},
        same_epochs=True,
    ),
    Scenario(
        name="key groups change lane within their executors",
        steps=(
            *_rows(3),
            Lanes(component="order", lanes={"local-0": 1}),
            *_rows(2),
            Lanes(component="order", lanes={"local-0": 3}, lane_of={0: 2, 2: 1, 4: 2}),
            Lanes(component="totals", lanes={"local-1": 2}, lane_of={1: 1}),
            *_rows(3),
        ),
        executors={"local-0": 3, "local-1": 2},
        same_epochs=True,
        never=("WarmingStarted",),
    ),
    Scenario(
        name="a local store vanishes and nobody knows",
        steps=(*_rows(3), ForgetStore(executor="local-1"), *_rows(3)),
    ),
    Scenario(
        name="local stores vanish again and again on two levels",
        steps=(
            *_rows(3),
            ForgetStore(executor="local-1"),
            Rows(),
            ForgetStore(executor="local-0"),
            *_rows(2),
        ),
        deep=True,
    ),
    Scenario(
        name="what waits is kept if the copy vanishes again before it runs",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there=ONE),
            *_rows(2),
            Warming(goes="works"),
            Quiet(),
            ForgetStore(executor="local-0"),
            Rows(count=1),
            *_rows(1),
        ),
        told=("KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    Scenario(
        name="a query is started again on as many executors, on more, and on fewer",
        steps=(
            *_rows(2),
            Restart(there=TWO),
            *_rows(2),
            Restart(there=THREE),
            *_rows(2),
            Restart(there={"local-0": 3}),
            *_rows(2),
        ),
        deep=True,
        same_epochs=True,
    ),
    Scenario(
        name="a query is started again while rows wait",
        steps=(
            *_rows(3),
            Warming(goes="held"),
            Executors(there=ONE),
            *_rows(2),
            Restart(there=TWO),
            Warming(goes="works"),
            *_rows(2),
        ),
        told=("KeyGroupsSuspended",),
    ),
    Scenario(
        name="a query is started again while key groups move",
        steps=(
            *_rows(3),
            *_exchange(bounds=Bounds(max_moves=2, max_lag=0)),
            *_rows(2),
            Restart(there=TWO),
            *_rows(3),
        ),
        same_epochs=True,
    ),
    *(
        Scenario(
            name=f"the driver dies when an epoch is {step}",
            steps=(
                *_rows(2),
                Rows(misfortune=step),
                Restart(there=TWO),
                *_rows(2),
                *_exchange(),
                Rows(misfortune=step),
                Restart(there=THREE),
                *_rows(2),
            ),
            deep=True,
            same_epochs=True,
        )
        for step in ("planned", "staged", "committed")
    ),
)


ROW = Regroup(components={"row": ("order", "again")})
GROUPINGS = (
    ROW,
    Regroup(components={"all": ("order", "totals", "again")}),
    Regroup(components={"side": ("totals", "again")}),
    Regroup(components={"pair": ("order", "totals")}),
    Regroup(components={"order": ("order",), "totals": ("totals",), "again": ("again",)}),
)

_APART = Migrate(component="again", to="local-0")
"""Key groups of `again` are elsewhere than those of `order`."""

_FUSED = ("RegroupingStarted", "MigrationStarted", "ComponentsRegrouped")


def _regrouped(name: str, *steps: Step, **judged: Any) -> Scenario:
    return Scenario(name=name, steps=steps, deep=True, again=True, **judged)


REGROUPED: tuple[Scenario, ...] = (
    _regrouped(
        "operators in a row are fused while the stream runs",
        *(*_rows(3), _APART, Settle(), *_rows(1), ROW, *_rows(6)),
        same_epochs=True,
        told=_FUSED,
        never=("KeyGroupsSuspended", "RegroupingCancelled", "EpochAborted", "KeyGroupsLoaded"),
    ),
    _regrouped(
        "operators are fused while no row arrives",
        *(*_rows(3), _APART, Settle(), ROW, Settle(), *_rows(2)),
        same_epochs=True,
        told=_FUSED,
    ),
    _regrouped(
        "operators that were fused part, and move by themselves",
        *(*_rows(1), ROW, *_rows(2), GROUPINGS[-1], *_rows(1), *_exchange(), *_rows(4)),
        same_epochs=True,
        told=("ComponentsRegrouped", "MigrationFinished"),
    ),
    _regrouped(
        "an operator goes from one component to another",
        *(*_rows(2), _APART, Settle(), GROUPINGS[2], *_rows(4), Settle(), ROW, *_rows(4)),
        same_epochs=True,
        told=_FUSED,
    ),
    _regrouped(
        "components are regrouped while key groups move",
        *(*_rows(3), *_exchange(), ROW, *_rows(8)),
        same_epochs=True,
        told=(*_FUSED, "MigrationFinished"),
    ),
    _regrouped(
        "an executor is lost while operators come together",
        *(*_rows(3), _APART, Settle(), Warming(goes="held"), ROW, *_rows(2)),
        *(Executors(there={"local-0": 1, "local-1": 1}), *_rows(1), Warming(goes="works")),
        *_rows(4),
        executors=THREE,
        told=("ExecutorLost", "ComponentsRegrouped"),
    ),
    _regrouped(
        "an executor is lost after operators were fused",
        *(*_rows(3), ROW, *_rows(2), Executors(there={"local-0": 1, "local-1": 1}), *_rows(4)),
        executors=THREE,
        told=("ComponentsRegrouped", "KeyGroupsSuspended", "KeyGroupsResumed"),
    ),
    _regrouped(
        "warming always fails and the components stay as they are",
        *(*_rows(3), _APART, Settle(), Warming(goes="fails"), ROW, *_rows(14)),
        policy=Policy(patience=1, max_attempts=2),
        same_epochs=True,
        told=("RegroupingCancelled",),
        never=("ComponentsRegrouped",),
    ),
    *(
        _regrouped(
            f"the driver dies when the first epoch of fused operators is {step}",
            *(*_rows(2), ROW, Rows(misfortune=step), Restart(there=TWO), *_rows(3)),
            told=("ComponentsRegrouped",),
        )
        for step in ("planned", "staged", "committed")
    ),
)


_INDEXING = _exchange(Strategy.ON_DEMAND)
_DEMAND = (*_INDEXING, *_rows(1))  # in the epoch of these rows, state is indexed
_TO_ONE = Migrate(component="order", to="local-0", strategy=Strategy.ON_DEMAND)


def _demanded(name: str, *steps: Step, deep: bool = True, **judged: Any) -> Scenario:
    judged = {"same_epochs": True, "never": ("KeyGroupsSuspended",), **judged}
    return Scenario(name=f"{name} (on demand)", steps=steps, deep=deep, **judged)


ON_DEMAND: tuple[Scenario, ...] = (
    _demanded(
        "all key groups move",
        *(*_rows(3), *_DEMAND, *_rows(5)),
        deep=False,
        told=("MigrationStarted", "KeyGroupsLoaded", "AssignmentSwitched", "MigrationFinished"),
        never=("WarmingStarted",),
        ends=_ENDED,
    ),
    _demanded("key groups move while no row arrives", *_rows(3), *_DEMAND, Settle(), *_rows(2)),
    _demanded(
        "key groups move back and forth while their copies are partial",
        *(*_rows(4), *_DEMAND, Rows(count=5), *_DEMAND, Rows(count=5), *_DEMAND, *_rows(2)),
        *(*_exchange(), *_rows(2), Settle(), *_rows(3)),
    ),
    _demanded(
        "partial copies are asked of executors that have them",
        *(*_rows(4), *_DEMAND, Rows(count=5), *_exchange(), *_rows(5), Settle(), *_rows(2)),
        policy=PEERS,
        ends=_ENDED * 2,
    ),
    _demanded(
        "attempts come to nothing while copies are partial",
        *(*_rows(3), *_INDEXING, Rows(misfortune="aborted"), *_rows(1)),
        *(Rows(misfortune="aborted"), Rows(misfortune="aborted"), *_rows(4)),
        told=("EpochAborted",),
        ends=_ENDED,
    ),
    _demanded(
        "an executor is lost before, while and after its lanes run",
        *(*_rows(3), Executors(there={"local-1": 1, "local-2": 1, "local-3": 1}), *_rows(2)),
        *(Rows(loses="local-1"), *_rows(1), Executors(there={"local-3": 1}), *_rows(3)),
        executors={**THREE, "local-3": 1},
        told=("ExecutorLost", "EpochAborted", "KeyGroupsLoaded"),
    ),
    _demanded(
        "the destination is lost while its copies are partial",
        *(*_rows(3), replace(_TO_ONE, to="local-2"), *_rows(1), Rows(count=5)),
        *(Executors(there=TWO), Rows(count=5), Rows(), *_rows(3)),
        executors=THREE,
        told=("ExecutorLost", "KeyGroupsLoaded"),
    ),
    _demanded(
        "the destination is lost before it has run",
        *(*_rows(3), replace(_TO_ONE, to="local-2"), *_rows(1), Executors(there=TWO), *_rows(3)),
        executors=THREE,
    ),
    _demanded(
        "the destination is lost before it has indexed",
        *(*_rows(3), replace(_TO_ONE, to="local-2"), Executors(there=TWO), *_rows(3)),
        executors=THREE,
    ),
    _demanded(
        "the former owner is lost before its key groups are indexed",
        *(*_rows(3), *_INDEXING, Executors(there={"local-1": 3}), *_rows(3)),
        told=("ExecutorLost", "KeyGroupsLoaded"),
    ),
    _demanded(
        "a partial copy vanishes and nobody knows",
        *(*_rows(3), *_DEMAND, Rows(count=5), ForgetStore(executor="local-1"), *_rows(4)),
        same_epochs=False,
        never=(),
    ),
    _demanded(
        "key groups that are partial are dealt out over other lanes, and leave",
        *(*_rows(3), *_DEMAND, Rows(count=5), Settle()),
        Lanes(component="order", lanes={"local-0": 2}, lane_of={0: 1, 1: 1}),
        *(*_rows(1), Deal(component="totals", lanes={"local-0": 2, "local-1": 3}), *_rows(2)),
        *(Drain(executor="local-1"), *_rows(2), Settle(), Executors(there={"local-0": 4})),
        *_rows(2),
        executors={"local-0": 4, "local-1": 3},
    ),
    *(
        _demanded(
            f"the driver dies when an epoch is {step} while copies are partial",
            *(*_rows(3), *_INDEXING, Rows(misfortune=step), Restart(there=THREE)),
            *(*_rows(1), *_DEMAND, Rows(count=5, misfortune=step), Restart(there=THREE)),
            *(Rows(count=5), *_DEMAND, Rows(count=5), Rows(count=5, misfortune=step)),
            *(Restart(there=TWO), *_rows(3)),
        )
        for step in ("planned", "staged", "committed")
    ),
    *(
        _demanded(
            f"{what} while copies are partial",
            *(*_rows(3), *_DEMAND, Rows(count=5), Regroup(components=parts), *_rows(6)),
            again=True,
            told=("ComponentsRegrouped",),
        )
        for what, parts in (
            ("operators in a row are fused", {"row": ("order", "again")}),
            ("operators side by side are fused", {"side": ("totals", "again")}),
        )
    ),
)
"""Scenarios of key groups whose state is fetched on demand, however small it is."""


def scenario(name: str) -> Scenario:
    """Return the scenario of that name."""
    return next(s for s in (*SCENARIOS, *REGROUPED, *ON_DEMAND) if s.name == name)


def drawn(seed: int, *, regrouped: bool = False, on_demand: bool = False) -> Scenario:
    """Draw a scenario: anything may happen at any time, but not everybody dies at once.

    `on_demand`: key groups migrate by this strategy too.
    """
    rng = random.Random(seed)
    strategies = (*STRATEGIES[:2], *([Strategy.ON_DEMAND] * 2 if on_demand else []))
    names = ["local-0", "local-1", "local-2"]
    steps: list[Step] = []
    there, newest, deep = dict.fromkeys(names, 1), 2, rng.random() < 0.5
    components = [
        *("order", "totals"),
        *(["shards"] if deep else []),
        *(["again"] if regrouped else []),
    ]
    for _ in range(rng.randint(15, 40)):
        match rng.choice(
            (
                "rows",
                "rows",
                "rows",
                "migrate",
                "migrate",
                "lose",
                "join",
                "forget",
                "warming",
                "quiet",
                "abort",
                "mid-epoch",
                "die",
                "deal",
                "cancel",
                *(("regroup", "regroup") if regrouped else ()),
            )
        ):
            case "rows":
                steps.append(Rows(count=rng.choice((1, 10, 60))))
            case "migrate":
                steps.append(
                    Migrate(
                        component=rng.choice(components),
                        to=rng.choice(sorted(there)),
                        key_groups=tuple(sorted(rng.sample(range(16), rng.randint(1, 16)))),
                        strategy=rng.choice(strategies),
                        bounds=Bounds(max_moves=rng.choice((1, 4, 32)), max_lag=rng.randrange(3)),
                    )
                )
            case "lose" | "mid-epoch" as how if len(there) > 1:
                lost = rng.choice(sorted(there))
                del there[lost]
                steps.append(Executors(there=dict(there)) if how == "lose" else Rows(loses=lost))
            case "join":
                newest += 1
                there[f"local-{newest}"] = rng.randint(1, 3)
                steps.append(Executors(there=dict(there)))
            case "forget":
                steps.append(ForgetStore(executor=rng.choice(sorted(there))))
            case "warming":
                steps.append(Warming(goes=rng.choice(("held", "fails", "lost", "works"))))
            case "quiet":
                steps.append(Quiet())
            case "abort":
                steps.append(Rows(misfortune="aborted"))
            case "deal":
                lanes = {name: rng.randint(1, n) for name, n in there.items()}
                steps.append(Deal(component=rng.choice(components), lanes=lanes))
            case "die":
                step: Misfortune = rng.choice(("planned", "staged", "committed"))
                steps.extend((Rows(misfortune=step), Restart(there=dict(there))))
            case "regroup":
                steps.append(rng.choice(GROUPINGS))
            case "cancel" if any(isinstance(step, Migrate) for step in steps):
                steps.append(Cancel())
            case _:
                pass
    policy = rng.choice((Policy(patience=8), LOAD, replace(Policy(), patience=2, max_attempts=2)))
    return Scenario(
        name=f"drawn from {seed}",
        steps=(*steps, Warming(goes="works"), *_rows(2)),
        executors=THREE,
        deep=deep,
        again=regrouped,
        policy=policy,
        seed=seed,
    )
