"""Health checks of the queries of this process, served with the metrics and the live page.

``/livez``: every query makes progress. ``/readyz``: every query has recovered, and is as far as
asked. Both answer 200 or 503, with the figures and the reasons as JSON. Parameters: ``query``
(only that one), ``max_epoch_s`` and ``max_rows_behind`` (see `Query.health`).

They need no token: an answer has the names of queries, and numbers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ANSWERS: Final = {"/livez": "alive", "/readyz": "ready"}
_NUMBERS: Final = {"max_epoch_s": float, "max_rows_behind": int}


def with_health(app: WSGIApplication) -> WSGIApplication:
    """Return a WSGI application that also answers ``/livez`` and ``/readyz``."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        wanted = ANSWERS.get(environ.get("PATH_INFO", ""))
        if wanted is None:
            return app(environ, start_response)
        status, values = _health_answer(wanted, environ.get("QUERY_STRING", ""))
        body = (json.dumps(values) + "\n").encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(status, [*headers, ("Cache-Control", "no-store")])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    return answer


def _health_answer(check_name: str, parameters: str) -> tuple[str, dict[str, Any]]:
    """Return the status of an answer, and its values."""
    from godwit.runtime.query import open_queries  # noqa: PLC0415  not for `godwit ui`

    try:
        arguments = {name: values[-1] for name, values in parse_qs(parameters).items()}
        name = arguments.pop("query", None)
        limits: Any = {key: _NUMBERS[key](value) for key, value in arguments.items()}
    except (KeyError, ValueError):
        known = ", ".join(("query", *_NUMBERS))
        return "400 Bad Request", {"error": f"Known parameters: {known}; limits are numbers."}
    health = {
        query.name: query.health(**limits) for query in open_queries() if name in {None, query.name}
    }
    # Before the first query has started, a process is alive, and not ready.
    is_passed = all(values[check_name] for values in health.values())
    if not health:
        is_passed = check_name == "alive" and name is None
    status = "200 OK" if is_passed else "503 Service Unavailable"
    return status, {check_name: is_passed, "queries": health}
