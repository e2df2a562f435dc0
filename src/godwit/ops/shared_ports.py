"""Ports that several queries of this process share, because they have the same address.

The first query opens the port, later ones join it, and the last one that ends closes it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.ops.server import BoundedServer

PartT = TypeVar("PartT")


class SharedPort(Generic[PartT]):
    """An open port, and what each query shows there."""

    def __init__(self, parts: Any, open_server: Callable[[Any], BoundedServer]) -> None:
        self.parts = parts  # what the server serves: has `add` and `remove`
        self.server = open_server(parts)
        self.users = 0


_lock = threading.Lock()
_ports: Final[dict[tuple[str, str, int], SharedPort[Any]]] = {}


def join_port(
    kind: str,
    host: str,
    port: int,
    make_parts: Callable[[], PartT],
    open_server: Callable[[PartT], BoundedServer],
) -> SharedPort[PartT]:
    """Return the open port of a kind at an address; open it if this process has none there.

    `make_parts`: makes what the server serves. `open_server`: opens a server of it; raises if the
    address cannot be had. Port 0 is always a new one.
    """
    with _lock:
        shared = _ports.get((kind, host, port))
        if shared is None:
            shared = SharedPort(make_parts(), open_server)
            _ports[kind, host, shared.server.port] = shared
        shared.users += 1
        return shared


def leave_port(shared: SharedPort[Any]) -> None:
    """Close a port if no other query uses it."""
    with _lock:
        shared.users -= 1
        if shared.users:
            return
        for key, other in list(_ports.items()):
            if other is shared:
                del _ports[key]
    shared.server.close()
