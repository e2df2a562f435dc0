"""Errors of epochs, shortened to the lines that say what failed.

Problem: an error of a Spark job has the Java stacks of driver and executor: hundreds of lines, of
which one matters.
"""

from __future__ import annotations

import re

from godwit.model import errors
from godwit.model.errors import EpochFailedError, GodwitError

_STACK = re.compile(r"\n\s+at [\w.$/]+\(")
_PREAMBLES = (
    # Of the driver, around what the executor said.
    re.compile(
        r"^.*?most recent failure: (?:Lost|Killed) task \S+ in stage \S+ \(.*?\)"
        r"(?: \(.*?\))?: ",
        re.DOTALL,
    ),
    re.compile(r"^An error occurred while calling \S+\n: "),
    re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL),
    re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): "),
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = "\ngodwit.model.errors."
"""Beginning of the last line of a traceback whose error is one of ours."""
_REMEDY = (
    "Nothing of the unfinished epoch was committed; start the flow again from its checkpoint once "
    "the cause is gone."
)
_CRASHED = "Python worker exited unexpectedly"


def short_message(error: BaseException) -> str:
    """Return an error's message without Java stacks and Spark's wrapping."""
    text = str(error)
    text = text[: stack.start()] if (stack := _STACK.search(text)) else text
    for preamble in _PREAMBLES:
        text = preamble.sub("", text, count=1)
    return text.strip() or repr(error)


def parse_traceback(text: str) -> GodwitError | None:
    """Return the `GodwitError` in the text of an executor's Python traceback; ``None`` if none."""
    traceback, separator, raised = text.rpartition(_RAISED)
    name, _, message = raised.partition(": ")
    kind = getattr(errors, name, None)
    if not separator or kind is None or _TRACEBACK not in traceback:
        return None
    raised_by: GodwitError = kind(message.strip(), details=text)
    return raised_by


def epoch_failed(flow: str, cause: BaseException) -> GodwitError:
    """Return an `EpochFailedError` for a foreign error; ``details`` has its full text."""
    message = short_message(cause)
    if (own_error := parse_traceback(message)) is not None:
        return own_error
    if _CRASHED in message:
        return EpochFailedError(
            f"Flow {flow!r} failed: a Python process of an executor ended in the middle of an "
            "epoch.",
            remedy=f"A function that ends its process (os._exit), a crash in a library, or too "
            f"little memory (spark.executor.memoryOverhead) does that. {_REMEDY}",
            details=str(cause),
        )
    kind = type(cause).__name__
    kind_text = "" if kind.startswith("Py4J") else f"{kind}: "
    return EpochFailedError(
        f"Flow {flow!r} failed: {kind_text}{message}{'' if message.endswith('.') else '.'}",
        remedy=_REMEDY,
        details=str(cause),
    )
