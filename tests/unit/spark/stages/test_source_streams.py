"""Streams that a plan reads, and where, from stand-ins for nodes of Spark's plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.spark.stages.source_plans import check_offset_log, offset_layout


@dataclass(eq=False)
class Node:
    """A node of a plan: one that reads a stream, or that unites others."""

    name: str = ""
    options: dict[str, str] = field(default_factory=dict)
    below: tuple[Node, ...] = ()
    streams: bool = True

    def getClass(self) -> Any:  # noqa: N802  Java's name, as below
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return "StreamingRelationV2"

    def isStreaming(self) -> bool:  # noqa: N802
        return self.streams

    def simpleString(self, _fields: int) -> str:  # noqa: N802
        return self.name

    def sourceName(self) -> str:  # noqa: N802
        return self.name

    def extraOptions(self) -> dict[str, str]:  # noqa: N802
        return self.options

    def identifier(self) -> Any:
        return self

    def isDefined(self) -> bool:  # noqa: N802
        return False

    def children(self) -> Any:
        return self

    def size(self) -> int:
        return len(self.below)

    def apply(self, at: int) -> Node:
        return self.below[at]

    def equals(self, other: Node) -> bool:
        return self is other


class Frame:
    """A DataFrame of a plan."""

    def __init__(self, plan: Node) -> None:
        self.plan = plan
        self.sparkSession = self.conf = self._jdf = self

    def get(self, _setting: str, value: str) -> str:
        return value

    def queryExecution(self) -> Any:  # noqa: N802
        return self

    def analyzed(self) -> Node:
        return self.plan


def unite(*below: Node) -> Any:
    return Frame(Node(below=below))


def reads(name: str, **options: str) -> dict[str, str]:
    frame: Any = Frame(Node(name, options))
    return offset_layout([("s", frame)], {"s": frame}).readings[0][0].reads


def test_lines_are_of_streams_in_the_order_in_which_the_plan_reads_them() -> None:
    one, two, table = Node("one"), Node("two"), Node("table", streams=False)
    sources = {"b": unite(two, one), "a": unite(one, table)}
    frames = [("a", unite(one)), ("a", unite(one, table)), ("b", unite(two, one))]
    made = offset_layout(frames, sources)
    assert made.lines == (0, 0, 1, 0)
    named = [[(r.source, r.index) for r in of] for of in made.readings]
    assert named == [[("a", 0), ("b", 1)], [("b", 0)]]


def test_a_stream_that_is_not_a_sources_is_refused() -> None:
    one = Node("one")
    with pytest.raises(
        InvalidFlowError, match="source 'a' brings in another stream, two"
    ) as caught:
        offset_layout([("a", unite(one, Node("two")))], {"a": unite(one)})
    assert "flow.source" in caught.value.remedy


def test_what_is_read_is_told_from_how_it_is_read() -> None:
    kafka = {"subscribe": "orders", "kafka.bootstrap.servers": "a:1", "maxOffsetsPerTrigger": "9"}
    assert reads("kafka", **kafka) == {"format": "kafka", "subscribe": "orders"}
    assert reads("Kafka", **kafka | {"startingOffsets": "latest"}) == reads("kafka", **kafka)
    assert reads("kafka", **kafka | {"subscribe": "trips"}) != reads("kafka", **kafka)
    assert reads("delta", path="/t/", ignoreDeletes="true") == reads("delta", path="file:///t")
    assert reads("rate", rowsPerSecond="5") == reads("rate", rowsPerSecond="7")


def test_options_of_unknown_formats_are_compared_without_being_kept() -> None:
    given = {"url": "https://me:secret@host/a", "apiToken": "secret", "maxRows": "5"}
    found = reads("mine", **given)
    assert "secret" not in str(found)
    assert found == reads("mine", **given | {"apiToken": "other", "maxRows": "6"})
    assert found != reads("mine", **given | {"url": "https://me:secret@host/b"})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true"),
        ("spark.sql.streaming.offsetLog.formatVersion", "2"),
    ],
)
def test_offsets_in_another_format_are_refused(setting: str, value: str) -> None:
    frame: Any = Frame(Node())
    check_offset_log(frame)
    frame.get = lambda name, default: value if name == setting else default
    with pytest.raises(InvalidFlowError, match=setting):
        check_offset_log(frame)
