"""Columns of streams: of sources as they or Spark say, of operators as bound, after their maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.columns.types import plain_schema, visible_schema
from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    did_you_mean,
    error_line,
    function_name,
    listing,
    type_name,
)
from godwit.plan.maps import ArrowMap, bind_map
from godwit.plan.nodes import (
    Branch,
    KindNode,
    MapNode,
    SourceNode,
    StreamNode,
    UnionNode,
    branches_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.operators.operator import KeyedOperator
    from godwit.sources.source import Source

DataFrameMaps: TypeAlias = tuple[Callable[[Any], Any], ...]

SourceMaps: TypeAlias = tuple[Any, ...]
"""Maps on a source: functions over DataFrames, or `ArrowMap`s on one of Godwit's own."""

Resolver: TypeAlias = Callable[[str, DataFrameMaps], pa.Schema]
"""``resolve(source name, maps)`` returns the Arrow schema of the source after its maps."""

Retimed: TypeAlias = Callable[[str, DataFrameMaps, str], int]
"""``retimed(source name, maps, column)`` counts the maps up to the last that recomputes it."""


def no_retimed_map(_source: str, _maps: DataFrameMaps, _column: str) -> int:
    """Return 0: without maps over DataFrames, none recomputes the event time."""
    return 0


class StreamColumns:
    """Columns of the streams of one flow; operators are added as they are bound."""

    def __init__(
        self,
        operators: Mapping[str, KeyedOperator],
        resolve: Resolver,
        errors: Mapping[int, str],  # id of a node → sink of the rows for which its function fails
    ) -> None:
        self._operators, self._resolve, self._errors = operators, resolve, errors
        self._maps: dict[tuple[str, tuple[MapNode, ...]], ArrowMap] = {}
        self.of_sources: dict[tuple[str, SourceMaps], pa.Schema] = {}

    def of(self, node: StreamNode) -> tuple[pa.Schema, str]:
        """Return a stream's columns, and a description of the stream for messages."""
        self._check_union(node)
        branches = [self._branch_columns(branch) for branch in branches_of(node)]
        schema, _ = branches[0]
        return schema, " and ".join(dict.fromkeys(origin for _, origin in branches))

    def names_of(self, node: StreamNode) -> list[str]:
        """Return the names of the columns of a stream."""
        names: list[str] = self.of(node)[0].names
        return names

    def _check_union(self, node: StreamNode) -> None:
        """Refuse a union of streams with different columns, anywhere upstream."""
        while isinstance(node, MapNode | KindNode):
            node = node.upstream
        if isinstance(node, UnionNode):
            first, *others = (self.of(upstream) for upstream in node.upstreams)
            for other in others:
                _check_same_columns(first, other)

    def _branch_columns(self, branch: Branch) -> tuple[pa.Schema, str]:
        """Return a branch's columns, and a description of the branch for messages."""
        feed = branch.feed
        if isinstance(feed, SourceNode):
            names = ", ".join(repr(function_name(m.function)) for m in branch.maps)
            origin = f"source {feed.name!r}" + (f" (after its maps {names})" if names else "")
            maps = self.source_maps(branch)
            return self._source_columns(feed, maps, origin), origin
        bound = self.arrow_maps(branch)
        if not bound:
            return self._output_of(feed.name), f"operator {feed.name!r}"
        return bound[-1].schema, f"map {bound[-1].name!r} after operator {feed.name!r}"

    def _output_of(self, operator: str) -> pa.Schema:
        """Return the columns that an operator emits, as its readers see them."""
        return plain_schema(visible_schema(self._operators[operator].output))

    def source_maps(self, branch: Branch) -> SourceMaps:
        """Return the maps of a source's branch: functions over DataFrames, or `ArrowMap`s."""
        if branch.has_arrow_maps:
            return self.arrow_maps(branch)
        return tuple(m.function for m in branch.maps)

    def arrow_maps(self, branch: Branch) -> tuple[ArrowMap, ...]:
        """Return the bound maps over Arrow tables of a branch.

        Maps shared by branches are bound once.
        """
        bound: list[ArrowMap] = []
        feed = branch.feed
        if isinstance(feed, SourceNode):
            schema = self._source_columns(feed, (), f"source {feed.name!r}")
        else:
            schema = self._output_of(feed.name)
        for number, map_node in enumerate(branch.maps, 1):
            feed_and_maps = feed.name, branch.maps[:number]
            if feed_and_maps not in self._maps:
                self._maps[feed_and_maps] = bind_map(
                    map_node.function,
                    feed=feed.name,
                    is_source=isinstance(feed, SourceNode),
                    inputs=schema,
                    schema=map_node.schema,
                    failures_to=self._errors.get(id(map_node), ""),
                )
            bound.append(self._maps[feed_and_maps])
            schema = bound[-1].schema
        return tuple(bound)

    def _source_columns(self, feed: SourceNode, maps: SourceMaps, origin: str) -> pa.Schema:
        """Return a source's columns after `maps`, cached, or raise; `origin`: for errors."""
        if (feed.name, maps) in self.of_sources:
            return self.of_sources[feed.name, maps]
        try:
            if feed.own is not None:
                schema = maps[-1].schema if maps else _own_columns(feed, feed.own)
            else:
                schema = self._resolve(feed.name, maps)
        except GodwitError:
            raise
        except Exception as error:
            raise InvalidFlowError(
                f"The columns of {origin} cannot be found: {error_line(error)}.",
                remedy="Correct the maps: each gets a DataFrame and returns one."
                if maps
                else "Check what the source was given.",
                source=feed.name,
            ) from error
        check_column_names(schema.names, origin[0].upper() + origin[1:])
        return self.of_sources.setdefault((feed.name, maps), plain_schema(schema))


