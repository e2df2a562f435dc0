"""Executors come and go, and the pool answers."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.engine.cluster import PoolView
from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator.cluster import (
    Death,
    Executors,
    Join,
    Machine,
    Pool,
    SimulatedCluster,
    Slowdown,
)


def executors(machines: int = 2, **cluster: object) -> Executors:
    made = SimulatedCluster(machines=(Machine(),) * machines, **cluster)  # type: ignore[arg-type]
    return Executors(cluster=made, rng=np.random.default_rng(1))


def test_executors_die_and_join_when_they_are_to() -> None:
    there = executors(deaths=(Death(executor="0", at_s=2),), joins=(Join(at_s=3, count=2),))
    assert there.next_s() == 2
    assert not there.advance(1.9)
    assert there.advance(2)
    assert sorted(there.alive) == ["1"]
    there.advance(10)
    assert sorted(there.alive) == ["1", "2", "3"]
    assert there.next_s() == float("inf")


def test_a_slowdown_lasts_from_its_start_to_its_end() -> None:
    there = executors(slowdowns=(Slowdown(executor="1", start_s=1, end_s=2, factor=4),))
    assert there.speed("1") == 1
    there.advance(1)
    assert [there.speed("0"), there.speed("1")] == [1, 0.25]
    there.advance(2)
    assert there.speed("1") == 1


def test_what_is_asked_for_comes_late_and_is_pending_until_then() -> None:
    there = executors(pool=Pool(start_s=(5, 8)))
    there.add(2)
    assert there.view == PoolView(pending=2)
    there.advance(4.9)
    assert len(there.alive) == 2
    there.advance(8)
    assert len(there.alive) == 4
    assert there.view == PoolView()


def test_a_cluster_that_is_full_refuses() -> None:
    there = executors(pool=Pool(most=3))
    there.add(2)
    assert there.view.pending == 1
    assert there.view.most == 3
    assert "3 executors at most" in there.view.refused


def test_what_never_comes_is_given_up_and_said_so() -> None:
    there = executors(pool=Pool(never=1.0, patience_s=20))
    there.add(1)
    there.advance(19)
    assert there.view.pending == 1
    there.advance(20)
    assert there.view.pending == 0
    assert "within 20 s" in there.view.refused
    assert len(there.alive) == 2


def test_executors_that_are_given_back_are_gone() -> None:
    there = executors()
    there.remove(["0"])
    there.advance(0.0)
    assert sorted(there.alive) == ["1"]


def test_clusters_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"machines": ()},
        {"machines": (Machine(cores=0),)},
        {"machines": (Machine(),), "slowdowns": (Slowdown(executor="0", start_s=0, factor=0),)},
    ):
        with pytest.raises(InvalidProblemError, match="cannot be simulated"):
            SimulatedCluster(**wrong)
