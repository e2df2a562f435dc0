"""Any graph of operators compiles to levels that grow along its edges; schemas can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.api.flow import LogicalFlow as Flow
from godwit.columns.types import to_schema
from godwit.library.aggregates import count
from godwit.plan.compiled import UpstreamInput

if TYPE_CHECKING:
    from godwit.api.streams import Stream

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "decimal(12, 3)": pa.decimal128(12, 3),
    "varchar(7)": pa.string(),
}


class StreamingFrame:
    isStreaming = True  # noqa: N815 - PySpark's own spelling


class NoSink:
    def open(self, context: object) -> None: ...

    def deliver(self, output: object) -> None: ...


@settings(derandomize=True, deadline=None, max_examples=rounds(12, 60))
@given(st.data())
def test_levels_grow_along_every_edge(data: st.DataObject) -> None:
    flow = Flow("f")
    frame: object = StreamingFrame()
    sources = [
        flow.source(f"s{i}", frame)  # type: ignore[arg-type]  # a flow looks at isStreaming only
        for i in range(data.draw(st.integers(1, 3)))
    ]
    streams: list[Stream] = list(sources)
    upstream: dict[str, str | None] = {}
    for i in range(data.draw(st.integers(len(sources), 12))):
        parent = data.draw(st.integers(0, len(streams) - 1))
        parent = i if i < len(sources) else parent  # every source is read
        operator = f"o{i}"
        streams.append(streams[parent].key_by("k").compute(name=operator, n=count()))
        upstream[operator] = None if parent < len(sources) else f"o{parent - len(sources)}"
    for i, stream in enumerate(streams[len(sources) :]):
        flow.sink(f"sink{i}", stream, NoSink())

    compiled = flow.compile(lambda *_: pa.schema([("k", pa.string())]))

    level = {component.name: component.level for component in compiled.components}
    assert sorted(level) == sorted(upstream)
    for operator, parent_name in upstream.items():
        assert level[operator] == (1 if parent_name is None else level[parent_name] + 1)
        (given_input,) = compiled.inputs_of(operator)
        if isinstance(given_input, UpstreamInput):
            assert given_input.upstream == parent_name
        else:
            assert parent_name is None
    assert list(level.values()) == sorted(level.values())


@settings(derandomize=True, deadline=None, max_examples=rounds(20, 100))
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), min_size=1).filter(
                lambda name: not name.startswith("__godwit")
            ),
            st.sampled_from(sorted(TYPES)),
            st.sampled_from([" ", ": ", "\t", " :"]),
        ),
        min_size=1,
        unique_by=lambda column: column[0].casefold(),
    )
)
def test_any_schema_of_primitives_can_be_written_as_text(
    columns: list[tuple[str, str, str]],
) -> None:
    quoted = [("`" + name.replace("`", "``") + "`", dtype, gap) for name, dtype, gap in columns]
    text = ", ".join(f"{name}{gap}{dtype}" for name, dtype, gap in quoted)
    expected = pa.schema([(name, TYPES[dtype]) for name, dtype, _ in columns])
    assert to_schema(text, where="The output") == expected
