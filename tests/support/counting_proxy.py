"""A proxy before a server that speaks S3, which counts the requests that pass, by kind and path."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase

__all__ = ["CountingProxy", "by_kind", "counted_store"]

_KINDS = {"GET": "get", "HEAD": "head", "PUT": "put", "POST": "put", "DELETE": "delete"}


class CountingProxy:
    """Passes connections on to a server, and reads the requests on them."""

    def __init__(self, server: str) -> None:
        host, _, port = server.partition(":")
        self._server = (host, int(port))
        self._lock = threading.Lock()
        self._seen: list[tuple[str, str]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def taken(self) -> list[tuple[str, str]]:
        """Return kind and path of each request since the last call."""
        with self._lock:
            seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            answers = threading.Thread(target=_pipe, args=(server, client), daemon=True)
            answers.start()
            self._pass_requests(client, server)
            answers.join()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        """Pass the requests of a connection on, each after it is counted."""
        with suppress(OSError), client.makefile("rb") as file:
            while line := file.readline():
                head = [line]
                while head[-1].strip():
                    head.append(file.readline())
                headers = dict(
                    part.decode("latin-1").strip().lower().split(":", 1) for part in head[1:-1]
                )
                self._count(line)
                server.sendall(b"".join(head))
                for part in _body(file, headers):
                    server.sendall(part)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _count(self, line: bytes) -> None:
        method, target, _ = line.decode("latin-1").split(" ")
        query = parse_qs(urlsplit(target).query)
        kind = "list" if "list-type" in query else _KINDS[method]
        path = query.get("prefix", [""])[0] if kind == "list" else unquote(urlsplit(target).path)
        with self._lock:
            self._seen.append((kind, path))


def _body(file: BufferedIOBase, headers: dict[str, str]) -> Iterator[bytes]:
    """Read the body of a request."""
    if "chunked" in headers.get("transfer-encoding", ""):
        size = 1
        while size:
            line = file.readline()
            size = int(line.split(b";")[0], 16)
            yield line + file.read(size) + file.readline()
        return
    left = int(headers.get("content-length", "0"))
    while left and (part := file.read(min(left, 1 << 20))):
        left -= len(part)
        yield part


def _pipe(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until the end."""
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def counted_store(uri: str) -> Iterator[tuple[str, CountingProxy]]:
    """Put a proxy before the store of a URI; gives the URI through it, and the proxy."""
    place = parse_qs(urlsplit(uri).query)["endpoint_override"][0]
    proxy = CountingProxy(place)
    try:
        yield uri.replace(place, proxy.place), proxy
    finally:
        proxy.close()


def by_kind(requests: list[tuple[str, str]]) -> dict[str, int]:
    """Return kind → number of requests."""
    return dict(sorted(Counter(kind for kind, _ in requests).items()))
