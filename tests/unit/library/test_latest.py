"""``latest``: the newest row of each key, as changes; against a dict of rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import godwit as gw
from godwit.model.errors import EpochFailedError, InvalidFlowError

COLUMNS = "id long, v string, at long, change byte, unchanged string"


def _flow(order_by: str | None = None, columns: str = COLUMNS) -> gw.Flow:
    flow = gw.Flow("latest")
    rows = flow.source("rows", gw.testing.stream(columns))
    rows = rows.as_upserts() if "change" in columns else rows
    flow.sink("out", rows.key_by("id").latest(order_by=order_by), gw.sinks.noop())
    return flow


def _row(**values: Any) -> dict[str, Any]:
    return {"id": 1, "v": None, "at": None, "change": 1, "unchanged": None, **values}


def _drawn(rng: random.Random, versions: list[int]) -> dict[str, Any]:
    row = _row(id=rng.choice([1, 2, 3, None]), at=versions.pop())
    if rng.random() < 0.3:
        return {**row, "change": -1, "v": rng.choice([None, "x"])}
    if rng.random() < 0.3:
        return {**row, "v": "?", "unchanged": "v"}
    return {**row, "v": rng.choice(["a", "b", None])}


def _table_after(rows: list[dict[str, Any]], *, by_version: bool) -> Counter[tuple[Any, ...]]:
    table: dict[Any, tuple[Any, ...] | None] = {}
    seen: dict[Any, int] = {}
    for row in rows:
        key = row["id"]
        if by_version and row["at"] < seen.get(key, -1):
            continue
        seen[key] = row["at"]
        former = table.get(key)
        if row["change"] == -1:
            table[key] = None
        elif row.get("unchanged"):
            table[key] = (key, None if former is None else former[1], row["at"])
        else:
            table[key] = (key, row["v"], row["at"])
    return Counter(row for row in table.values() if row is not None)


@pytest.mark.parametrize("seed", range(12))
def test_changes_add_up_to_the_newest_rows(seed: int) -> None:
    rng = random.Random(seed)
    by_version = seed % 2 == 1
    versions = list(range(60, 0, -1))
    if by_version:
        rng.shuffle(versions)
    rows = [_drawn(rng, versions) for _ in range(40)]
    if by_version:  # a value that is left as it is needs the row before it
        rows = [{**row, "unchanged": None} for row in rows]
    table: Counter[tuple[Any, ...]] = Counter()
    sent: list[dict[str, Any]] = []
    with gw.testing.cluster(_flow("at" if by_version else None), executors=2) as run:
        while len(sent) < len(rows):
            epoch = rows[len(sent) : len(sent) + rng.randint(1, 9)]
            sent += epoch
            for row in run.epoch({"rows": epoch})["out"].to_pylist():
                table[row["id"], row["v"], row["at"]] += row["change"]
            assert all(count in (0, 1) for count in table.values())
            assert +table == _table_after(sent, by_version=by_version)
            if rng.random() < 0.2:
                run.restart(executors=rng.choice([1, 2]))


@pytest.mark.parametrize("seed", range(12))
def test_rows_without_a_version_are_newer_than_those_before_them(seed: int) -> None:
    rng = random.Random(seed)
    table: dict[int, tuple[Any, ...] | None] = {}
    version: dict[int, int | None] = {}
    got: Counter[tuple[Any, ...]] = Counter()
    with gw.testing.cluster(_flow("at"), executors=2) as run:
        for _ in range(12):
            rows = []
            for _ in range(rng.randint(1, 6)):
                key, at = rng.choice([1, 2]), rng.choice([None, None, *range(12)])
                row = _row(id=key, at=at, v=rng.choice("abc"), change=rng.choice([1, 1, -1]))
                rows.append(row)
                known = version.get(key)
                if at is not None and known is not None and at < known:
                    continue
                version[key] = known if at is None and row["change"] == -1 else at
                table[key] = (key, row["v"], at) if row["change"] == 1 else None
            for row in run.epoch({"rows": rows})["out"].to_pylist():
                got[row["id"], row["v"], row["at"]] += row["change"]
            assert +got == Counter(row for row in table.values() if row is not None)


def test_state_is_one_entry_for_each_live_key() -> None:
    with gw.testing.cluster(_flow()) as run:
        run.epoch({"rows": [_row(id=n, v="a") for n in range(5)]})
        run.epoch({"rows": [_row(id=n, change=-1) for n in (1, 2, 7)]})
        assert sorted(run.state("rows_latest_by_id")["id"].to_pylist()) == [0, 3, 4]


def test_rows_replace_the_row_of_their_key_and_equal_ones_change_nothing() -> None:
    with gw.testing.cluster(_flow(columns="id long, v string")) as run:
        first = run.epoch({"rows": [(1, "a"), (1, "b")]})["out"].to_pylist()
        assert first == [{"id": 1, "v": "b", "change": 1}]
        assert run.epoch({"rows": [(1, "b")]})["out"].num_rows == 0
        assert run.epoch({"rows": [(1, "c")]})["out"].to_pylist() == [
            {"id": 1, "v": "b", "change": -1},
            {"id": 1, "v": "c", "change": 1},
        ]


@pytest.mark.parametrize("sign", [0, 2, None])
def test_a_sign_is_one_or_minus_one(sign: int | None) -> None:
    with (
        gw.testing.cluster(_flow()) as run,
        pytest.raises(EpochFailedError, match="'change' is neither 1 nor -1"),
    ):
        run.epoch({"rows": [_row(change=sign)]})


def test_a_table_has_a_key_and_a_version_outside_it() -> None:
    flow = gw.Flow("latest")
    rows = flow.source("rows", gw.testing.stream("id long, v array<int>"))
    with pytest.raises(InvalidFlowError, match="has no key"):
        rows.key_by().latest()
    with pytest.raises(InvalidFlowError, match="order_by='id'"):
        rows.key_by("id").latest(order_by="id")
    flow.sink("out", rows.key_by("id").latest(), gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match="stores the newest row of each key, and column 'v'"):
        flow.compiled()
