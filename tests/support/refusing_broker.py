"""As much of a broker of Kafka's protocol as it takes to refuse credentials."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["refusing_broker"]

_HANDSHAKE, _VERSIONS, _AUTHENTICATE = 17, 18, 36
_UNSUPPORTED_VERSION, _FAILED = 35, 58


@contextlib.contextmanager
def refusing_broker() -> Iterator[str]:
    """Yield the address of a broker that takes no user's password."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def _serve(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError, struct.error):
        while True:
            (size,) = struct.unpack(">i", _read(connection, 4))
            request = _read(connection, size)
            api, version, correlation = struct.unpack_from(">hhi", request)
            body = struct.pack(">i", correlation) + _body(api, version)
            connection.sendall(struct.pack(">i", len(body)) + body)


def _body(api: int, version: int) -> bytes:
    if api == _VERSIONS:
        known = ((_HANDSHAKE, 0, 1), (_VERSIONS, 0, 0), (_AUTHENTICATE, 0, 0))
        listed = b"".join(struct.pack(">hhh", *one) for one in known)
        return struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(known)) + listed
    if api == _HANDSHAKE:
        return struct.pack(">hi", 0, 1) + _text("PLAIN")
    return struct.pack(">h", _FAILED) + _text("no such user") + struct.pack(">i", 0)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("it is gone")
        data += more
    return data
