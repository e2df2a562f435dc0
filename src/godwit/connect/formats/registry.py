"""Schemas by their ids: the framing of a schema registry, and the registry itself.

A framed message begins with a zero byte and the id of its schema in four bytes.  The
schema of an id never changes, so a process looks up each id once.
"""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any, Final

from godwit.connect.formats.text_values import load_json
from godwit.model.errors import InvalidFlowError, SourceError
from godwit.model.secrets import Secrets, shown_uri

FRAME_BYTES: Final = 5
"""Bytes of a message before its payload."""

_TIMEOUT_S: Final = 10.0
_UNKNOWN_S: Final = 10.0  # between two requests for a schema that the registry does not have
_MAX_UNKNOWN: Final = 10_000
_MEDIA: Final = "application/vnd.schemaregistry.v1+json"


def frame_header(schema_id: int) -> bytes:
    """Return the bytes before a message's payload: a zero byte and the id of the schema."""
    return b"\0" + schema_id.to_bytes(4, "big")


def parse_frame(message: bytes) -> tuple[int, int]:
    """Return a framed message's schema id and the offset after it; raise if it is not framed."""
    if len(message) < FRAME_BYTES or message[0] != 0:
        msg = "it does not begin with the framing of a schema registry, a zero byte and an id"
        raise ValueError(msg)
    return int.from_bytes(message[1:FRAME_BYTES], "big"), FRAME_BYTES


class Schemas:
    """Schemas by their ids: those of a registry, or given ones; picklable.

    `registry`: URL, or id → schema as text. Raises `InvalidFlowError` if it is not a URL.
    """

    def __init__(self, registry: str | dict[int, str]) -> None:
        if isinstance(registry, str):
            check_url(registry)
            Secrets.of_uri(registry)  # so that no error, event or log shows them
        self._registry = registry

    def text(self, schema_id: int) -> str:
        """Return the schema `schema_id` as JSON text, cached; raise if there is none."""
        if isinstance(self._registry, str):
            return schema_of_id(self._registry, schema_id)
        if schema_id not in self._registry:
            msg = f"its schema has id {schema_id}, but registry= has only {sorted(self._registry)}"
            raise ValueError(msg)
        return self._registry[schema_id]

    def id_of(self, text: str, subject: str | None) -> int:
        """Return the id of the schema to write, cached; raise if there is none.

        `subject`: under which it is registered.
        """
        if isinstance(self._registry, str):
            if subject is None:
                raise SourceError(
                    "The Avro format writes messages with a registry, but has no subject=.",
                    remedy=(
                        "Give the subject that the schema is registered under, such as "
                        '"flights-value".'
                    ),
                )
            return registered_id(self._registry, subject, text)
        same = [i for i, s in self._registry.items() if s == text]
        if not same:
            raise SourceError(
                "The Avro format writes messages, but registry= has no id for their schema.",
                remedy="Add it: registry={7: schema}.",
            )
        return max(same)


def check_url(registry: str) -> None:
    """Raise `InvalidFlowError` unless a text is the URL of a registry."""
    try:
        parts = urllib.parse.urlsplit(registry)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidFlowError(
            "The Avro format has a registry= that is not a URL.",
            remedy='Give "https://host:port", or a mapping of ids to schemas.',
        )


def schema_text(schema: object) -> str:
    """Return a schema, given as JSON text or a mapping, as JSON text."""
    if isinstance(schema, str):
        return json.dumps(load_json(schema))
    return json.dumps(schema)


class UnknownSchemaError(LookupError):
    """The registry has no schema with that id, so the message cannot be read."""


# registry and id → when it was asked in vain, and why
_unknown: dict[tuple[str, int], tuple[float, UnknownSchemaError]] = {}


def schema_of_id(registry: str, schema_id: int) -> str:
    """Return the text of the schema with an id, requested from a registry.

    A schema that refers to others comes with them, as an object of ``references`` and ``schema``.
    Raises `UnknownSchemaError` if the registry does not have it, for some seconds without another
    request. Raises `SourceError` if the registry does not answer.
    """
    key = (registry, schema_id)
    asked_s, why = _unknown.get(key, (-math.inf, None))
    if why is not None and time.monotonic() - asked_s < _UNKNOWN_S:
        raise why.with_traceback(None)
    try:
        return _schema_of_id(registry, schema_id)
    except UnknownSchemaError as error:
        if len(_unknown) > _MAX_UNKNOWN:
            _unknown.clear()
        _unknown[key] = (time.monotonic(), error)
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _registry_error(registry, f"schemas/ids/{schema_id}", repr(error)) from None


