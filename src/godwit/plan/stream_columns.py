"""Columns of streams: of sources as Spark says, of operators as bound, of both after their maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.columns.types import plain_schema
from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.model.naming import check_column_names, error_line, function_name, listing
from godwit.plan.maps import ArrowMap, bind_map
from godwit.plan.nodes import Branch, MapNode, SourceNode, StreamNode, UnionNode, branches_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.operators.operator import KeyedOperator

__all__ = ["Resolver", "Retimed", "StreamColumns", "never_retimed"]

DataFrameMaps: TypeAlias = tuple[Callable[[Any], Any], ...]

Resolver: TypeAlias = Callable[[str, DataFrameMaps], pa.Schema]
"""``resolve(source name, maps)`` returns the Arrow schema of the source after its maps."""

Retimed: TypeAlias = Callable[[str, DataFrameMaps, str], int]
"""``retimed(source name, maps, column)`` counts the maps up to the last that computed the column
anew."""


def never_retimed(_source: str, _maps: DataFrameMaps, _column: str) -> int:
    """Count no map as one that computes the event time anew."""
    return 0


class StreamColumns:
    """Columns of the streams of one flow; operators are added as they are bound."""

    def __init__(self, operators: Mapping[str, KeyedOperator], resolve: Resolver) -> None:
        self._operators, self._resolve = operators, resolve
        self._maps: dict[tuple[str, tuple[MapNode, ...]], ArrowMap] = {}
        self.of_sources: dict[tuple[str, DataFrameMaps], pa.Schema] = {}

    def of(self, node: StreamNode) -> tuple[pa.Schema, str]:
        """Return the columns of a stream, and a description of the stream for messages."""
        self._insist_on_alike(node)
        found = [self._of_branch(branch) for branch in branches_of(node)]
        schema, _ = found[0]
        return schema, " and ".join(dict.fromkeys(origin for _, origin in found))

    def _insist_on_alike(self, node: StreamNode) -> None:
        """Refuse a union of streams whose columns differ, here or further up."""
        while isinstance(node, MapNode):
            node = node.upstream
        if isinstance(node, UnionNode):
            first, *others = (self.of(upstream) for upstream in node.upstreams)
            for other in others:
                _insist_on_same_columns(first, other)

    def _of_branch(self, branch: Branch) -> tuple[pa.Schema, str]:
        """Return the columns of one branch, and a description of it for messages."""
        feed = branch.feed
        if isinstance(feed, SourceNode):
            names = ", ".join(repr(function_name(m.function)) for m in branch.maps)
            origin = f"source {feed.name!r}" + (f" (after its maps {names})" if names else "")
            maps = tuple(m.function for m in branch.maps)
            return self._of_source(feed, maps, origin), origin
        bound = self.arrow_maps(branch)
        if not bound:
            return plain_schema(self._operators[feed.name].output), f"operator {feed.name!r}"
        return bound[-1].schema, f"map {bound[-1].name!r} after operator {feed.name!r}"

    def arrow_maps(self, branch: Branch) -> tuple[ArrowMap, ...]:
        """Bind the maps from an operator to a stream; one on the way to several is one object."""
        bound: list[ArrowMap] = []
        schema = plain_schema(self._operators[branch.feed.name].output)
        for number, m in enumerate(branch.maps, 1):
            at = branch.feed.name, branch.maps[:number]
            if at not in self._maps:
                self._maps[at] = bind_map(
                    m.function, operator=branch.feed.name, inputs=schema, schema=m.schema
                )
            bound.append(self._maps[at])
            schema = bound[-1].schema
        return tuple(bound)

    def _of_source(self, feed: SourceNode, maps: DataFrameMaps, origin: str) -> pa.Schema:
        """Return the columns of a source after maps; asks Spark once for each chain of maps."""
        if (feed.name, maps) in self.of_sources:
            return self.of_sources[feed.name, maps]
        try:
            schema = self._resolve(feed.name, maps)
        except GodwitError:
            raise
        except Exception as error:
            raise InvalidFlowError(
                f"The columns of {origin} cannot be found: {error_line(error)}.",
                remedy="Correct the maps: each gets a DataFrame and returns one."
                if maps
                else "Check the DataFrame that the source was given.",
                source=feed.name,
            ) from error
        check_column_names(schema.names, origin[0].upper() + origin[1:])
        return self.of_sources.setdefault((feed.name, maps), plain_schema(schema))


def _insist_on_same_columns(one: tuple[pa.Schema, str], other: tuple[pa.Schema, str]) -> None:
    """Refuse streams (columns, and what to call each) that differ in name, type or order."""
    (first, here), (second, there) = one, other
    found = list(_differences(first, here, second, there))
    if not found and first.names != second.names:
        orders = f"{listing(first.names)} in {here}, and {listing(second.names)} in {there}"
        found = [f"they are in the order {orders}"]
    if found:
        raise InvalidFlowError(
            f"The columns of two streams that are united differ: {'; '.join(found)}.",
            remedy="Give both the same columns, of the same types and in the same order, in a map "
            "before union(...), as in stream.map(lambda df: df.select(...)).",
            differences=found,
        )


def _differences(first: pa.Schema, here: str, second: pa.Schema, there: str) -> Iterator[str]:
    """Yield every difference of names and types between two streams."""
    for field in first:
        if field.name not in second.names:
            yield f"{here} has {field.name!r}, and {there} has not"
        elif (dtype := second.field(field.name).type) != field.type:
            yield f"{field.name!r} is {field.type} in {here}, and {dtype} in {there}"
    for name in second.names:
        if name not in first.names:
            yield f"{there} has {name!r}, and {here} has not"
