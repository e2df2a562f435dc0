"""Whether old state fits a flow: everything that differs, said one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from godwit.state.records import FlowIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["differences"]


def differences(stored: FlowIdentity, given: FlowIdentity) -> Iterator[str]:
    """Say in what way the flow that is given differs from the one that was stored, if in any."""
    # What is given goes through the codec too, so that a tuple equals the list it is stored as.
    given = msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=FlowIdentity)
    if stored.name != given.name:
        yield f"it belongs to flow {stored.name!r}, not {given.name!r}"
    if stored.num_key_groups != given.num_key_groups:
        yield (
            f"it has {stored.num_key_groups} key groups, not {given.num_key_groups} (the number "
            f"is fixed at first launch)"
        )
    if stored.query_id and given.query_id and stored.query_id != given.query_id:
        yield (
            f"it belongs to Spark's query {stored.query_id}, not {given.query_id}, so Spark's "
            f"progress and this state are not of one piece"
        )
    for name in sorted({*stored.operators, *given.operators}):
        if name not in given.operators:
            yield f"operator {name!r} was removed"
        elif name not in stored.operators:
            yield f"operator {name!r} was added"
        else:
            where = f"operator {name!r}: "
            yield from _changes(where, (), stored.operators[name], given.operators[name])


def _changes(
    where: str, path: tuple[str, ...], old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[str]:
    for field in sorted({*old, *new}, key=str):
        here = (*path, str(field))
        name = ".".join(here)
        if field not in new:
            yield f"{where}{name} was {old[field]!r} and is gone"
        elif field not in old:
            yield f"{where}{name} is new, as {new[field]!r}"
        elif isinstance(old[field], dict) and isinstance(new[field], dict):
            yield from _changes(where, here, old[field], new[field])
        elif old[field] != new[field]:
            yield f"{where}{name} was {old[field]!r} and is {new[field]!r}"
