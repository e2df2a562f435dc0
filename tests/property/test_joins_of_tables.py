"""Joins of tables that change are those of the rows that are left, after every epoch."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import EpochFailedError, InvalidFlowError

ORDERS = "id long, customer string, amount long, change byte"
CUSTOMERS = "name string, city string, change byte"
Row = tuple[Any, ...]


class Table:
    """Rows of a table, perhaps several times, and their changes."""

    def __init__(self, rng: random.Random, draw: Any) -> None:
        self.rng, self.draw, self.live = rng, draw, list[Row]()

    def changes(self) -> list[Row]:
        """Change the table a few times; return the changes."""
        changes = []
        for _ in range(self.rng.randrange(4)):
            if self.live and self.rng.random() < 0.5:
                row = self.live.pop(self.rng.randrange(len(self.live)))
                changes.append((*row, -1))
                if self.rng.random() < 0.5:
                    continue
            self.live.append(self.draw())
            changes.append((*self.live[-1], 1))
        return changes


def _joined(left: list[Row], right: list[Row], how: str) -> Counter[Row]:
    """Return customer, id, amount and city of the joined rows."""
    rows: Counter[Row] = Counter()
    met: set[int] = set()
    for number, customer, amount in left:
        cities = [(n, c) for n, (name, c) in enumerate(right) if name == customer is not None]
        met.update(n for n, _ in cities)
        for _, city in cities:
            rows[customer, number, amount, city] += 1
        if not cities and how in ("left", "full"):
            rows[customer, number, amount, None] += 1
    if how in ("right", "full"):
        for n, (name, city) in enumerate(right):
            if n not in met:
                rows[name, None, None, city] += 1
    return rows


def _flow(how: Any) -> gw.Flow:
    flow = gw.Flow("join", num_key_groups=8)
    orders = flow.source("orders", gw.testing.stream(ORDERS)).as_changes()
    customers = flow.source("customers", gw.testing.stream(CUSTOMERS)).as_changes()
    joined = orders.key_by("customer").join(customers.key_by("name"), how=how, name="joined")
    flow.sink("out", joined, gw.sinks.noop())
    by_city = joined.key_by("city").compute(n=gw.count(), most=gw.max("amount"), name="by_city")
    flow.sink("by_city", by_city, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize("seed", range(rounds(2, 3)))
def test_joined_rows_are_those_of_the_rows_that_are_left(how: str, seed: int) -> None:
    rng = random.Random(f"{how} {seed}")
    names = ["ann", "bob", "cid", None]
    orders = Table(rng, lambda: (rng.randrange(3), rng.choice(names), rng.choice([None, 1, 2])))
    customers = Table(rng, lambda: (rng.choice(names), rng.choice(["x", "y", None])))
    out: Counter[Row] = Counter()
    with gw.testing.cluster(_flow(how), executors=2) as run:
        for _ in range(14):
            epoch = {"orders": orders.changes(), "customers": customers.changes()}
            given = {name: rows for name, rows in epoch.items() if rows}
            rows = run.epoch(given)["out"].to_pylist() if given else []
            changed: Counter[Row] = Counter()
            for row in rows:
                values = row["customer"], row["id"], row["amount"], row["city"]
                assert changed[values] * row["change"] >= 0, "what adds up to nothing is not sent"
                changed[values] += row["change"]
            for values, count in changed.items():
                out[values] += count
            assert {k: v for k, v in out.items() if v} == _joined(orders.live, customers.live, how)
            disturbance = rng.random()
            if disturbance < 0.15:
                run.restart()
            elif disturbance < 0.3:
                run.migrate({rng.randrange(8): rng.choice(list(run.executors))}, component="joined")
        assert run.state("joined", state="left").num_rows == len(orders.live)
        assert run.state("joined", state="right").num_rows == len(customers.live)


def test_a_side_of_rows_is_a_table_to_which_rows_are_added() -> None:
    flow = gw.Flow("added")
    orders = flow.source("orders", gw.testing.stream("id long, customer string"))
    names = flow.source("names", gw.testing.stream("customer string, city string"))
    joined = orders.key_by("customer").join(names.key_by("customer").latest().key_by("customer"))
    flow.sink("out", joined, gw.sinks.noop())
    with gw.testing.cluster(flow) as run:
        run.epoch({"orders": [(1, "a")], "names": [("a", "x")]})
        out = run.epoch({"names": [("a", "y")]})["out"].to_pylist()
    assert [tuple(row.values()) for row in out] == [("a", 1, "x", -1), ("a", 1, "y", 1)]


def test_a_delete_of_a_row_that_is_not_there_is_refused() -> None:
    with (
        gw.testing.cluster(_flow("inner")) as run,
        pytest.raises(
            EpochFailedError, match=r"delete for key \('ann',\) of a row that is not in the table"
        ),
    ):
        run.epoch({"orders": [(1, "ann", 2, -1)]})


def test_tables_are_joined_without_event_time_and_rows_with_it() -> None:
    flow = gw.Flow("refused")
    rows = flow.source("rows", gw.testing.stream(ORDERS))
    with pytest.raises(InvalidFlowError, match="how far apart in event time"):
        rows.key_by("id").join(rows.key_by("id"))
    changes = rows.as_changes()
    with pytest.raises(InvalidFlowError, match="was given spread="):
        changes.key_by("id").join(changes.key_by("id"), spread=2)
    with pytest.raises(InvalidFlowError, match="was given late="):
        changes.key_by("id").join(changes.key_by("id"), late=gw.sinks.noop())
