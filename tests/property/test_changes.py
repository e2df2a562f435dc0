"""Aggregates over changes are those of the rows that are left, after every epoch.

Drawn tables whose rows are inserted, updated and deleted, cut into epochs at random, while key
groups move, executors die and the run restarts; against plain Python over a list of live rows.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.events import DeletesWaited

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
COLUMNS = "id long, k string, n long, v double, t string, change byte"
KEYS = ["a", "b", "c", None]


class Table:
    """Rows of a table in order of arrival, and the changes that made them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.live, self.next_id = rng, list[Row](), 0

    def _row(self, number: int) -> Row:
        choose = self.rng.choice
        return {
            "id": number,
            "k": choose(KEYS),
            "n": choose([None, 1, 2, 3, -5, 2**55]),
            "v": choose([None, 0.5, -2.0, 1e15, 3.25]),
            "t": choose([None, "x", "yy", ""]),
        }

    def step(self) -> list[Row]:
        """Insert, update or delete a row; return the changes."""
        draw = self.rng.random()
        if not self.live or draw < 0.5:
            self.next_id += 1
            row = self._row(self.next_id)
            self.live.append(row)
            return [{**row, "change": 1}]
        former = self.live.pop(self.rng.randrange(len(self.live)))
        changes = [{**former, "change": -1}]
        if draw < 0.75:
            row = {**self._row(former["id"])}
            if self.rng.random() < 0.5:
                row["k"] = former["k"]
            self.live.append(row)
            changes.append({**row, "change": 1})
        return changes


def _flow() -> gw.Flow:
    flow = gw.Flow("changes", num_key_groups=16)
    table = flow.source("rows", gw.testing.stream(COLUMNS)).as_changes()
    by_key = table.key_by("k")
    sums = by_key.compute(
        name="sums",
        count=gw.count(),
        total=gw.sum("n"),
        some=gw.count("t"),
        mean=gw.mean("v"),
        spread=gw.stddev("v", population=True),
        big=gw.sum("n * 2", where="n > 0 and n < 9"),
    )
    flow.sink("sums", sums, gw.sinks.noop())
    others = by_key.compute(
        name="others",
        output="changes",
        count=gw.count(),
        least=gw.min("n"),
        greatest=gw.max("t"),
        distinct=gw.count_distinct("t"),
        positive=gw.max("v", where="n > 0"),
    )
    flow.sink("others", others, gw.sinks.noop())
    ordered = by_key.compute(
        name="ordered",
        output="complete",
        first=gw.first("n"),
        last=gw.last("t"),
        of_greatest=gw.max_by("t", "v"),
        listed=gw.collect_list("n"),
        total=gw.sum("v"),
    )
    flow.sink("ordered", ordered, gw.sinks.noop())
    sizes = others.key_by("count").compute(
        name="sizes", output="changes", keys=gw.count(), least=gw.min("least")
    )
    flow.sink("sizes", sizes, gw.sinks.noop())
    return flow


def _close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return bool(left == right)


