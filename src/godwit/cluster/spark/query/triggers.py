"""When epochs run: the keyword arguments of ``DataStreamWriter.trigger``, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing, type_name

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Trigger", "checked_trigger"]


class Trigger(TypedDict, total=False):
    """One of the triggers of Spark's micro-batches.

    Attributes
    ----------
    availableNow
        ``True``: as many epochs as there is input for now, then the query ends.
    processingTime
        An epoch every so often, such as ``"1 second"``.
    once
        ``True``: one epoch of all there is, then the query ends.
    """

    availableNow: bool
    processingTime: str
    once: bool


_EXAMPLE = 'Give {"availableNow": True} or {"processingTime": "1 second"}, or leave trigger out.'
_KINDS = ("availableNow", "processingTime", "once")
_NOT_HERE = {"continuous": "continuous processing", "realTime": "real-time mode"}


def checked_trigger(trigger: Any) -> Trigger | None:
    """Return `trigger` if it is one.

    How long an interval is, is for Spark to read.

    Raises
    ------
    InvalidFlowError
        If it is no mapping, not exactly one trigger, one that does not exist, or its value cannot
        be right.
    """
    if trigger is None:
        return None
    if isinstance(trigger, str):
        name, value = ("processingTime", f'"{trigger}"')
        if did_you_mean(trigger, _KINDS):
            name, value = ("availableNow", "True")
        raise InvalidFlowError(
            f"The trigger of start is the text {trigger!r}.",
            remedy=f'Say which trigger it is, as in trigger={{"{name}": {value}}}.',
        )
    if not isinstance(trigger, Mapping):
        raise InvalidFlowError(
            f"The trigger of start is of type {type_name(trigger)}.", remedy=_EXAMPLE
        )
    for name in trigger:
        if name in _NOT_HERE:
            raise InvalidFlowError(
                f"The trigger {name!r} of start asks for {_NOT_HERE[name]}.",
                remedy=f"An epoch is a micro-batch: {_EXAMPLE[0].lower()}{_EXAMPLE[1:]}",
            )
        if name not in _KINDS:
            raise InvalidFlowError(
                f"There is no trigger {name!r}.",
                remedy=f"{did_you_mean(str(name), _KINDS)}Triggers are {listing(_KINDS)}.",
            )
    if len(trigger) != 1:
        raise InvalidFlowError(
            f"start was given {len(trigger)} triggers: {listing(list(trigger)) or 'none'}.",
            remedy=_EXAMPLE,
        )
    ((name, value),) = trigger.items()
    if name == "processingTime":
        if not isinstance(value, str):
            raise InvalidFlowError(
                f"The trigger processingTime of start is {value!r}, of type {type_name(value)}.",
                remedy='Give an interval as text, as in {"processingTime": "1 second"}.',
            )
        return {"processingTime": value}
    if value is not True:
        raise InvalidFlowError(
            f"The trigger {name} of start is {value!r}.",
            remedy=f'Give {{"{name}": True}}, or leave trigger out.',
        )
    return {"availableNow": True} if name == "availableNow" else {"once": True}
