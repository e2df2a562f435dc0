"""Rows in hashes of a real Redis: values, names, epochs in parts, and servers that are refused."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.redis_server import running_redis
from tests.support.epoch_rows import EpochRows, context, point, rows

import godwit as gw
from godwit.columns.signed import CHANGE
from godwit.connect.redis import sink as redis_sink
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from godwit.columns.signed import Kind
    from godwit.sinks.sink import Sink, SinkContext

pytestmark = pytest.mark.redis


def hashes(url: str) -> dict[str, dict[bytes, bytes]]:
    """The hashes of rows, by name."""
    from redis import Redis

    with Redis.from_url(url) as client:
        names = [name for name in client.scan_iter() if b":godwit:" not in name]
        return {name.decode(): client.hgetall(name) for name in sorted(names)}


def opened(url: str, ctx: SinkContext | None = None, **options: Any) -> Sink:
    sink = gw.sinks.redis(url, "planes", **options)
    sink.open(ctx or context())
    return sink


def test_values_are_text_and_nulls_have_no_field(redis: str) -> None:
    columns = {
        "flag": (pa.bool_(), True, b"true"),
        "large": (pa.uint64(), 2**64 - 1, b"18446744073709551615"),
        "double": (pa.float64(), 0.1, b"0.1"),
        "decimal": (pa.decimal128(9, 2), Decimal("1.50"), b"1.50"),
        "text": (pa.string(), "é\0", "é\0".encode()),
        "bytes": (pa.binary(), b"\x00\xff", b"\x00\xff"),
        "day": (pa.date32(), dt.date(2020, 1, 2), b"2020-01-02"),
        "instant": (
            pa.timestamp("us", "Europe/Berlin"),
            dt.datetime(2020, 1, 2, 3, 4, tzinfo=dt.UTC),
            b"2020-01-02T03:04:00Z",
        ),
        "list": (pa.list_(pa.int64()), [1, None], b"[1,null]"),
    }
    schema = pa.schema([("k", pa.int64()), *((name, v[0]) for name, v in columns.items())])
    values = {"k": [1, 2]} | {name: [v[1], None] for name, v in columns.items()}
    sink = opened(redis, context(schema=schema, keys=("k",)))
    sink.deliver(EpochRows(epoch=0, table=pa.table(values, schema=schema)))
    sink.close()
    assert hashes(redis) == {
        "planes:1": {b"k": b"1", **{name.encode(): v[2] for name, v in columns.items()}},
        "planes:2": {b"k": b"2"},
    }


def test_any_bytes_are_a_key_and_the_name_of_the_epochs_is_none(redis: str) -> None:
    schema = pa.schema([("k", pa.binary()), ("v", pa.list_(pa.float64()))])
    names = [b"\xff\x00", "é".encode(), b"godwit:epochs"]
    table = pa.table({"k": names, "v": [[math.inf, 1.5, math.nan]] * 3}, schema=schema)
    sink = opened(redis, context(schema=schema, keys=("k",)))
    rejections = sink.row_check()(table.to_batches()[0])  # type: ignore[misc]
    assert rejections is not None
    assert rejections.rows.tolist() == [2]
    sink.deliver(EpochRows(epoch=0, table=table.slice(0, 2)))
    sink.close()
    from redis import Redis

    with Redis.from_url(redis) as client:
        assert client.hget(b"planes:\xff\x00", "v") == b"[null,1.5,null]"
        assert client.hget("planes:é", "k") == "é".encode()


def test_several_keys_make_a_list_and_a_row_replaces_all_fields(redis: str) -> None:
    sink = opened(redis, keys=["plane", "total"])
    sink.deliver(rows(0, ("a", 1), ('b","c', 2)))
    sink.close()
    assert list(hashes(redis)) == ['planes:["a",1]', 'planes:["b\\",\\"c",2]']
    bad = sink.row_check()
    assert bad is not None
    rejections = bad(rows(0, ("a", 1), (None, 1), ("a", None)).table.to_batches()[0])
    assert rejections is not None
    assert rejections.rows.tolist() == [1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_between_parts_leaves_the_result_as_it_should_be(
    redis: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(redis_sink, "_ROWS", 2)
    kind: Kind = rng.choice(["changes", "upserts"])
    schema = pa.schema([("plane", pa.string()), ("total", pa.int64()), CHANGE])
    ctx = context(schema=schema, kind=kind, table_keys=("plane",), unique_keys=())
    live: dict[str, int] = {}
    sink = opened(redis, ctx)
    writes = {"left": 0}
    write = redis_sink.RedisSink._write_transaction

    def fail(self: Any, *args: Any, **kwargs: Any) -> bool:
        writes["left"] -= 1
        if writes["left"] == 0:
            raise SinkError("The process dies.")
        done = write(self, *args, **kwargs)
        if writes["left"] == 1 and rng.random() < 0.5:
            raise SinkError("The process dies, and the answer is lost.")
        return done

    monkeypatch.setattr(redis_sink.RedisSink, "_write_transaction", fail)
    for epoch in range(8):
        changes = []
        for key in rng.sample("abcdefgh", rng.randrange(8)):
            if key in live:
                changes.append((key, live.pop(key), -1))
            if rng.random() < 0.6:
                live[key] = rng.randrange(9)
                changes.append((key, live[key], 1))
        named = [dict(zip(schema.names, change, strict=True)) for change in changes]
        output = EpochRows(epoch=epoch, table=pa.Table.from_pylist(named, schema=schema))
        writes["left"] = rng.randrange(5)
        for _ in range(3):
            try:
                sink.deliver(output)
                break
            except SinkError:
                sink.close()
                sink = opened(redis, ctx)
                writes["left"] = 0
        assert sink.last_delivered() == point(epoch)
        expected = {
            f"planes:{k}": {b"plane": k.encode(), b"total": b"%d" % v} for k, v in live.items()
        }
        assert hashes(redis) == expected
    sink.close()


def test_servers_that_lose_rows_are_refused() -> None:
    with (
        running_redis("--maxmemory-policy", "allkeys-lru") as url,
        pytest.raises(SinkError, match="evicts keys when its memory is full"),
    ):
        opened(url)
    with (
        running_redis("--cluster-enabled", "yes") as url,
        pytest.raises(SinkError, match="cluster"),
    ):
        opened(url)


def test_a_server_that_has_lost_epochs_in_a_run_is_noticed(redis: str) -> None:
    from redis import Redis

    sink = opened(redis)
    sink.deliver(rows(0, ("a", 1)))
    with Redis.from_url(redis) as client:
        client.flushdb()
    with pytest.raises(SinkError, match="the server has lost its last writes"):
        sink.deliver(rows(1, ("a", 2)))
    sink.continue_after(point(0))
    sink.deliver(rows(1, ("a", 2)))
    sink.close()
    assert hashes(redis) == {"planes:a": {b"plane": b"a", b"total": b"2"}}


def test_a_url_that_cannot_be_used_and_a_complete_result_are_refused() -> None:
    with pytest.raises(SinkError, match="is not valid") as refused:
        gw.sinks.redis("http://me:secret@host", "planes")
    assert "secret" not in str(refused.value)
    sink = gw.sinks.redis("redis://me:secret@127.0.0.1:1/0", "planes")
    with pytest.raises(SinkError, match="hashes of keys that were removed would stay"):
        sink.check_columns(context(complete=True))
    with pytest.raises(SinkError, match="cannot be opened") as refused:
        sink.open(context())
    assert "secret" not in f"{refused.value} {sink!r} {sink.destination}"
