"""What a sink is told in confidence, kept out of everything that people and logs read.

Passwords come inside connection strings and URIs, and the libraries that read those repeat them
when they fail.  What is said about a target therefore goes through `Secrets.hide`, and an error of
a library becomes the cause of ours only if nothing had to be hidden in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HIDDEN", "Secrets", "shown_uri"]

HIDDEN: Final = "***"

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
    """Texts that must not be shown.

    Attributes
    ----------
    whole
        Connection strings and URIs as they were given, and how to show each.
    parts
        Passwords and the like, as they were given and decoded.
    """

    whole: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()

    @classmethod
    def of_uri(cls, uri: str) -> Self:
        """Find what is confidential in a URI; a plain path has nothing."""
        shown = shown_uri(uri)
        if shown == uri:
            return cls()
        user, query = _confidential_parts(uri)
        parts = [part for text in user for part in (text, *re.split(r"[:@/?#]", text))]
        return cls(((uri, shown),), _each_once([*parts, *query]))

    @classmethod
    def of_values(cls, values: Mapping[str, object]) -> Self:
        """Take the values whose names say that they are confidential."""
        return cls((), _each_once(str(v) for name, v in values.items() if _is_confidential(name)))

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets(self.whole + other.whole, self.parts + other.parts)

    def hide(self, text: str) -> str:
        """Put `HIDDEN` in place of everything confidential."""
        for given, shown in self.whole:
            text = text.replace(given, shown)
        for part in sorted(self.parts, key=len, reverse=True):
            # As a word: letters of other words tell nobody anything.
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", HIDDEN, text)
        return text

    def cause(self, error: BaseException) -> BaseException | None:
        """Return `error` if it may be shown as the cause of another one, else ``None``."""
        told: BaseException | None = error
        while told is not None:
            if self.hide(str(told)) != str(told):
                return None
            told = told.__cause__ or told.__context__
        return error


def shown_uri(uri: str) -> str:
    """Return a URI without what comes before its ``@`` and without confidential parameters.

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
    start, at = match.end(), _end_of_user(uri, match.end())
    shown = uri[:start] + (HIDDEN + uri[at:] if at > start else uri[start:])
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
    """Position of the ``@`` that ends user and password, or `start` if there are none.

    A password may hold what should have been written as ``%XX``. So once something looks like a
    password, the last ``@`` ends it.
    """
    first = re.split(r"[/?#]", uri[start:], maxsplit=1)[0]
    if "@" not in first and ":" not in first:
        return start
    return max(uri.rfind("@"), start)


def _confidential_parts(uri: str) -> tuple[list[str], list[str]]:
    match = _SCHEME.match(uri)
    assert match is not None
    start = match.end()
    at = _end_of_user(uri, start)
    user = uri[start:at]
    password = user.partition(":")[2]
    query = uri[at:].partition("?")[2]
    fields = (field.partition("=") for field in query.split("&"))
    values = [
        value if equals else name
        for name, equals, value in fields
        if not equals or name.lower() not in _HARMLESS
    ]
    return [password, unquote(password)], [*values, *map(unquote, values)]


def _is_confidential(name: str) -> bool:
    return _CONFIDENTIAL.search(name) is not None


def _each_once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
