"""Requests for the state of a running query are answered beside its page, of one epoch each."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import time
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.ops.page.live_page import PageServer
from godwit.ops.query_state import QueryState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-the-test"
TIME = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ROW = {
    "s": 'a "b/c"&é',
    "i": 2**53 + 1,
    "d": 0.1,
    "e": Decimal("1.50"),
    "t": TIME,
    "n": dt.datetime(2026, 1, 1),  # noqa: DTZ001
    "y": dt.date(2026, 1, 2),
    "b": b"\x00\xff",
    "f": True,
}
TYPES = {
    "s": "string",
    "i": "bigint",
    "d": "double",
    "e": "decimal(10,2)",
    "t": "timestamp",
    "n": "timestamp_ntz",
    "y": "date",
    "b": "binary",
    "f": "boolean",
}


def counting(*keys: str, **states: Any) -> gw.Flow:
    """A flow that counts rows by some keys, and one that counts them by the first."""
    flow = gw.Flow("asked", num_key_groups=8)
    columns = ", ".join(f"{name} {TYPES[name]}" for name in keys)
    rows = flow.source("rows", gw.sources.memory(columns))
    flow.sink("c", rows.key_by(*keys).compute(name="c", rows=gw.count()), gw.sinks.noop())
    first = rows.key_by(keys[0])
    flow.sink("a", first.compute(name="first.a", rows=gw.count()), gw.sinks.noop())
    if states:
        visited = first.process(_visit, name="p", output="n int", state=states)
        flow.sink("p", visited, gw.sinks.noop())
    return flow


def _visit(_key: Any, rows: Any, states: Any) -> Iterator[tuple[int]]:
    for _ in rows:
        states.one.value += 1
    yield (states.one.value,)


class Client:
    """Asks a port; answers are a status, headers and a body."""

    def __init__(self, port: int) -> None:
        self.port = port

    def raw(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str, **parameters: str) -> tuple[int, Any]:
        query = f"?{urlencode(parameters)}" if parameters else ""
        status, headers, body = self.raw(f"{path}{query}")
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        values = json.loads(body)
        if "epoch" in values:
            assert headers["Godwit-Epoch"] == str(values["epoch"])
        return status, values


@contextmanager
def served(run: Any, tmp_path: Path, **options: Any) -> Iterator[Client]:
    storage = CheckpointStorage.open(str(tmp_path))
    server = PageServer(storage, flow="asked", host="127.0.0.1", port=0, **options)
    try:
        if run is not None:
            server.answer_states(
                lambda operator, state=None: QueryState(run._driver, operator, state)
            )
        yield Client(int(server.url.partition("?")[0].rsplit(":", 1)[1].strip("/")))
    finally:
        server.close()


def test_a_key_of_every_type_is_found_by_what_an_answer_shows_of_it(tmp_path: Path) -> None:
    run = gw.testing.cluster(counting(*ROW))
    run.epoch({"rows": [ROW, ROW, dict.fromkeys(ROW)]})
    with served(run, tmp_path) as client:
        status, scanned = client.get("/state/c")
        assert (status, scanned["epoch"], scanned["more"]) == (200, 0, False)
        rows = scanned["rows"]
        assert sorted(row["rows"] for row in rows) == [1, 2]
        for row in rows:
            key = {name: row[name] for name in ROW}
            for asked in (key, list(key.values())):
                assert client.get("/state/c", key=json.dumps(asked)) == (
                    200,
                    {"epoch": 0, "more": False, "rows": [row]},
                )
        query = f"key={quote(json.dumps(list(ROW.values())[:1] + [None] * 8))}"
        status, headers, body = client.raw(f"/state/c?{query}")
        assert status == 404
        assert headers["Godwit-Epoch"] == "0"
        assert "has no state" in json.loads(body)["error"]


def test_arrow_answers_have_the_table_of_a_look_up_and_its_epoch(tmp_path: Path) -> None:
    run = gw.testing.cluster(counting("d", "s"))
    for _ in range(3):
        run.epoch({"rows": [{"d": d, "s": s} for d in (float("nan"), -0.0) for s in ("ab", "ac")]})
    with served(run, tmp_path) as client:
        accept = {"Accept": "application/vnd.apache.arrow.stream"}
        for path, headers in (("/state/c", accept), ("/state/c?format=arrow", {})):
            status, answered, body = client.raw(path, **headers)
            assert (status, answered["Content-Type"]) == (200, accept["Accept"])
            table = pa.ipc.open_stream(body).read_all()
            expected = QueryState(run._driver, "c").scan()
            assert table.schema == expected.schema
            assert str(table.to_pylist()) == str(expected.to_pylist())  # NaN is not equal to NaN
            assert table.schema.metadata == {b"godwit.epoch": b"2"}
            assert (answered["Godwit-Epoch"], answered["Godwit-More"]) == ("2", "false")
        for prefix, number in (("0.0", 2), ('["NaN"]', 2), ('["NaN", "ab"]', 1), ('[0, "a"]', 2)):
            status, answer = client.get("/state/c", prefix=prefix)
            assert (status, len(answer["rows"])) == (200, number)
        status, answer = client.get("/state/c", limit="3")
        assert (len(answer["rows"]), answer["more"]) == (3, True)
        assert client.get("/state/c", limit="0")[1]["rows"] == []


def test_several_operators_answer_of_one_epoch_and_another_epoch_is_a_conflict(
    tmp_path: Path,
) -> None:
    run = gw.testing.cluster(counting("s", "i"))
    rows = [{"s": "x", "i": i} for i in range(3)]
    run.epoch({"rows": rows})
    with served(run, tmp_path) as client:
        first = client.get("/states", **{"first.a": "x", "c": '["x", 1]'})
        assert first == (
            200,
            {
                "epoch": 0,
                "states": {
                    "first.a": [{"s": "x", "rows": 3}],
                    "c": [{"s": "x", "i": 1, "rows": 1}],
                },
            },
        )
        assert client.get("/state/first.a", key='"x"', epoch="0")[0] == 200
        run.epoch({"rows": rows})
        status, refused = client.get("/state/first.a", key='"x"', epoch="0")
        assert (status, refused["epoch"]) == (409, 1)
        assert client.get("/states", c='["x", 1]', epoch="0")[0] == 409
        assert client.get("/state/first.a", key="x")[1]["rows"] == [{"s": "x", "rows": 6}]


def test_many_operators_are_asked_for_at_once_with_a_token_in_the_address(tmp_path: Path) -> None:
    flow = gw.Flow("asked", num_key_groups=2)
    rows = flow.source("rows", gw.sources.memory("s string"))
    names = [f"n{number}" for number in range(12)]
    for name in names:
        flow.sink(name, rows.key_by("s").compute(name=name, n=gw.count()), gw.sinks.noop())
    run = gw.testing.cluster(flow)
    run.epoch({"rows": [{"s": "x"}]})
    with served(run, tmp_path, token=TOKEN) as client:
        status, answer = client.get("/states", **dict.fromkeys(names, "x"), token=TOKEN)
        assert (status, sorted(answer["states"])) == (200, sorted(names))


@pytest.mark.parametrize(("column", "days"), [("y", 2**22), ("t", 2**22), ("n", -(2**20))])
def test_times_that_json_has_no_form_for_are_answered_as_arrow(
    tmp_path: Path, column: str, days: int
) -> None:
    run = gw.testing.cluster(counting(column))
    stored = days if column == "y" else days * 86_400_000_000
    utc = "UTC" if column == "t" else None
    dtype = pa.date32() if column == "y" else pa.timestamp("us", utc)
    times = pa.array([stored], pa.int32() if column == "y" else pa.int64()).cast(dtype)
    run.epoch({"rows": pa.table({column: times})})
    with served(run, tmp_path) as client:
        status, headers, body = client.raw("/state/c")
        assert (status, headers["Godwit-Epoch"]) == (406, "0")
        assert "with format=arrow" in json.loads(body)["error"]
        status, _, body = client.raw("/state/c?format=arrow")
        assert status == 200
        assert pa.ipc.open_stream(body).read_all().column(column).cast(times.type)[0] == times[0]
    state = QueryState(run._driver, "c")
    assert state.get(times.cast(pa.int32() if column == "y" else pa.int64())[0].as_py()) == {
        column: stored,
        "rows": 1,
    }


def test_what_cannot_be_answered_says_why_with_the_status_of_its_kind(tmp_path: Path) -> None:
    states = {"one": gw.ValueState(int), "other": gw.ValueState(int)}
    run = gw.testing.cluster(counting("s", "i", **states))
    run.epoch({"rows": [{"s": "x", "i": 1}]})
    with served(run, tmp_path) as client:
        for path, status, why in (
            ("/state/nothing?key=1", 404, "no operator 'nothing'"),
            ("/state/", 404, "no operator ''"),
            ("/state/p?key=x", 400, "has several states"),
            ("/state/p?key=x&state=third", 404, "no state 'third'"),
            ("/state/c?key=x", 400, "one value for each of the key columns s, i"),
            ("/state/c?key=[%22x%22,%22y%22]", 400, "not a value of key column 'i', of type int64"),
            ("/state/c?key=[%22x%22,1.5]", 400, "not a value of key column 'i'"),
            ("/state/c?key=[%22x%22,true]", 400, "not a value of key column 'i'"),
            ("/state/c?key=[[%22x%22],1]", 400, "not a value of key column 's'"),
            ("/state/c?key={%22s%22:%22x%22}", 400, "does not have exactly the key columns s, i"),
            ("/state/c?key=" + "[" * 3000, 400, "one value for each"),
            ("/state/c?key=" + "9" * 5000, 400, "one value for each"),
            ("/state/c?prefix=[1,2,3]", 400, "more values than key columns"),
            ("/state/c?limit=-1", 400, "not a number from 0 to 100000"),
            ("/state/c?limit=1e3", 400, "not a number"),
            ("/state/c?key=x&limit=1", 400, "either a key, or"),
            ("/state/c?where=x", 400, "'where' is unknown"),
            ("/state/c?limit=1&limit=2", 400, "duplicated"),
            ("/state/c?key=%ff", 400, "cannot be read"),
            ("/state/c?format=xml", 400, "format 'xml' is unknown"),
            ("/state/c?epoch=now", 400, "not a number"),
            ("/state/c?" + "&".join(f"a{i}=1" for i in range(99)), 400, "cannot be read"),
            ("/states", 400, "Give each operator once"),
            ("/states?nothing=1", 404, "no operator 'nothing'"),
        ):
            got, _, body = client.raw(path)
            assert (path, got) == (path, status)
            assert why in json.loads(body)["error"], path
        assert client.get("/state/p", key="x", state="one")[1]["rows"] == [{"s": "x", "state": "1"}]


def test_without_a_token_or_a_running_query_there_is_no_answer(tmp_path: Path) -> None:
    run = gw.testing.cluster(counting("s", "i"))
    run.epoch({"rows": [{"s": "x", "i": 1}]})
    path = "/state/first.a?key=x"
    with served(run, tmp_path, token=TOKEN) as client:
        for headers in ({}, {"Authorization": "Bearer another"}):
            status, answered, _ = client.raw(path, **headers)
            assert (status, answered["WWW-Authenticate"]) == (401, 'Bearer realm="godwit"')
        assert client.raw(path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert client.raw(f"{path}&token={TOKEN}")[0] == 200
    with served(None, tmp_path) as client:
        status, answered, body = client.raw(path)
        assert (status, answered["Retry-After"]) == (503, "1")
        assert "has not started" in json.loads(body)["error"]


def test_a_checkpoint_answers_without_its_query_and_says_so(tmp_path: Path) -> None:
    run = gw.testing.cluster(counting("s", "i"))
    server = PageServer(run._driver.log.storage, flow="asked", host="127.0.0.1", port=0)
    server.answer_from_checkpoint()
    try:
        client = Client(int(server.url.rsplit(":", 1)[1].strip("/")))
        status, answer = client.get("/state/first.a", key="x")
        assert (status, answer["error"][:25]) == (404, "No epoch is committed yet")
        run.epoch({"rows": [{"s": "x", "i": 1}, {"s": "y", "i": 2}]})
        origin = {"epoch": 0, "from": "checkpoint"}
        end_s = time.monotonic() + 60
        while status != 200 and time.monotonic() < end_s:  # an earlier look serves half a second
            time.sleep(0.02)
            status, answer = client.get("/state/first.a", key="x")
        assert answer == {**origin, "more": False, "rows": [{"s": "x", "rows": 1}]}
        assert client.get("/states", **{"first.a": "y", "c": '["x", 1]'})[1] == {
            **origin,
            "states": {"first.a": [{"s": "y", "rows": 1}], "c": [{"s": "x", "i": 1, "rows": 1}]},
        }
        for path, status in (("c?prefix=x", 200), ("c?key=[%22x%22,7]", 404), ("d", 404)):
            got, headers, _ = client.raw(f"/state/{path}")
            assert (got, headers["Godwit-From"]) == (status, "checkpoint"), path
    finally:
        server.close()


def test_a_page_of_the_web_is_refused_the_state_too(tmp_path: Path) -> None:
    run = gw.testing.cluster(counting("s", "i"))
    with served(run, tmp_path) as client:
        assert client.raw("/state/c", Host="evil.example")[0] == 403


@pytest.mark.parametrize("key", ["x", '"x"', '["x"]', '{"s": "x"}'])
def test_an_operator_without_state_yet_has_none_of_any_key(tmp_path: Path, key: str) -> None:
    run = gw.testing.cluster(counting("s", "i"))
    with served(run, tmp_path) as client:
        assert client.get("/state/first.a", key=key)[0] == 404
        assert client.get("/state/first.a") == (200, {"epoch": -1, "more": False, "rows": []})
        run.epoch({"rows": [{"s": "x", "i": 1}]})
        assert client.get("/state/first.a", key=key)[1]["rows"] == [{"s": "x", "rows": 1}]