def _own_columns(feed: SourceNode, source: Source) -> pa.Schema:
    """Return the columns of one of Godwit's own sources; require its event time among them."""
    schema: object = source.schema
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InvalidFlowError(
            f"Source {feed.name!r} ({type_name(source)}) says that its columns are {schema!r}.",
            remedy="Let its property schema return a pyarrow.Schema of at least one column.",
            source=feed.name,
        )
    time = feed.time
    if time is not None and time.column not in schema.names:
        raise InvalidFlowError(
            f"Source {feed.name!r} has the event time {time.column!r}, but no such column.",
            remedy=f"{did_you_mean(time.column, schema.names)}Its columns are "
            f"{listing(schema.names)}.",
            source=feed.name,
            column=time.column,
        )
    return schema


def _check_same_columns(left: tuple[pa.Schema, str], right: tuple[pa.Schema, str]) -> None:
    """Refuse to unite streams (columns, description) that differ in columns or order."""
    (first, origin), (second, other_origin) = left, right
    different = list(differences(first, origin, second, other_origin))
    if not different and first.names != second.names:
        orders = f"{listing(first.names)} in {origin}, {listing(second.names)} in {other_origin}"
        different = [f"they are in the order {orders}"]
    if different:
        raise InvalidFlowError(
            f"The columns of two streams that are united differ: {'; '.join(different)}.",
            remedy="Give both the same columns, of the same types and in the same order, in a map "
            "before union(...), as in stream.map(lambda df: df.select(...)).",
            differences=different,
        )


def differences(
    first: pa.Schema, origin: str, second: pa.Schema, other_origin: str
) -> Iterator[str]:
    """Yield, as text, the differences of two streams' columns.

    `origin`, `other_origin`: their descriptions.
    """
    for field in first:
        if field.name not in second.names:
            yield f"{origin} has {field.name!r}, and {other_origin} has not"
        elif (dtype := second.field(field.name).type) != field.type:
            yield f"{field.name!r} is {field.type} in {origin}, and {dtype} in {other_origin}"
    for name in second.names:
        if name not in first.names:
            yield f"{other_origin} has {name!r}, and {origin} has not"
