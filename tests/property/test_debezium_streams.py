"""Drawn streams of Debezium's events in a topic: what a query makes of them is the source's table.

A table is changed by drawn transactions, and a small connector writes their events: in JSON with or
without schemas, or Avro, with snapshots, updates that leave large columns out, keys that change,
tombstones, heartbeats, columns that come and go, and events sent again after a restart of the
connector.  The query is stopped and moved in between.  The oracle is the table, row by row, after
each epoch.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka_broker import KafkaBroker

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

pytestmark = pytest.mark.kafka

Row = dict[str, Any]
COLUMNS = "id long, name string, note string, price decimal(12, 2), extra long"
LEFT_OUT = "__debezium_unavailable_value"
TYPES: dict[str, tuple[Any, Any]] = {  # column → its type in a Connect schema, and in Avro
    "id": ({"type": "int64"}, "long"),
    "name": ({"type": "string"}, ["null", "string"]),
    "note": ({"type": "string"}, ["null", "string"]),
    "price": (
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
    ),
    "extra": ({"type": "int64"}, ["null", "long"]),
}


class Connector:
    """A table and the messages that a connector writes about it."""

    def __init__(self, rng: random.Random, *, form: str, before: bool) -> None:
        self.rng, self.form, self.before = rng, form, before
        self.table: dict[int, Row] = {}
        self.columns = ["id", "name", "note", "price", "extra"]
        self.schemas: dict[int, Any] = {}
        self.lsn = 0
        self.log: list[tuple[bytes, bytes | None]] = []

    def draw(self, key: int) -> Row:
        choose = self.rng.choice
        row = {
            "id": key,
            "name": choose(["a", "b", None, "é"]),
            "note": choose([None, "long text", "another"]),
            "price": choose([None, Decimal("-0.01"), Decimal("9999999999.99"), Decimal(5)]),
            "extra": choose([None, 0, -(2**62)]),
        }
        return {name: row[name] if name in self.columns else None for name in row}

    def change(self) -> None:
        """Change a row, or the columns; write the events."""
        draw, rng = self.rng.random(), self.rng
        if draw < 0.05 and not self.before:  # else former rows differ from those that were read
            name = rng.choice(["extra", "name"])
            if name in self.columns:
                self.columns.remove(name)
                self.table = {key: {**row, name: None} for key, row in self.table.items()}
                for row in self.table.values():  # the database writes all rows again
                    self.write("u", row, row)
            else:
                self.columns.append(name)
        elif not self.table or draw < 0.45:
            key = rng.randrange(12)
            if key not in self.table:
                self.table[key] = self.draw(key)
                self.write(rng.choice("cr"), None, self.table[key])
        elif draw < 0.75:
            key = rng.choice(list(self.table))
            former, row = self.table[key], self.draw(key)
            keeps = not self.before and former["note"] is not None and rng.random() < 0.3
            if keeps:
                row["note"] = former["note"]
            self.table[key] = row
            self.write("u", former, {**row, "note": LEFT_OUT} if keeps else row)
        elif draw < 0.9:
            self.delete(rng.choice(list(self.table)))
        else:  # the key of a row changes: a delete, and an insert
            key, other = rng.choice(list(self.table)), rng.randrange(12)
            if other not in self.table:
                row = {**self.table[key], "id": other}
                self.delete(key)
                self.table[other] = row
                self.write("c", None, row)

    def delete(self, key: int) -> None:
        former = self.table.pop(key)
        sends_event = self.before or self.rng.random() < 0.8  # else compaction has removed it
        if sends_event:
            self.write("d", former, None)
        self.log.append((self.key(key), None))

    def write(self, op: str, before: Row | None, after: Row | None) -> None:
        if not self.before and before is not None:
            before = {**dict.fromkeys(before), "id": before["id"]} if op == "d" else None
        self.lsn += self.rng.randrange(1, 9)
        key = (after or before or {})["id"]
        parts = [None if r is None else {n: r[n] for n in self.columns} for r in (before, after)]
        source = {"lsn": self.lsn, "ts_ms": 5, "snapshot": "true" if op == "r" else "false"}
        event = {"before": parts[0], "after": parts[1], "op": op, "source": source, "ts_ms": 6}
        self.log.append((self.key(key), self.encode(event)))
        if self.rng.random() < 0.05:
            self.log.append((b'{"serverName":"s"}', b'{"ts_ms": 7}'))

    def key(self, key: int) -> bytes:
        if self.form == "avro":
            schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
            return self.framed(schema, {"id": key})
        if self.form == "schema":
            fields = [{"type": "int64", "field": "id"}]
            schema = {"type": "struct", "fields": fields}
            return json.dumps({"schema": schema, "payload": {"id": key}}).encode()
        return json.dumps({"id": key}).encode()

    def encode(self, event: dict[str, Any]) -> bytes:
        if self.form == "avro":
            return self.framed(self.envelope(), event)
        payload = json.loads(json.dumps(event, default=_base64))
        if self.form == "json":
            return json.dumps(payload).encode()
        fields = [{**TYPES[name][0], "field": name, "optional": True} for name in self.columns]
        parts = [{"type": "struct", "field": p, "fields": fields} for p in ("before", "after")]
        return json.dumps({"schema": {"fields": parts}, "payload": payload}).encode()

    def envelope(self) -> Any:
        value = {
            "type": "record",
            "name": "Value",
            "fields": [
                {"name": name, "type": TYPES[name][1]} | ({} if name == "id" else {"default": None})
                for name in self.columns
            ],
        }
        source = [
            {"name": name, "type": kind}
            for name, kind in (("lsn", "long"), ("ts_ms", "long"), ("snapshot", "string"))
        ]
        fields = [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": "long"},
        ]
        return {"type": "record", "name": "Envelope", "fields": fields}

    def framed(self, schema: Any, value: Any) -> bytes:
        known = {json.dumps(each): number for number, each in self.schemas.items()}
        number = known.get(json.dumps(schema), len(self.schemas) + 1)
        self.schemas[number] = schema
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def _base64(value: Decimal) -> str:
    number = int(value.scaleb(2))
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def _new_rows(run: gw.testing.Run) -> Iterator[tuple[str, Row]]:
    """Run epochs over all messages of the topic; yield the rows of sinks."""
    run._end_with_what_is_there()
    epochs = -1
    while epochs < len(run.epochs):
        epochs = len(run.epochs)
        for sink, rows in run.epoch().items():
            for row in rows.to_pylist():
                yield sink, row


SEEDS = range(300) if "GODWIT_LONG" in os.environ else (0, 1, 5)  # each format, each order


@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_has_the_table_of_the_source(kafka: KafkaBroker, seed: int) -> None:
    rng = random.Random(seed)
    form, before = ("json", "schema", "avro")[seed % 3], rng.random() < 0.3
    connector = Connector(rng, form=form, before=before)
    topic = kafka.topic(1)
    sent = 0

    def flow() -> gw.Flow:
        events = gw.formats.debezium(
            COLUMNS,
            key="id",
            before=before,
            include=["position"],
            registry=connector.schemas if form == "avro" else None,
        )
        flow = gw.Flow("mirror", num_key_groups=8)
        source = gw.sources.kafka(kafka.servers, topic, value=events, start="earliest")
        rows = flow.source("rows", source)
        table = rows
        if not before:
            order = "position" if seed % 2 else None
            table = rows.key_by("id").latest(order_by=order, name="newest")
        flow.sink("table", table, gw.sinks.noop())
        by_name = table.key_by("name").compute(
            n=gw.count(), total=gw.sum("price"), most=gw.max("id"), name="by_name"
        )
        flow.sink("by_name", by_name, gw.sinks.noop())
        return flow

    mirror: Counter[tuple[Any, ...]] = Counter()
    names: dict[Any, Row] = {}
    schemas = 0
    for _ in range(40):
        connector.change()
    with gw.testing.cluster(flow(), executors=2) as run:
        for _ in range(8):
            for _ in range(rng.choice([0, 1, 5, 20])):
                connector.change()
            begin = sent
            if sent and not before and rng.random() < 0.3:  # the connector starts again
                begin = max(0, sent - rng.randrange(1, 6)) if seed % 2 else sent
            for key, value in connector.log[begin:]:
                kafka.put(topic, value, key=key)
            sent = len(connector.log)
            if (len(connector.schemas) != schemas and form == "avro") or rng.random() < 0.2:
                run.restart(flow())
            schemas = len(connector.schemas)
            for sink, row in _new_rows(run):
                sign = row.pop("change")
                if sink == "table":
                    mirror[tuple(row[c] for c in TYPES)] += sign
                elif sign == 1:
                    names[row["name"]] = row
                else:
                    del names[row["name"]]
            assert +mirror == Counter(tuple(row.values()) for row in connector.table.values())
            assert {key: (row["n"], row["most"]) for key, row in names.items()} == {
                name: (len(ids), max(ids))
                for name in {row["name"] for row in connector.table.values()}
                if (ids := [r["id"] for r in connector.table.values() if r["name"] == name])
            }
            if rng.random() < 0.2:
                run.migrate(
                    {rng.randrange(8): rng.choice(list(run.executors))}, component="by_name"
                )
