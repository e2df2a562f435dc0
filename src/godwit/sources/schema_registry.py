"""Schemas by their ids: the framing of a schema registry, and the registry itself.

A framed message begins with a zero byte and the id of its schema in four bytes.  What an id stands
for never changes, so what was looked up is kept for as long as the process lives.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any, Final

from godwit.model.errors import SourceError
from godwit.model.secrets import Secrets, shown_uri

_TIMEOUT_S: Final = 10.0
_MEDIA: Final = "application/vnd.schemaregistry.v1+json"


def frame_header(schema_id: int) -> bytes:
    """Return the bytes before a message's payload: a zero byte and the id of the schema."""
    return b"\0" + schema_id.to_bytes(4, "big")


def parse_frame(message: bytes) -> tuple[int, int]:
    """Return a framed message's schema id, and the offset of what follows; raise if not framed."""
    if len(message) < 5 or message[0] != 0:
        msg = "it does not begin with the framing of a schema registry, a zero byte and an id"
        raise ValueError(msg)
    return int.from_bytes(message[1:5], "big"), 5


def schema_text(schema: object) -> str:
    """Return a schema, given as JSON text or a mapping, as JSON text."""
    if isinstance(schema, str):
        return json.dumps(json.loads(schema))
    return json.dumps(schema)


@lru_cache(maxsize=4096)
def schema_of_id(registry: str, schema_id: int) -> str:
    """Return the text of the schema with an id, requested from a registry."""
    answer = _request(registry, f"schemas/ids/{schema_id}", None)
    return str(answer["schema"])


@lru_cache(maxsize=256)
def registered_id(registry: str, subject: str, schema: str) -> int:
    """Return the id of a schema under a subject, requested from a registry."""
    path = f"subjects/{urllib.parse.quote(subject, safe='')}"
    return int(_request(registry, path, {"schema": schema})["id"])


def _request(registry: str, path: str, body: dict[str, str] | None) -> Any:
    """Send a request to the registry; return its answer, decoded from JSON.

    `path`: of the request. `body`: JSON object to post; ``None``: a GET request.
    """
    secrets = Secrets.of_uri(registry)
    parts = urllib.parse.urlsplit(registry)
    host = parts.hostname or ""
    place = f"{host}:{parts.port}" if parts.port else host
    url = urllib.parse.urlunsplit(
        (parts.scheme, place, parts.path.rstrip("/") + "/" + path, "", "")
    )
    opener = urllib.request.build_opener()
    request = urllib.request.Request(  # noqa: S310  the scheme is checked where it is given
        url, None if body is None else json.dumps(body).encode(), {"Accept": _MEDIA}
    )
    if body is not None:
        request.add_header("Content-Type", _MEDIA)
    if parts.username is not None:
        import base64  # noqa: PLC0415

        user = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            told = secrets.hide(error.read(500).decode(errors="replace"))
        raise _registry_error(registry, path, f"{error.code} {told}") from None
    except (OSError, ValueError) as error:
        raise _registry_error(registry, path, secrets.hide(str(error))) from None


def _registry_error(registry: str, path: str, why: str) -> SourceError:
    """Build the error that a request to the registry failed; `why`: in words."""
    return SourceError(
        f"The schema registry {shown_uri(registry)} does not answer for {path}: {why}.",
        remedy="Check its URL and credentials, and that the schema is registered.",
        registry=shown_uri(registry),
    )
