"""Flows that change between runs give what dicts give that change in the same way."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.evolving import AGGREGATES, NUM_KEY_GROUPS, Program, Row, Runtime, key_group_of
from tests.support.rounds import rounds

from godwit.checkpoint.storage import CheckpointStorage
from godwit.ops.verification import verify

KEYS = [f"key-{i}" for i in range(12)]
NEUTRAL = {"total": None, "rows": 0, "mean": None, "high": None, "low": None}


@dataclass
class Operator:
    """State of one operator, as dicts.

    `values`: key → result → values seen since the result is there; a waiting row has the results
    that were there when it came.
    """

    results: list[str]
    values: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[Row, set[str]]] = field(default_factory=list)

    def epoch(self, rows: list[Row], suspended: frozenset[int]) -> None:
        arrived = [(row, set(self.results)) for row in rows]
        due = [(r, live) for r, live in self.waiting if key_group_of(r[0]) not in suspended]
        self.waiting = [w for w in self.waiting if key_group_of(w[0][0]) in suspended]
        self.waiting += [a for a in arrived if key_group_of(a[0][0]) in suspended]
        due += [a for a in arrived if key_group_of(a[0][0]) not in suspended]
        for (key, value), live in due:
            of = self.values.setdefault(key, {})
            for result in live:
                of.setdefault(result, []).append(value)
            self.sums[key] = self.sums.get(key, 0) * 3 + value

    def let_go(self) -> None:
        """Forget the values of results that are not there any more."""
        for of in self.values.values():
            for result in set(of) - set(self.results):
                del of[result]
        self.waiting = [(row, live & set(self.results)) for row, live in self.waiting]

    def outcome(self) -> dict[str, Any]:
        if not self.results:
            return {key: {"sum": total} for key, total in self.sums.items()}
        return {
            key: {result: _result(result, of.get(result, [])) for result in self.results}
            for key, of in self.values.items()
        }


def _result(result: str, values: list[int]) -> Any:
    if not values:
        return NEUTRAL[result]
    functions: dict[str, Any] = {
        "total": sum,
        "rows": len,
        "mean": statistics.fmean,
        "high": max,
        "low": min,
    }
    return functions[result](values)


class Evolution:
    """A random line of programs, and what their operators hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = [f"op{i}" for i in range(6)]
        self.flow: dict[str, Operator] = {}
        self.kept: dict[str, Operator] = {}
        self.formerly: dict[str, str] = {}
        for _ in range(2):
            self.add()

    def some_results(self) -> list[str]:
        if self.random.random() < 0.25:
            return []
        return self.random.sample(list(AGGREGATES), self.random.randint(1, len(AGGREGATES)))

    def add(self) -> None:
        free = sorted(set(self.names) - self.flow.keys() - self.kept.keys())
        if free:
            self.flow[self.random.choice(free)] = Operator(results=self.some_results())

    def change(self) -> None:
        """Change the flow in one to three ways."""
        self.formerly = {}
        added: set[str] = set()
        for _ in range(self.random.randint(1, 3)):
            name = self.random.choice(sorted(self.flow))
            how = self.random.choice(["add", "remove", "return", "rename", "reorder", "results"])
            if how == "add":
                before = set(self.flow)
                self.add()
                added |= self.flow.keys() - before
            elif how == "remove" and len(self.flow) > 1 and name not in {*self.formerly, *added}:
                self.kept[name] = self.flow.pop(name)
            elif how == "return" and self.kept:
                back = self.random.choice(sorted(self.kept))
                self.flow[back] = self.kept.pop(back)
            elif how == "rename" and name not in {*self.formerly, *added}:
                free = sorted(set(self.names) - self.flow.keys() - self.kept.keys())
                free = [n for n in free if n not in self.formerly.values()]
                if free:
                    new = self.random.choice(free)
                    self.flow[new] = self.flow.pop(name)
                    self.formerly[new] = name
            elif how in ("reorder", "results") and self.flow[name].results:
                results = list(self.flow[name].results)
                if how == "results":
                    results = self.some_results() or results
                self.random.shuffle(results)
                self.flow[name].results = results
        # Only now: what leaves and comes back in one change never was away.
        for operator in self.flow.values():
            operator.let_go()

    def program(self) -> Program:
        names = list(self.flow)
        self.random.shuffle(names)
        return Program(
            operators={name: tuple(self.flow[name].results) for name in names},
            formerly=dict(self.formerly),
            starts_empty=True,
        )

    def rows(self) -> list[Row]:
        some = self.random.choices(KEYS, k=self.random.randint(0, 20))
        return [(key, self.random.randint(-9, 9)) for key in some]

    def suspended(self) -> frozenset[int]:
        share = self.random.choice([0.0, 0.0, 0.3])
        return frozenset(g for g in range(NUM_KEY_GROUPS) if self.random.random() < share)


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 6), database=None)
@given(seed=st.integers(0, 10**9))
def test_flows_that_change_between_runs_keep_the_state_of_what_stayed(seed: int) -> None:
    evolution = Evolution(seed)
    with TemporaryDirectory() as directory:
        storage = CheckpointStorage.open(Path(directory) / "ck")
        for run in range(evolution.random.randint(2, 5)):
            if run:
                evolution.change()
            runtime = Runtime(evolution.program(), storage, Path(directory) / f"local{run}")
            for _ in range(evolution.random.randint(1, 3)):
                rows, suspended = evolution.rows(), evolution.suspended()
                runtime.epoch(rows, suspended)
                for operator in evolution.flow.values():
                    operator.epoch(rows, suspended)
            found = runtime.results()
            expected = {name: operator.outcome() for name, operator in evolution.flow.items()}
            assert found == expected
        report = verify(storage)
        assert report.ok, report.findings
