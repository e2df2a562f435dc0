"""Godwit's errors that can also be caught as PySpark's.

The lines of a program that handle errors stay as they are: ``except StreamingQueryException``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pyspark.errors import PySparkException

from godwit.model.errors import GodwitError


class _SparkError(PySparkException):
    """Methods of PySpark's errors, for an error that is also a Godwit error."""

    condition: str | None
    state: str | None

    def __init__(self, message: str, *, remedy: str = "", **context: Any) -> None:
        GodwitError.__init__(self, message, remedy=remedy, **context)  # type: ignore[arg-type]
        self._errorClass, self._contexts = self.condition, []
        self._messageParameters = {"message": message}

    __str__ = Exception.__str__

    def __reduce__(self) -> tuple[Any, ...]:
        ours: Any = self
        _, plain, spark = type(self).__bases__
        error = plain(ours.message, remedy=ours.remedy, **ours.context)
        return as_spark_error, (error, spark, self.condition, self.state)

    @property
    def _desc(self) -> str:
        """Text of the error and of its causes, as for JVM errors."""
        texts, error = [str(self)], self.__cause__
        while error is not None:
            texts.append(f"{type(error).__name__}: {error}")
            error = error.__cause__
        return "\n".join(texts)

    @property
    def _cause(self) -> None:
        """None: the text has that of the causes."""
        return None

    def getSqlState(self) -> str | None:  # noqa: N802  Spark's name
        """Return the SQLSTATE that Spark's error has."""
        return self.state

    def getMessage(self) -> str:  # noqa: N802  Spark's name
        """Return the text of the error."""
        return str(self)


@cache
def _class_of_both(kind: Any, spark: Any, condition: str | None, state: str | None) -> Any:
    """Return the class of errors of both kinds."""
    named = {"condition": condition, "state": state, "__module__": kind.__module__}
    return type(kind.__name__, (_SparkError, kind, spark), named)


def as_spark_error(
    error: GodwitError,
    spark: type[PySparkException],
    condition: str | None,
    state: str | None = None,
) -> GodwitError:
    """Return an error with the class and text of `error` that is also a PySpark error.

    `condition`, `state`: name and SQLSTATE that PySpark's error has.
    """
    if isinstance(error, spark):
        return error
    kinds: Any = (type(error), spark)
    kind = _class_of_both(*kinds, condition, state)
    both: GodwitError = kind(error.message, remedy=error.remedy, **error.context)
    both.__cause__ = error.__cause__
    return both
