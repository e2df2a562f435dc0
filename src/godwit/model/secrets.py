"""Secrets, and hiding them in everything that people and logs read.

Passwords come inside connection strings and URIs, and the libraries that read those repeat them
when they fail.  Texts about a location therefore go through `Secrets.hide`, and an error of a
library becomes the cause of ours only if nothing had to be hidden in it.

Beneath that lies a net: `Secrets.of_uri` and `Secrets.of_values` also note what they find for the
whole process, and every error, event, line of the log, entry of the journal and line of the command
line goes through `hidden`.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN: Final = "***"

_MIN_LENGTH: Final = 6
"""Shorter texts are hidden where they were given, and not all over the process."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:?//")
_CONFIDENTIAL: Final = re.compile(
    r"key|secret|token|passw|pwd|passphrase|sas|sig|credential", re.IGNORECASE
)
_HARMLESS: Final = {
    *("region", "scheme", "endpoint_override", "host", "port", "dbname", "user", "sslmode"),
    *("connect_timeout", "application_name", "options", "target_session_attrs"),
}


@dataclass(frozen=True, slots=True)
class Secrets:
    """Texts that must not be shown."""

    # connection strings and URIs as they were given, and how to show each
    whole: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()  # passwords and the like, as they were given and decoded

    @classmethod
    def of_uri(cls, uri: str) -> Self:
        """Return the secrets in a URI, which are hidden in this process from now on."""
        shown = shown_uri(uri)
        if shown == uri:
            return cls()
        user, query = _confidential_parts(uri)
        parts = [part for text in user for part in (text, *re.split(r"[:@/?#]", text))]
        secrets = cls(((uri, shown),), _each_once([*parts, *(value for _, value in query)]))
        confidential_values = (value for name, value in query if _is_confidential(name))
        _hide_from_now_on(secrets.whole, (*parts, *confidential_values))
        return secrets

    @classmethod
    def of_values(cls, values: Mapping[str, object]) -> Self:
        """Return the values with confidential names, which this process hides from now on."""
        secrets = _each_once(str(v) for name, v in values.items() if _is_confidential(name))
        _hide_from_now_on((), secrets)
        return cls((), secrets)

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets(self.whole + other.whole, self.parts + other.parts)

    def hide(self, text: str) -> str:
        """Return a text with these secrets replaced by `HIDDEN`."""
        for location, shown in self.whole:
            text = text.replace(location, shown)
        for part in sorted(self.parts, key=len, reverse=True):
            # Whole words only: letters inside other words reveal nothing.
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", HIDDEN, text)
        return text

    def cause(self, error: BaseException) -> BaseException | None:
        """Return `error` if it contains no secret, and may be shown as a cause; else ``None``."""
        cause: BaseException | None = error
        while cause is not None:
            if self.hide(str(cause)) != str(cause):
                return None
            cause = cause.__cause__ or cause.__context__
        return error


_known = Secrets()
_lock = threading.Lock()


def _hide_from_now_on(whole: tuple[tuple[str, str], ...], parts: tuple[str, ...]) -> None:
    """Hide secrets in this process from now on.

    `whole`: pairs of a URI, and the URI without secrets. `parts`: passwords.
    """
    global _known
    long_parts = (part for part in parts if len(part) >= _MIN_LENGTH)
    with _lock:
        _known = Secrets(
            tuple(dict.fromkeys(_known.whole + whole)), _each_once((*_known.parts, *long_parts))
        )


def hidden(text: str) -> str:
    """Return a text with every secret that this process knows replaced by `HIDDEN`."""
    return _known.hide(text) if _known.parts or _known.whole else text


def hidden_values(value: Any) -> Any:
    """Return a text, or a list, tuple or dict of texts, with the known secrets hidden."""
    if not (_known.parts or _known.whole):
        return value
    if isinstance(value, str):
        return hidden(value)
    if type(value) in {list, tuple}:
        return type(value)(map(hidden_values, value))
    if type(value) is dict:
        return {name: hidden_values(item) for name, item in value.items()}
    return value


def unless_confidential(error: BaseException) -> BaseException | None:
    """Return `error` if it contains no known secret, and may be shown as a cause; else ``None``."""
    return _known.cause(error)


class _HiddenError(Exception):
    """Replacement in a log record for an error whose text has secrets in it."""


class _Hiding(logging.Filter):
    """Logging filter that removes secrets from records, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide the known secrets in a log record and its traceback; return ``True`` to log it."""
        message = record.getMessage()
        if (shown := hidden(message)) != message:
            record.msg, record.args = shown, None
        if record.exc_info and record.exc_text is None:
            stack = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (shown := hidden(stack)) != stack:
                record.exc_text = shown
                # For formatters that look at the error themselves, such as PySpark's.
                stand_in = _HiddenError(hidden(str(record.exc_info[1])))
                record.exc_info = (_HiddenError, stand_in, None)
        return True


logging.getLogger("godwit").addFilter(_Hiding())


def shown_uri(uri: str) -> str:
    """Return a URI without user, password and confidential parameters.

    Examples
    --------
    >>> shown_uri("s3://AKIA:se/cret@bucket/out?region=eu&secret_key=x")
    's3://***@bucket/out?region=eu&secret_key=***'
    >>> shown_uri("out/by@plane")
    'out/by@plane'
    """
    match = _SCHEME.match(uri)
    if match is None:
        return uri
    start, end_of_user = match.end(), _end_of_user(uri, match.end())
    shown = uri[:start] + (HIDDEN + uri[end_of_user:] if end_of_user > start else uri[start:])
    base, mark, query = shown.partition("?")
    if not mark:
        return shown
    fields = []
    for field in query.split("&"):
        name, equals, _ = field.partition("=")
        if not equals:
            fields.append(HIDDEN)
        else:
            fields.append(field if name.lower() in _HARMLESS else f"{name}={HIDDEN}")
    return f"{base}?{'&'.join(fields)}"


def _end_of_user(uri: str, start: int) -> int:
    """Return the position of the ``@`` after user and password in a URI; `start` without these.

    A password may contain characters that should have been written as ``%XX``. So if there seems to
    be a password, the last ``@`` ends it.
    """
    first = re.split(r"[/?#]", uri[start:], maxsplit=1)[0]
    if "@" not in first and ":" not in first:
        return start
    return max(uri.rfind("@"), start)


def _confidential_parts(uri: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the URI's password, as written and decoded, and its parameters as (name, value)."""
    match = _SCHEME.match(uri)
    assert match is not None
    start = match.end()
    end_of_user = _end_of_user(uri, start)
    user = uri[start:end_of_user]
    password = user.partition(":")[2]
    query = uri[end_of_user:].partition("?")[2]
    values = []
    for field in query.split("&"):
        name, equals, value = field.partition("=")
        if not equals:
            values.append(("", name))
        elif name.lower() not in _HARMLESS:
            values += [(name, value), (name, unquote(value))]
    return [password, unquote(password)], values


def _is_confidential(name: str) -> bool:
    """Return whether the name of a parameter says that its value is secret."""
    return _CONFIDENTIAL.search(name) is not None


def _each_once(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts in their order, without duplicates and empty texts."""
    return tuple(dict.fromkeys(text for text in texts if text))
