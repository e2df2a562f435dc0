"""A table that is broadcast is, in every lane and epoch, that of a replay in one process."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

import godwit as gw

PROFILE = settings(derandomize=True, deadline=None, max_examples=rounds(3, 12), database=None)
ORDER = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["EUR", "USD", None]))
RATE = st.tuples(st.sampled_from(["EUR", "USD", None]), st.none() | st.integers(1, 9))
EPOCH = st.tuples(
    st.lists(ORDER, max_size=10),
    st.lists(RATE, max_size=4),
    st.sampled_from(["nothing", "nothing", "kill", "migrate", "restart", "add"]),
)


def convert(key: Any, rows: Any, seen: Any, rates: Any) -> Any:
    for row in rows:
        rate = rates.get(row.currency)
        seen.value += 0 if rate is None else rate.rate
        yield key[0], None if rate is None else rate.rate, seen.value, len(rates)


def flow_of() -> gw.Flow:
    flow = gw.Flow("orders", num_key_groups=7)
    orders = flow.source("orders", gw.testing.stream("id string, currency string"))
    rates = flow.source("rates", gw.testing.stream("currency string, rate long"))
    converted = orders.key_by("id").process(
        convert,
        state=int,
        broadcast={"rates": rates.key_by("currency")},
        output="id string, rate long, seen long, rates long",
        name="converted",
    )
    flow.sink("out", converted, gw.sinks.noop())
    return flow


@PROFILE
@given(epochs=st.lists(EPOCH, min_size=1, max_size=6))
def test_rows_are_those_of_a_replay(epochs: list[Any]) -> None:
    run = gw.testing.cluster(flow_of(), executors=2)
    rates: dict[Any, int] = {}
    seen: dict[str, int] = {}
    for orders, changes, happens in epochs:
        given_rows = {
            "orders": [{"id": key, "currency": currency} for key, currency in orders],
            "rates": [{"currency": currency, "rate": rate} for currency, rate in changes],
        }
        out = run.epoch({source: rows for source, rows in given_rows.items() if rows})
        for currency, rate in changes:
            rates.pop(currency, None)
            if rate is not None:
                rates[currency] = rate
        expected = []
        for key, currency in orders:
            seen[key] = seen.get(key, 0) + rates.get(currency, 0)
            expected.append((key, rates.get(currency), seen[key], len(rates)))
        found = [tuple(row.values()) for row in out["out"].to_pylist()] if "out" in out else []
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        if happens == "kill":
            run.add(name := f"{len(run.epochs) + 100}")
            run.kill(next(e for e in run.executors if e != name))
        elif happens == "migrate":
            run.migrate(max(run.executors), component="converted")
        elif happens == "restart":
            run.restart(executors=2)
        elif happens == "add":
            run.add(f"{len(run.epochs) + 100}")
    if rates:
        table = run.state("converted", "broadcast_rates").to_pylist()
        assert {row["currency"]: row["rate"] for row in table} == rates