def _values(rows: list[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def _of_key(rows: list[Row]) -> Row:
    n, v, t = (_values(rows, column) for column in "nvt")
    by_v = [row for row in rows if row["v"] is not None]
    greatest = max((row["v"] for row in by_v), default=None)
    return {
        "count": len(rows),
        "total": sum(n) if n else None,
        "some": len(t),
        "mean": math.fsum(v) / len(v) if v else None,
        "spread": statistics.pstdev(v) if v else None,
        "big": sum(2 * x for x in n if 0 < x < 9) if any(0 < x < 9 for x in n) else None,
        "least": min(n, default=None),
        "greatest": max(t, default=None),
        "distinct": len(set(t)),
        "positive": max((r["v"] for r in by_v if r["n"] is not None and r["n"] > 0), default=None),
        "first": rows[0]["n"],
        "last": rows[-1]["t"],
        "of_greatest": next((row["t"] for row in by_v if row["v"] == greatest), None),
        "listed": n,
        "sum_v": math.fsum(v) if v else None,
    }


def _by_key(rows: list[Row]) -> dict[Any, Row]:
    keys = {row["k"] for row in rows}
    return {key: _of_key([row for row in rows if row["k"] == key]) for key in keys}


def _check(results: dict[str, dict[Any, Row]], live: list[Row], *, lost: bool) -> None:
    expected = _by_key(live)
    for sink in ("sums", "others", "ordered"):
        if lost and sink == "ordered":  # whole results lack keys whose state is being loaded
            assert results[sink].keys() <= expected.keys()
        else:
            assert results[sink].keys() == expected.keys()
        for key, row in results[sink].items():
            of_key = expected[key]
            if sink == "ordered":
                of_key = {**of_key, "total": of_key["sum_v"]}
            for name, value in row.items():
                assert _close(value, of_key[name]), (sink, key, name, value, of_key[name])
    sizes = Counter(of_key["count"] for of_key in expected.values())
    assert {size: row["keys"] for size, row in results["sizes"].items()} == sizes


def _apply(results: dict[Any, Row], rows: pa.Table, key: str) -> None:
    for row in rows.to_pylist():
        of_key, sign = row.pop(key), row.pop("change", 1)
        if sign == 1:
            assert of_key not in results or "least" not in row, "the former result was taken back"
            results[of_key] = row
        else:
            former = results.pop(of_key)
            assert all(_close(former[name], value) for name, value in row.items())


@pytest.mark.parametrize("seed", range(rounds(1, 7)))
def test_results_are_those_of_the_rows_that_are_left(seed: int) -> None:
    rng = random.Random(seed)
    table = Table(rng)
    results: dict[str, dict[Any, Row]] = {
        sink: {} for sink in ("sums", "others", "ordered", "sizes")
    }
    lost = False  # an executor, before the epoch
    with gw.testing.cluster(_flow(), executors=2) as run:
        for _ in range(14):
            changes = [change for _ in range(rng.choice([1, 3, 12])) for change in table.step()]
            if rng.random() < 0.1:
                while table.live:
                    changes.append({**table.live.pop(), "change": -1})
            out = run.epoch({"rows": changes})
            results["ordered"].clear()  # which every epoch emits as a whole
            for sink, rows in out.items():
                key = "count" if sink == "sizes" else "k"
                _apply(results[sink], rows, key)
            _check(results, table.live, lost=lost)
            disturbance, lost = rng.random(), False
            if disturbance < 0.15:
                run.restart()
            elif disturbance < 0.3:
                names = list(run.executors)
                run.migrate({rng.randrange(16): rng.choice(names)}, component="others")
            elif disturbance < 0.4:
                run.kill(rng.choice(list(run.executors)))
                run.add(f"x{len(run.epochs)}")
                lost = True


def test_an_epoch_is_one_step_in_whatever_order_its_changes_come() -> None:
    rng = random.Random(5)
    table = Table(rng)
    changes = [change for _ in range(60) for change in table.step()]
    rng.shuffle(changes)
    run = gw.testing.run(_flow(), {"rows": changes})
    expected = _by_key(table.live)
    assert {row["k"]: row["total"] for row in run.rows("sums").to_pylist()} == {
        key: row["total"] for key, row in expected.items()
    }
    assert {row["k"]: row["least"] for row in run.rows("others").to_pylist()} == {
        key: row["least"] for key, row in expected.items()
    }


@pytest.mark.parametrize("seed", range(rounds(2, 4)))
def test_deletes_that_wait_for_their_rows_meet_them(seed: int) -> None:
    rng = random.Random(seed)
    table = Table(rng)
    changes = [change for _ in range(40) for change in table.step()]
    rng.shuffle(changes)
    flow = gw.Flow("wait")
    rows = flow.source("rows", gw.testing.stream(COLUMNS)).as_changes().key_by("k")
    aggregates = {"count": gw.count(), "total": gw.sum("n"), "mean": gw.mean("v")}
    sums = rows.compute(aggregates, name="sums", on_missing="wait")
    least = rows.compute(
        name="least", least=gw.min("n"), listed=gw.collect_set("t"), on_missing="wait"
    )
    flow.sink("sums", sums, gw.sinks.noop())
    flow.sink("least", least, gw.sinks.noop())
    results: dict[str, dict[Any, Row]] = {"sums": {}, "least": {}}
    with gw.testing.cluster(flow) as run:
        while changes:
            epoch, changes = changes[:7], changes[7:]
            for sink, out in run.epoch({"rows": epoch}).items():
                for row in out.to_pylist():
                    key = row.pop("k")
                    if row.pop("change") == 1:
                        results[sink][key] = row
                    else:
                        del results[sink][key]
        assert "DeletesWaited" in {type(event).__name__ for event in run.events}
        assert run.state("least", state="state").num_rows == len({r["k"] for r in table.live})
    expected = _by_key(table.live)
    assert results["sums"].keys() == results["least"].keys() == expected.keys()
    for key, of_key in expected.items():
        for name, value in results["sums"][key].items():
            assert _close(value, of_key[name])
        assert results["least"][key]["least"] == of_key["least"]


def test_the_slots_of_rows_that_are_gone_are_used_again() -> None:
    flow = gw.Flow("slots")
    rows = flow.source("rows", gw.testing.stream("k string, n long, change byte")).as_changes()
    flow.sink("out", rows.key_by("k").compute(name="top", top=gw.max("n")), gw.sinks.noop())
    with gw.testing.cluster(flow) as run:
        run.epoch({"rows": [("a", n, 1) for n in range(3)]})
        for n in range(3, 40):
            out = run.epoch({"rows": [("a", n - 3, -1), ("a", n, 1)]})
            assert out["out"]["top"].to_pylist() == [n]
        assert run.state("top", state="rows").num_rows == 3
        [state] = run.state("top", state="state").to_pylist()
        assert state["slots"] <= 2 * 3 + 16


def test_duplicates_of_changes_follow_the_oldest_row_that_is_left() -> None:
    rng = random.Random(11)
    table = Table(rng)
    flow = gw.Flow("duplicates")
    rows = flow.source("rows", gw.testing.stream(COLUMNS)).as_changes()
    flow.sink("out", rows.drop_duplicates("k", "t", within="forever"), gw.sinks.noop())
    results: Counter[tuple[Any, ...]] = Counter()
    with gw.testing.cluster(flow) as run:
        for _ in range(12):
            changes = [change for _ in range(4) for change in table.step()]
            for row in run.epoch({"rows": changes})["out"].to_pylist():
                results[tuple(row[c] for c in ("id", "k", "n", "v", "t"))] += row["change"]
            oldest: dict[Any, tuple[Any, ...]] = {}
            for row in table.live:
                oldest.setdefault((row["k"], row["t"]), tuple(row.values()))
            assert +results == Counter(oldest.values())
            assert min(results.values()) >= 0


def _version(row: Row) -> float:
    return -math.inf if row["n"] is None else row["n"]


@pytest.mark.parametrize("order_by", ["n", None])
@pytest.mark.parametrize("seed", range(rounds(1, 2)))
def test_the_newest_row_of_each_key_is_among_those_that_are_left(
    order_by: str | None, seed: int
) -> None:
    rng = random.Random(f"{order_by} {seed}")
    table = Table(rng)
    flow = gw.Flow("newest", num_key_groups=16)
    rows = flow.source("rows", gw.testing.stream(COLUMNS)).as_changes()
    flow.sink("out", rows.key_by("k").latest(order_by=order_by, name="newest"), gw.sinks.noop())
    results: Counter[tuple[Any, ...]] = Counter()
    with gw.testing.cluster(flow, executors=2) as run:
        for _ in range(14):
            changes = [change for _ in range(rng.choice([1, 3, 9])) for change in table.step()]
            netted: Counter[tuple[Any, ...]] = Counter()
            for row in run.epoch({"rows": changes})["out"].to_pylist():
                values = tuple(row[c] for c in ("id", "k", "n", "v", "t"))
                assert netted[values] * row["change"] >= 0
                netted[values] += row["change"]
            for values, count in netted.items():
                results[values] += count
            newest: dict[Any, Row] = {}
            for row in table.live:
                former = newest.get(row["k"])
                if order_by is None or former is None or _version(row) >= _version(former):
                    newest[row["k"]] = row
            assert +results == Counter(tuple(row.values()) for row in newest.values())
            assert min(results.values()) >= 0
            disturbance = rng.random()
            if disturbance < 0.2:
                run.restart()
            elif disturbance < 0.4:
                run.migrate(
                    {rng.randrange(16): rng.choice(list(run.executors))}, component="newest"
                )


@pytest.mark.parametrize("seed", range(rounds(1, 2)))
def test_deletes_wait_for_their_rows_in_every_operator(seed: int) -> None:
    rng = random.Random(seed)
    table, other = Table(rng), Table(rng)
    flow = gw.Flow("wait", num_key_groups=8)
    streams = [
        flow.source(name, gw.testing.stream(COLUMNS)).as_changes() for name in ("rows", "others")
    ]
    rows, others = (stream.key_by("k") for stream in streams)
    waits: Any = {"on_missing": "wait"}
    for name, stream in {
        "joined": rows.join(others, how="full", suffix="_2", name="joined", **waits),
        "newest": rows.latest(order_by="id", name="newest", **waits),
        "once": streams[0].drop_duplicates("k", within="forever", name="once", **waits),
    }.items():
        flow.sink(name, stream, gw.sinks.noop())
    changes = {
        name: [change for _ in range(40) for change in each.step()]
        for name, each in (("rows", table), ("others", other))
    }
    for each in changes.values():
        rng.shuffle(each)
    results: dict[str, Counter[Any]] = {name: Counter() for name in ("joined", "newest", "once")}
    with gw.testing.cluster(flow, executors=2) as run:
        while any(changes.values()):
            epoch = {name: [each.pop() for _ in each[:5]] for name, each in changes.items()}
            for sink, out in run.epoch({n: each for n, each in epoch.items() if each}).items():
                for row in out.to_pylist():
                    sign = row.pop("change")
                    results[sink][tuple(row.values())] += sign
            assert all(min(each.values(), default=0) >= 0 for each in results.values())
            if rng.random() < 0.1:
                run.restart()
        waited = {event.operator for event in run.events if isinstance(event, DeletesWaited)}
        assert waited == {"joined", "newest", "once"}
        assert run.state("joined", state="left").num_rows == len(table.live)
    joined: Counter[Any] = Counter()
    none = (None,) * 4
    for row in table.live:
        k, *values = row["k"], *(row[c] for c in ("id", "n", "v", "t"))
        matches = [r for r in other.live if r["k"] == k is not None]
        for match in matches:
            joined[k, *values, *(match[c] for c in ("id", "n", "v", "t"))] += 1
        if not matches:
            joined[k, *values, *none] += 1
    left = {row["k"] for row in table.live} - {None}
    for row in other.live:
        if row["k"] not in left:
            joined[row["k"], *none, *(row[c] for c in ("id", "n", "v", "t"))] += 1
    assert +results["joined"] == joined
    newest = {row["k"]: row["id"] for row in sorted(table.live, key=lambda row: row["id"])}
    assert {key[0]: key[1] for key in +results["newest"]} == newest
    assert len(+results["once"]) == len(newest)


def test_other_aggregates_are_refused_since_the_rows_are_gone() -> None:
    def flow(**aggregates: Any) -> gw.Flow:
        flow = gw.Flow("evolution")
        rows = flow.source("rows", gw.testing.stream("k string, n long, change byte"))
        results = rows.as_changes().key_by("k").compute(aggregates, name="results")
        flow.sink("out", results, gw.sinks.noop())
        return flow

    with gw.testing.cluster(flow(n=gw.count(), top=gw.max("n"))) as run:
        run.epoch({"rows": [("a", 1, 1)]})
        for aggregates in (
            {"n": gw.count(), "top": gw.max("n"), "total": gw.sum("n")},
            {"n": gw.count()},
        ):
            with pytest.raises(gw.errors.CheckpointMismatchError, match="'results'"):
                run.restart(flow(**aggregates))
