from __future__ import annotations

from collections import Counter

import pytest

from godwit.model.assignment import even_assignment
from godwit.ops.demo.story import third_to


@pytest.mark.parametrize("executors", [3, 4, 7])
def test_a_third_of_the_key_groups_goes_to_the_idle_executor_evenly(executors: int) -> None:
    names = [str(i) for i in range(executors)]
    lanes = [1] * executors
    first = even_assignment(96, names[:-1], lanes[:-1]).on(names, lanes)
    plan = third_to(first, names[-1])
    assert set(plan.values()) == {names[-1]}
    assert len(plan) == 32
    taken = Counter(first.executor(g) for g in plan)
    assert max(taken.values()) - min(taken.values()) <= 1
    assert len(first.moved(plan).key_groups(names[-1])) == 32
