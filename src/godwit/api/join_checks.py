"""What is checked in the line that joins two streams."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, is_one_of, listing, type_name
from godwit.model.time_lengths import signed_microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.api.keyed_stream import KeyedStream

__all__ = ["check_how", "check_other", "check_suffix", "interval_of"]


def check_other(keyed: KeyedStream, other: Any, where: str) -> None:
    """Refuse what is no keyed stream of the same flow."""
    if not isinstance(other, type(keyed)):
        raise InvalidFlowError(
            f"{where} was given a value of type {type_name(other)}, not a keyed stream.",
            remedy='Key the other stream too, as in orders.key_by("id").join('
            'payments.key_by("order"), ...); a table that does not stream is joined in a map.',
        )
    if other.flow is not keyed.flow:
        raise InvalidFlowError(
            f"{where} of flow {keyed.flow.name!r} was given a stream of another flow, "
            f"{other.flow.name!r}.",
            remedy="Build both streams from sources of one flow.",
            flow=keyed.flow.name,
        )


def check_how(how: object, known: Sequence[str], where: str) -> None:
    """Refuse a kind of join that there is not."""
    if not is_one_of(how, known):
        raise InvalidFlowError(
            f"{where} has how={how!r}.",
            remedy=f"{did_you_mean(str(how), known)}Give {listing(known)}.",
        )


def check_suffix(suffix: object, where: str) -> None:
    """Refuse a suffix that would tell no names apart."""
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise InvalidFlowError(
            f"{where} has suffix={suffix!r}.",
            remedy='Give a text, as in suffix="_right", or leave it out.',
        )


def interval_of(between: Any, where: str) -> tuple[int, int]:
    """Read the bounds of an interval, in microseconds."""
    bounds = between if isinstance(between, tuple | list) else ()
    if len(bounds) != 2 or not all(isinstance(bound, str | dt.timedelta) for bound in bounds):
        raise InvalidFlowError(
            f"{where} has between={between!r}.",
            remedy="Give how long after a row of the left one of the right happens, at least and "
            'at most, as in between=("-10 minutes", "1 hour").',
        )
    earliest, latest = (signed_microseconds(b, f"A bound of {where}") for b in bounds)
    if earliest > latest:
        raise InvalidFlowError(
            f"{where} has between={between!r}, which ends before it begins.",
            remedy="Give the earlier bound first.",
        )
    return earliest, latest
