"""Small problems for the planners that place key groups anywhere: strategies, and by seed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from godwit.placement.problem import Limits, Problem, Traffic


@st.composite
def allocation_problems(
    draw: st.DrawFn,
    *,
    max_key_groups: int = 6,
    max_executors: int = 3,
    draining: bool = False,
    usage: bool = False,
    limited: bool = True,
    unequal: bool = True,
    traffic: bool = False,
) -> Problem:
    """Draw a valid problem; loads are whole numbers so that ties happen."""
    m = draw(st.integers(1, max_key_groups))
    n = draw(st.integers(2 if draining else 1, max_executors))
    r = 2 if usage else 1

    def numbers(low: int, high: int, size: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=size, max_size=size))

    load = np.array(numbers(0, 20, m * r), np.float64).reshape(m, r)
    capacity = np.array(numbers(1, 3, n), np.float64) if unequal else np.ones(n)
    drains = np.zeros(n, np.bool_)
    if draining:
        drains[draw(st.integers(0, n - 1))] = True
    size = np.array(numbers(0, 9, m), np.float64)
    limits = Limits(
        max_moves=draw(st.none() | st.integers(0, m)) if limited else None,
        max_bytes=draw(st.none() | st.integers(0, int(size.sum()))) if limited else None,
        max_usage=tuple(float(x) for x in numbers(5, 60, r)) if usage else None,
    )
    edges = draw(st.integers(0, 2 * m)) if traffic else 0
    return Problem(
        executors=tuple(f"e{i}" for i in range(n)),
        resources=("cpu", "memory")[:r],
        load=load,
        state_bytes=size,
        current=np.array(numbers(0, n - 1, m), np.int32),
        capacity=capacity,
        draining=drains,
        limits=limits,
        traffic=Traffic(
            source=np.array(numbers(0, m - 1, edges), np.int32),
            target=np.array(numbers(0, m - 1, edges), np.int32),
            rate=np.array(numbers(0, 50, edges), np.float64),
        ),
    )


def random_allocation_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem that can be enumerated; tight budgets and unequal executors are common."""
    n = int(rng.integers(1, 4))
    m = int(rng.integers(1, 8 if n < 3 else 7))
    # Whole numbers make ties, others make every assignment different.
    load = rng.integers(0, 20, m).astype(np.float64) if rng.random() < 0.5 else rng.gamma(2, 5, m)
    size = rng.integers(0, 9, m).astype(np.float64)
    return Problem(
        executors=tuple(f"e{i}" for i in range(n)),
        load=load,
        state_bytes=size,
        current=rng.integers(0, n, m, np.int32),
        capacity=rng.integers(1, 4 if rng.random() < 0.5 else 2, n).astype(np.float64),
        limits=Limits(
            max_moves=int(rng.integers(0, m + 1)) if rng.random() < 0.7 else None,
            max_bytes=float(rng.integers(0, size.sum() + 1)) if rng.random() < 0.4 else None,
        ),
    )
