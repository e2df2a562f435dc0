"""Whether a checkpoint is this flow's: everything that differs, said one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.records import FlowIdentity

__all__ = ["differences"]


def differences(stored: FlowIdentity, given: FlowIdentity) -> Iterator[str]:
    """Say in what way the flow that is given differs from the one that was stored, if in any."""
    if stored.name != given.name:
        yield f"it belongs to flow {stored.name!r}, not {given.name!r}"
    if stored.num_key_groups != given.num_key_groups:
        yield (
            f"it has {stored.num_key_groups} key groups, not {given.num_key_groups} (the number "
            f"is fixed at first launch)"
        )
    if stored.query_id and given.query_id and stored.query_id != given.query_id:
        yield (
            f"it belongs to query {stored.query_id}, not {given.query_id}, so Spark's progress "
            f"and this state are not of one piece"
        )
