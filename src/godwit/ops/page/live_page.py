"""The live page of a checkpoint: follows its journal, and serves the page and its changes.

`PageFeed` folds new entries of the journal into a `RunState` on a thread, twice a second, and only
while a reader is connected.  `PageApplication` is the WSGI application: a page of three static
files, a stream of server-sent events, figures of an earlier epoch, the report, and look-ups in the
state of the query whose driver serves the page (`godwit.ops.page.state_answers`).

A reader has no queue: a slow reader gets the newest sections once it has taken the last ones, and
costs a waiting thread.  At the loopback address every request under a name of this machine may read
(so that a page of the web cannot, through a name of its own); at other addresses a request needs
the token.  Paths are looked up in a fixed table; nothing is read from a path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from godwit.checkpoint.journal import JournalReader
from godwit.model.errors import InvalidFlowError
from godwit.ops.entries import text
from godwit.ops.health import with_health
from godwit.ops.liveness import Liveness, QueryLife
from godwit.ops.page.state_answers import (
    CHECKPOINT,
    MAX_PARAMETERS,
    StateAnswer,
    StateAnswers,
    refusal,
)
from godwit.ops.page.stored_state import StoredStates
from godwit.ops.page.view import Series, frame_at, heat_section, now_of, report_of, sections_of
from godwit.ops.run_state import RunState, reduced
from godwit.ops.server import BoundedServer, serving_error
from godwit.ops.shared_ports import join_port, leave_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from wsgiref.types import StartResponse, WSGIEnvironment

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.ops.query_state import QueryState
    from godwit.ops.run_state import Frame

_logger = logging.getLogger("godwit")
_LOOK_S: Final = 0.5
_ALIVE_S: Final = 10.0
"""Max. silence of a stream, within which a disconnected reader is detected."""
_MAX_CONNECTIONS: Final = 32
_MAX_S: Final = 3600.0
"""Max. lifetime of a stream; an open page reconnects."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{12,128}")
_NUMBERED: Final = re.compile(r"/[0-9]{1,6}/")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """State of the page at one time, as shown to readers."""

    version: int = 0
    sections: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)  # section → version of its last change
    texts: Mapping[str, str] = field(default_factory=dict)  # section → as JSON
    series: Series = field(default_factory=lambda: Series((), 1))
    state: RunState = field(default_factory=RunState)
    life: QueryLife = field(default_factory=lambda: QueryLife("reading", ""))