@lru_cache(maxsize=4096)
def _schema_of_id(registry: str, schema_id: int) -> str:
    """Return the text of a schema, requested from a registry once."""
    try:
        answer = _request_json(registry, f"schemas/ids/{schema_id}", None)
    except _NotFoundError:
        raise UnknownSchemaError(
            f"its schema has id {schema_id}, which the registry {shown_uri(registry)} does not have"
        ) from None
    if answer.get("schemaType", "AVRO") != "AVRO":
        raise UnknownSchemaError(
            f"its schema has id {schema_id}, which is of type {answer['schemaType']}"
        )
    needed: dict[tuple[str, int], str] = {}
    _add_references(registry, answer, needed)
    if not needed:
        return str(answer["schema"])
    return json.dumps({"references": [*needed.values()], "schema": answer["schema"]})


def _add_references(
    registry: str, answer: dict[str, Any], schemas: dict[tuple[str, int], str]
) -> None:
    """Add the schemas that a schema refers to, each after those that it refers to itself.

    `answer`: the registry's, about the schema. `schemas`: subject and version → text, added to.
    """
    for reference in answer.get("references") or ():
        key = (str(reference["subject"]), int(reference["version"]))
        if key not in schemas:
            subject = urllib.parse.quote(key[0], safe="")
            referenced = _request_json(registry, f"subjects/{subject}/versions/{key[1]}", None)
            _add_references(registry, referenced, schemas)
            schemas[key] = str(referenced["schema"])


class _NotFoundError(SourceError):
    """The registry answers that it does not have a schema or subject."""


@lru_cache(maxsize=256)
def registered_id(registry: str, subject: str, schema: str) -> int:
    """Return the id of a schema under a subject, requested from a registry."""
    path = f"subjects/{urllib.parse.quote(subject, safe='')}"
    return int(_request_json(registry, path, {"schema": schema})["id"])


def _request_json(registry: str, path: str, body: dict[str, str] | None) -> Any:
    """Send a request to the registry; return its answer, decoded from JSON.

    `path`: of the request. `body`: JSON object to post; ``None``: a GET request.
    """
    secrets = Secrets.of_uri(registry)
    parts = urllib.parse.urlsplit(registry)
    host = parts.hostname or ""
    host_and_port = f"{host}:{parts.port}" if parts.port else host
    url = urllib.parse.urlunsplit(
        (parts.scheme, host_and_port, parts.path.rstrip("/") + "/" + path, "", "")
    )
    opener = urllib.request.build_opener()
    request = urllib.request.Request(  # noqa: S310  the scheme is checked where it is given
        url, None if body is None else json.dumps(body).encode(), {"Accept": _MEDIA}
    )
    if body is not None:
        request.add_header("Content-Type", _MEDIA)
    if parts.username is not None:
        import base64  # noqa: PLC0415

        credentials = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_header(
            "Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}"
        )
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            reason = secrets.hide(error.read(500).decode(errors="replace"))
        kind = (
            _NotFoundError if error.code == 404 and _names_what_is_missing(reason) else SourceError
        )
        raise _registry_error(registry, path, f"{error.code} {reason}", kind) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _registry_error(registry, path, secrets.hide(str(error))) from None


def _names_what_is_missing(answer: str) -> bool:
    """Return whether "not found" refers to a schema, and not to the path, as with a wrong URL."""
    try:
        parsed = load_json(answer)
    except ValueError:
        return False
    return isinstance(parsed, dict) and parsed.get("error_code") != 404


def _registry_error(
    registry: str, path: str, why: str, kind: type[SourceError] = SourceError
) -> SourceError:
    """Build the error that a request to the registry failed; `why`: in words."""
    return kind(
        f"The schema registry {shown_uri(registry)} does not answer for {path}: {why}.",
        remedy="Check its URL and credentials, and that the schema is registered.",
        registry=shown_uri(registry),
    )
