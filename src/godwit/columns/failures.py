"""Failures of Arrow on users' values, as errors that name whose values they are.

Arrow raises where a value does not fit, with words of its own.  Every step of an epoch that
computes on rows runs within `naming`, so a user reads which operator, result or sink it was.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILURES: Final = (pa.ArrowException, ArithmeticError, UnicodeError)
"""Errors of Arrow and Python on a value that they cannot compute with."""


@contextmanager
def naming(what: str, **context: str) -> Iterator[None]:
    """Context in which failures on values become an `EpochFailedError` about `what`.

    `context`: fields of the error.
    """
    try:
        yield
    except MemoryError:
        raise
    except FAILURES as error:
        raise failed(what, error, **context) from error


def failed(what: str, error: BaseException, *, row: str = "", **context: str) -> EpochFailedError:
    """Return the error that `what` cannot compute with a value; `row`: the values, as text."""
    return EpochFailedError(
        f"{what} cannot compute with a value of this epoch"
        f"{f' ({row})' if row else ''}: {str(error).rstrip('.')}.",
        remedy="Leave such rows out in an earlier map, or cast the column to a type that has room.",
        error=type(error).__name__,
        **context,
    )
