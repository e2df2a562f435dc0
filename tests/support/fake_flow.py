"""Stand-ins for a flow's DataFrames and sinks, and a resolver of schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from godwit.api.flow import LogicalFlow as Flow
from godwit.plan.maps import map_dataframe

__all__ = ["FLIGHTS", "ORDERS", "FakeDataFrame", "FakeSink", "Resolve", "flow_of", "resolver"]

FLIGHTS = pa.schema(
    [
        pa.field("tailnum", pa.string()),
        pa.field("year", pa.int32(), nullable=False),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("arr_delay", pa.float64()),
        pa.field("legs", pa.list_(pa.string())),
    ]
)
ORDERS = pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("size", pa.int64())])


@dataclass(frozen=True)
class FakeDataFrame:
    """As much of a DataFrame as a flow looks at, with a schema that maps can change."""

    schema: pa.Schema
    isStreaming: bool = True  # noqa: N815 - PySpark's own spelling

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def with_column(self, name: str, dtype: pa.DataType) -> FakeDataFrame:
        return replace(self, schema=self.schema.append(pa.field(name, dtype)))

    def drop(self, *names: str) -> FakeDataFrame:
        return replace(
            self, schema=pa.schema([column for column in self.schema if column.name not in names])
        )


@dataclass
class FakeSink:
    """A sink that does nothing, so that one object may stand for any number of them."""

    wants_rows: ClassVar[bool] = False
    opened: list[Any] = field(default_factory=list)

    def open(self, context: Any) -> None:
        self.opened.append(context)

    def deliver(self, output: Any) -> None: ...


Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def resolver(flow: Flow) -> Resolve:
    """Resolve schemas as a runtime does: by applying the maps to the DataFrame."""

    def resolve(source: str, maps: tuple[Callable[[Any], Any], ...]) -> pa.Schema:
        mapped: Any = map_dataframe(source, maps, flow.sources[source])
        return mapped.schema

    return resolve


def flow_of(stream: Any) -> Flow:
    """Return the flow that a stream belongs to."""
    assert isinstance(stream.flow, Flow)
    return stream.flow
