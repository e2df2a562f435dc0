"""A user's own fault, as it should be read: with the user's frames alone.

The frames of Godwit and of Spark between the query and the function say nothing to who wrote the
function, so they are left out.
"""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["user_traceback"]

_OURS = str(Path(__file__).parent.parent)


def user_traceback(error: BaseException) -> str:
    """Format a traceback without Godwit's own frames; empty if nothing else raised.

    What led to the exception (``raise ... from``) is in it, treated alike.
    """
    told = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    pending: list[traceback.TracebackException | None] = [told]
    found = False
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
        found = found or bool(frames)
        one.stack = traceback.StackSummary.from_list(frames)
        pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
    return "".join(told.format()) if found else ""
