"""Streams that are united must have the same columns, since one operator reads them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["insist_on_same_columns"]


def insist_on_same_columns(one: tuple[pa.Schema, str], other: tuple[pa.Schema, str]) -> None:
    """Refuse streams whose columns differ in name, type or order.

    Parameters
    ----------
    one, other
        Columns of a stream, and what to call it.

    Raises
    ------
    InvalidFlowError
        Says every difference.
    """
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
    for field in first:
        if field.name not in second.names:
            yield f"{here} has {field.name!r}, and {there} has not"
        elif (dtype := second.field(field.name).type) != field.type:
            yield f"{field.name!r} is {field.type} in {here}, and {dtype} in {there}"
    for name in second.names:
        if name not in first.names:
            yield f"{there} has {name!r}, and {here} has not"
