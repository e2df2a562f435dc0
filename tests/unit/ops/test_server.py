"""Connections to the server of metrics and of the live page: never too many, none is cut short."""

from __future__ import annotations

import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from godwit.ops import server as server_module
from godwit.ops.server import BoundedServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment

_ANSWER = b"0123456789abcdef" * 2**14


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give connections a minute to ask, so that no test depends on how fast they do."""
    monkeypatch.setattr(server_module, "_TO_ASK_S", 60.0)


@pytest.mark.usefixtures("unhurried")
def test_requests_beyond_the_limit_wait_and_cut_no_answer_short() -> None:
    at_once, most, counting = 0, 0, threading.Lock()

    def app(_: WSGIEnvironment, start: StartResponse) -> Iterator[bytes]:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
        start("200 OK", [("Content-Length", str(len(_ANSWER)))])
        yield _ANSWER
        with counting:
            at_once -= 1

    def ask(number: int) -> bytes:
        with urllib.request.urlopen(f"{server.url}/{number}", timeout=60) as answer:
            body: bytes = answer.read()
        return body

    server = BoundedServer(app, host="127.0.0.1", port=0, name="test", max_connections=3)
    try:
        with ThreadPoolExecutor(12) as clients:
            assert set(clients.map(ask, range(48))) == {_ANSWER}
    finally:
        server.close()
    assert most <= 3


@pytest.mark.usefixtures("unhurried")
def test_an_answer_that_lasts_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of events ends only when its reader leaves, so a few would lock others out."""
    monkeypatch.setattr(server_module, "_SILENT_S", 0.0)
    released = threading.Event()

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [])
        if environ["PATH_INFO"] != "/stream":
            return [b"here"]

        def stream() -> Iterator[bytes]:
            yield b"first"
            released.wait(60)

        return stream()

    server = BoundedServer(app, host="127.0.0.1", port=0, name="test", max_connections=2)
    try:
        streams = [urllib.request.urlopen(f"{server.url}/stream", timeout=60) for _ in range(2)]
        assert [stream.read(5) for stream in streams] == [b"first", b"first"]
        with urllib.request.urlopen(server.url, timeout=60) as answer:
            assert answer.read() == b"here"
        assert streams[0].read() == b""  # the older one has made room
    finally:
        released.set()
        server.close()


@pytest.mark.usefixtures("unhurried")
def test_the_port_closes_while_a_connection_waits_for_room() -> None:
    server = BoundedServer(lambda *_: [], host="127.0.0.1", port=0, name="test", max_connections=1)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    try:
        server.close()
    finally:
        for connection in silent:
            connection.close()