class PageFeed:
    """Follows the journal of one checkpoint while there are readers.

    `flow`: name of the flow. `now_s`, `monotonic_s`: clocks as in `Liveness`.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        flow: str,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flow = text(flow)
        self._reader = JournalReader(storage)
        self._liveness = Liveness(storage, now_s=now_s, monotonic_s=monotonic_s)
        self._changed = threading.Condition()
        self._look_lock = threading.Lock()
        self._published = Published()
        self._heat_map_parts: tuple[Any, Any, Any] = (None, None, None)
        self._num_watchers, self._closed = 0, False
        self._thread: threading.Thread | None = None

    def look(self) -> Published:
        """Read new journal entries, publish what has changed on the page, return the snapshot."""
        with self._look_lock:
            before = self._published
            state = before.state
            try:
                for entries in self._reader.new_entries():
                    for entry in entries:
                        state = reduced(state, entry)
                life = self._liveness.look(state.last_word, state.last_s)
            except Exception as error:  # noqa: BLE001  a store that is away comes back
                life = QueryLife("out of reach", text(getattr(error, "message", error)))
            if state is before.state and life == before.life and before.version:
                return before
            try:
                sections = dict(sections_of(state, flow=self.flow, life=life))
                sections["heat"] = self._heat_of(state.frame, before)
            except Exception:  # those after them may be such as can be shown
                _logger.exception("The live page cannot show the newest entries of the journal.")
                sections = dict(before.sections)
            return self._publish_sections(before, sections, state, life)

    def _heat_of(self, frame: Frame, before: Published) -> Any:
        """Return the heat map; the previous object if it has not changed."""
        drawn = frame.placements, frame.loads, frame.warming
        if all(now is other for now, other in zip(drawn, self._heat_map_parts, strict=True)):
            return before.sections["heat"]
        self._heat_map_parts = drawn
        return heat_section(frame)

    def _publish_sections(
        self, before: Published, sections: dict[str, Any], state: RunState, life: QueryLife
    ) -> Published:
        """Publish parts of the page (name → values) as a snapshot; new versions where changed."""
        version = before.version + 1
        changed, texts = dict(before.changed), dict(before.texts)
        for name, section in sections.items():
            if name not in texts or before.sections[name] != section:
                changed[name], texts[name] = version, json.dumps(section, allow_nan=False)
        published = Published(
            version=version,
            sections=sections,
            changed=changed,
            texts=texts,
            series=Series(state.points, state.step),
            state=state,
            life=life,
        )
        with self._changed:
            self._published = published
            self._changed.notify_all()
        return published

    @property
    def published(self) -> Published:
        """Latest snapshot of the page."""
        return self._published

    def wait(self, version: int, timeout_s: float) -> Published:
        """Wait until there is a snapshot newer than `version`, or time is up; return the latest."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._published.version != version, timeout_s
            )
            return self._published

    @property
    def closed(self) -> bool:
        """True if no further snapshots will be published."""
        return self._closed

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context of one reader; while there are readers, the feed reads the journal."""
        with self._changed:
            self._num_watchers += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow_journal, name="godwit-page-feed", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_watchers -= 1

    def close(self) -> None:
        """End the feed, and the streams of its readers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _follow_journal(self) -> None:
        """Read the journal while there are readers; the body of a thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._num_watchers)
                if self._closed:
                    return
            self.look()
            with self._changed:
                self._changed.wait_for(lambda: self._closed, _LOOK_S)


class PageApplication:
    """The page as a WSGI application.

    `token`: what a reader has to bring; empty: nothing, at a loopback address.
    """

    def __init__(
        self, feed: PageFeed, *, token: str, listing: Callable[[], bytes] = lambda: b""
    ) -> None:
        self._feed, self._token, self._listing = feed, token, listing
        self.states: StateAnswers | None = None  # of the query, once it runs
        self._routes: Mapping[str, Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]] = {
            "/": self._serve_file("page.html", "text/html"),
            "/page.css": self._serve_file("page.css", "text/css"),
            "/page.js": self._serve_file("page.js", "text/javascript"),
            "/feed": self._answer_with_events,
            "/frame": self._answer_with_frame,
            "/report": self._answer_with_report,
            "/list": self._answer_with_list,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") != "GET":
            return _answer_body(
                start_response,
                b"Only GET is answered.\n",
                "text/plain",
                [("Allow", "GET")],
                "405 Method Not Allowed",
            )
        if not self._token and not _is_local(environ.get("HTTP_HOST", "")):
            return _answer_text(
                start_response,
                "403 Forbidden",
                "This page is available only on its own machine, under the name localhost.",
            )
        if self._token:
            given_token = _query_parameter(environ, "token")
            if path == "/" and given_token is not None and self._is_token(given_token):
                # Into a cookie, so that the address that is shown and shared has no secret.
                cookie = (
                    f"{self._cookie_name(environ)}={given_token}; Path=/; HttpOnly; SameSite=Lax"
                )
                base_path = f"{environ.get('SCRIPT_NAME', '')}/"
                start_response(
                    "303 See Other", [("Location", base_path), ("Set-Cookie", cookie), *_HEADERS]
                )
                return []
            if not self._is_token(
                given_token or _bearer_token(environ) or self._token_in_cookie(environ)
            ):
                said = "This page requires its token: open the address that the command printed"
                return _send_answer(
                    start_response,
                    refusal("401 Unauthorized", f"{said}, or send it as a bearer token."),
                )
        if path.startswith("/state/") or path == "/states":
            return _send_answer(start_response, self._answer_of_state(environ))
        route = self._routes.get(path)
        if route is None:
            return _answer_text(start_response, "404 Not Found", "There is no such page.")
        return route(environ, start_response)

    def _answer_of_state(self, environ: WSGIEnvironment) -> StateAnswer:
        """Answer a request for the state of the query."""
        if self.states is None:
            said = (
                "The query of this page has not started, or has ended: try again, or use godwit ui."
            )
            return refusal("503 Service Unavailable", said)
        return self.states.answer(environ)

    # -- who may read -----------------------------------------------------------------------------

    def _is_token(self, text: str) -> bool:
        """Return whether a text is the access token; takes the same time for any text."""
        return hmac.compare_digest(text.encode(), self._token.encode())

    def _cookie_name(self, environ: WSGIEnvironment) -> str:
        """Return the cookie's name, which has the port: cookies are shared by a host's ports."""
        return f"godwit_{environ.get('SERVER_PORT', '')}"

    def _token_in_cookie(self, environ: WSGIEnvironment) -> str:
        """Return the token in the request's cookie; empty if there is none."""
        # Not `SimpleCookie`, which gives up at the first cookie that it cannot parse: pages at
        # other ports of this host send theirs here, too.
        for cookie in environ.get("HTTP_COOKIE", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie_name(environ):
                return str(value)
        return ""

    # -- answers ----------------------------------------------------------------------------------

    def _serve_file(
        self, name: str, kind: str
    ) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
        """Return a WSGI application that answers with a file of the page.

        `kind`: its content type.
        """
        body = asset(name).encode()

        def answer(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            return _answer_body(start_response, body, kind)

        return answer

    def _answer_with_frame(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer with figures and heat map, as JSON, of the epoch in the URL."""
        asked = _query_parameter(environ, "epoch") or ""
        if not (asked.isascii() and asked.isdigit() and len(asked) <= 18):
            return _answer_text(start_response, "400 Bad Request", "Ask for ?epoch=NUMBER.")
        published = self._feed.published
        frame = frame_at((published if published.version else self._feed.look()).state, int(asked))
        body = json.dumps({"now": now_of(frame), "heat": heat_section(frame)}, allow_nan=False)
        return _answer_body(start_response, body.encode(), "application/json")

    def _answer_with_report(
        self, _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer with the page and its data as one HTML file."""
        published = self._feed.look()
        values = report_of(published.state, flow=self._feed.flow, life=published.life)
        headers = [("Content-Disposition", 'attachment; filename="godwit-report.html"')]
        return _answer_body(start_response, report_page(values).encode(), "text/html", headers)

    def _answer_with_list(
        self, _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer with a list of the pages at this port."""
        return _answer_body(start_response, self._listing(), "text/html")

    def _answer_with_events(
        self, _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer with server-sent events: sections as they change, until the reader disconnects."""
        start_response(
            "200 OK",
            [("Content-Type", "text/event-stream; charset=utf-8"), *_security_headers()],
        )
        return self._changed_sections()

    def _changed_sections(self) -> Iterator[bytes]:
        """Yield server-sent events with the sections that the reader does not have yet."""
        version, mark = 0, (-1.0, 0, 0)
        yield b"retry: 2000\n\n"
        with self._feed.watched():
            while not self._feed.closed:
                published = self._feed.wait(version, _ALIVE_S)
                if published.version == version:
                    yield b": nothing new\n\n"
                    continue
                parts = [
                    f"{json.dumps(name)}:{section}"
                    for name, section in published.texts.items()
                    if published.changed[name] > version
                ]
                series = published.series.since(*mark)
                if series is not None:
                    parts.append(f'"series":{json.dumps(series, allow_nan=False)}')
                version, mark = published.version, published.series.mark
                yield f"event: page\ndata: {{{','.join(parts)}}}\n\n".encode()


class PageServer:
    """Serves the live page of a checkpoint until it is closed.

    Raises `InvalidFlowError` if the port is in use, there is no such address, the token will not
    do, or other machines reach it and there is none.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        flow: str,
        host: str,
        port: int,
        token: str = "",
        # of the query, which is one of this process: queries share a port, which tells their health
        query: str = "",
    ) -> None:
        if not token and not is_loopback(host):
            raise InvalidFlowError(
                f"The live page has host {host}, which other machines can reach, but no token.",
                remedy="Omit the host, or give a token.",
                host=host,
            )
        if token and not _TOKEN.fullmatch(token):
            raise InvalidFlowError(
                "The token of the live page does not consist of 12 to 128 letters, digits, '_' "
                "and '-'.",
                remedy="Give one from secrets.token_urlsafe(), or omit it.",
            )
        self._storage, self._feed = storage, PageFeed(storage, flow=flow)

        def open_server(pages: _Pages) -> BoundedServer:
            """Open the port of pages."""
            return BoundedServer(
                with_health(pages) if query else pages,
                host=host,
                port=port,
                name="godwit-page",
                max_connections=_MAX_CONNECTIONS,
                max_s=_MAX_S,
            )

        kind = "pages of queries" if query else f"page {id(self)}"
        try:
            self._port = join_port(kind, host, port, lambda: _Pages(token), open_server)
        except (OSError, UnicodeError) as error:
            raise serving_error("The live page", host, port, error) from error
        self._is_open = True
        pages, server = self._port.parts, self._port.server
        self._application = PageApplication(self._feed, token=pages.token, listing=pages.listing)
        self._path = pages.add(query or flow, self._application, self._feed)
        address = f"{server.url}{self._path}"
        if host in ("", "0.0.0.0", "::"):  # noqa: S104  all addresses: named by the machine's
            address = f"http://{socket.gethostname()}:{server.port}{self._path}"
        self.url = f"{address}?token={pages.token}" if pages.token else address
        self.recorder: None = None

    def answer_states(self, state_of: Callable[..., QueryState]) -> None:
        """Answer requests for the state of a query from now on; `state_of`: its `Query.state`."""
        self._application.states = StateAnswers(state_of)

    def answer_from_checkpoint(self) -> None:
        """Answer requests for the state of the query from now on, from its checkpoint alone."""
        states = StoredStates(self._storage)
        self._application.states = StateAnswers(states.state, states.together, origin=CHECKPOINT)

    def close(self) -> None:
        """End all answers, and close the port, unless another query uses it; idempotent."""
        self._feed.close()
        if self._is_open:
            self._is_open = False
            self._port.parts.remove(self._path)
            leave_port(self._port)
        states, self._application.states = self._application.states, None
        if states is not None:
            states.close()


class _Pages:
    """The pages of the queries that share a port, and a list of them; a WSGI application.

    The first page is at ``/``, others at ``/1/`` and so on, and the list at ``/list``, or at ``/``
    once the query of the first page has ended.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self._changing = threading.Lock()
        self._count = 0
        # path → name of the query, its page, and its feed
        self._pages: dict[str, tuple[str, PageApplication, PageFeed]] = {}

    def add(self, query: str, page: PageApplication, feed: PageFeed) -> str:
        """Add the page of a query; return its path."""
        with self._changing:
            path = f"/{self._count}/" if self._count else "/"
            self._count += 1
            self._pages[path] = (query, page, feed)
            return path

    def remove(self, path: str) -> None:
        """Remove a page."""
        with self._changing:
            self._pages.pop(path, None)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request with the page of its path."""
        with self._changing:
            pages = dict(self._pages)
        path = environ.get("PATH_INFO", "")
        numbered_path = _NUMBERED.match(path)
        if numbered_path is not None and numbered_path[0] in pages:
            environ["SCRIPT_NAME"] = numbered_path[0].rstrip("/")
            environ["PATH_INFO"] = path.removeprefix(environ["SCRIPT_NAME"])
            return pages[numbered_path[0]][1](environ, start_response)
        if "/" in pages:
            return pages["/"][1](environ, start_response)
        if pages and path in {"/", "/list"}:
            environ["PATH_INFO"] = "/list"
            return next(iter(pages.values()))[1](environ, start_response)
        return _answer_text(start_response, "404 Not Found", "There is no such page.")

    def listing(self) -> bytes:
        """Return a list of all pages as HTML, with the state and progress of each query."""
        with self._changing:
            pages = dict(self._pages)
        rows = []
        for path, (query, _, feed) in pages.items():
            published = feed.look()
            epoch, state = published.state.frame.epoch, published.life.state
            link = f'<a href="{path}">{html.escape(query)}</a>'
            rows.append(f"<tr><td>{link}<td>{html.escape(state)}<td>epoch {epoch}")
        head = "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Queries</title>"
        return f"{head}<h1>Queries</h1><table>{''.join(rows)}</table></html>\n".encode()


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_local(host: str) -> bool:
    """Return whether a request's host is a name that always means this machine."""
    with suppress(ValueError):
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    return False


def _bearer_token(environ: WSGIEnvironment) -> str:
    """Return the token in the header of a request; empty if there is none."""
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return str(token.strip()) if scheme.lower() == "bearer" else ""


def _query_parameter(environ: WSGIEnvironment, name: str) -> str | None:
    """Return a parameter of the request's URL; ``None`` unless it is given exactly once."""
    with suppress(ValueError):
        query = environ.get("QUERY_STRING", "")
        values = parse_qs(query, max_num_fields=MAX_PARAMETERS).get(name, [])
        return values[0] if len(values) == 1 else None
    return None


def _security_headers() -> list[tuple[str, str]]:
    """Return the security headers that every answer has."""
    return [("Content-Security-Policy", _POLICY), *_HEADERS]


def _answer_body(
    start_response: StartResponse,
    body: bytes,
    kind: str,
    more: Iterable[tuple[str, str]] = (),
    status: str = "200 OK",
) -> Iterable[bytes]:
    """Answer with a complete body; `kind`: content type. `more`: further headers."""
    length = ("Content-Length", str(len(body)))
    is_text = kind.startswith("text/") or kind == "application/json"
    kinds = ("Content-Type", f"{kind}; charset=utf-8" if is_text else kind)
    start_response(status, [kinds, length, *more, *_security_headers()])
    return [body]


def _send_answer(start_response: StartResponse, answer: StateAnswer) -> Iterable[bytes]:
    """Send an answer."""
    kind = answer.kind, answer.headers, answer.status
    return _answer_body(start_response, answer.body, *kind)


def _answer_text(start_response: StartResponse, status: str, said: str) -> Iterable[bytes]:
    """Answer with a sentence (`said`) as plain text."""
    return _answer_body(start_response, f"{said}\n".encode(), "text/plain", status=status)


_FOLDER: Final = Path(__file__).parent / "assets"
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_STYLE: Final = '<link rel="stylesheet" href="page.css">'
_SCRIPT: Final = '<script src="page.js" defer></script>'


@cache
def asset(name: str) -> str:
    """Return the content of one of the page's files."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def report_page(values: Mapping[str, Any]) -> str:
    """Return the page as one HTML file with its data; `values`: see `view.report_of`.

    Text of a journal cannot become markup or code: it is in a block that browsers do not run, with
    every character that could end the block escaped, and the page's policy allows only the script
    with the page's own hash.
    """
    data = json.dumps(values, allow_nan=False, ensure_ascii=True)
    for char, escaped in _ESCAPED.items():
        data = data.replace(char, escaped)
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{_policy_hash(script)}'; "
        f"style-src '{_policy_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    page = asset("page.html")
    page = page.replace(_STYLE, f"{head}<style>{style}</style>")
    page = page.replace(_SCRIPT, "")
    block = f'<script type="application/json" id="report">{data}</script>\n'
    return page.replace("</body>", f"{block}<script>{script}</script>\n</body>")


def _policy_hash(text: str) -> str:
    """Return a text's hash as a content security policy writes it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
