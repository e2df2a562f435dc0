"""Log records as lines of JSON, with the query, epoch and phase in which they were written.

The context is of the thread (a context variable), so that any code that logs within an epoch, also
a user's function, is told apart. `log_as_json` is for programs that Godwit starts or that ask for
it: the log of a program is its own.

Keys of a line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``pid``, ``thread``;
``query``, ``epoch``, ``phase`` and ``lane`` where they are known; ``event`` (kind and fields) of an
event; ``error`` (``type``, ``message``, ``traceback``) of an exception.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import InvalidFlowError
from godwit.model.secrets import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLE: Final = "GODWIT_LOG"
"""Environment variable with the format of the log: ``json``, or nothing."""
FORMATS: Final = ("json",)
_CONTEXT: ContextVar[Mapping[str, Any]] = ContextVar("godwit_log", default={})  # noqa: B039  read only
_logger = logging.getLogger("godwit")
_only_query: Callable[[], str | None] = lambda: None  # noqa: E731


def name_queries(only_query: Callable[[], str | None]) -> None:
    """Set what returns the name of the query of this process, if it has exactly one."""
    global _only_query
    _only_query = only_query


@contextmanager
def log_context(**keys: Any) -> Iterator[None]:
    """Context in which lines of this thread have these keys."""
    token = _CONTEXT.set({**_CONTEXT.get(), **keys})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def add_to_log_context(**keys: Any) -> None:
    """Let all later lines of this thread have these keys."""
    _CONTEXT.set({**_CONTEXT.get(), **keys})


class LogLine(logging.Formatter):
    """Formats a record as one line of JSON.

    Examples
    --------
    >>> record = logging.LogRecord("godwit", logging.WARNING, "", 0, "%d rows", (3,), None)
    >>> with log_context(query="delays", epoch=7):
    ...     line = json.loads(LogLine().format(record))
    >>> line["message"], line["query"], line["epoch"]
    ('3 rows', 'delays', 7)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        time = datetime.fromtimestamp(record.created, UTC)
        values: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": hidden(record.getMessage()),
            "pid": record.process,
            "thread": record.threadName,
        }
        context = _CONTEXT.get()
        if "query" not in context and (query := _only_query()) is not None:
            values["query"] = query
        values.update(context)
        if (event := getattr(record, "event", None)) is not None:
            values["event"] = event
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            stack = record.exc_text or "".join(traceback.format_exception(error))
            values["error"] = {
                "type": type(error).__name__,
                "message": hidden(_error_text(error)),
                "traceback": hidden(stack.rstrip("\n")),
            }
        return json.dumps(values, default=str)


def _error_text(error: BaseException) -> str:
    """Return the text of an error; empty if it has none."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  an error of the user's may raise where it is shown
        return ""


def chosen_format(setting: str | None = None) -> str | None:
    """Return the format of the log: the setting, else that of the environment; ``None``: as it is.

    Raises `InvalidFlowError` if there is no such format.
    """
    name = setting if setting is not None else os.environ.get(VARIABLE) or None
    if name is not None and name not in FORMATS:
        where = "setting log of observability" if setting is not None else f"variable {VARIABLE}"
        raise InvalidFlowError(
            f"The {where} is {name!r}.",
            remedy="Give 'json', or leave it out.",
        )
    return name


def log_as(name: str | None) -> None:
    """Log in a format from now on; ``None``: no-op. Idempotent.

    Handlers that the program has set get the format; without any, lines go to standard error.
    Warnings and exceptions that end a thread are logged too.
    """
    root = logging.getLogger()
    if name is None or any(isinstance(handler.formatter, LogLine) for handler in root.handlers):
        return
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        handler.setFormatter(LogLine())
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _log_uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_uncaught_of_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, stack: Any) -> None:
    """Log an exception that ends the program; one that only asks for the end as usual."""
    if issubclass(kind, Exception):
        line = _error_text(error).partition("\n")[0]
        _logger.critical("%s: %s", kind.__name__, line, exc_info=(kind, error, stack))
    else:
        sys.__excepthook__(kind, error, stack)


def _log_uncaught_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Log an exception that ends a thread."""
    if ended.exc_value is not None and isinstance(ended.exc_value, Exception):
        _log_uncaught(ended.exc_type, ended.exc_value, ended.exc_traceback)
