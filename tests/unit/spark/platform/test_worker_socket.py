"""Quick acknowledgement is asked for on TCP connections, and on nothing else."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from godwit.spark.platform.worker import acknowledge_quickly

if TYPE_CHECKING:
    from pathlib import Path

QUICK = getattr(socket, "TCP_QUICKACK", None)


@pytest.mark.skipif(QUICK is None, reason="quick acknowledgement is Linux's")
def test_connections_acknowledge_quickly_and_everything_stays_open(tmp_path: Path) -> None:
    assert QUICK is not None
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "f").open("wb") as file:
        left, right = socket.socketpair()
        with socket.create_connection(server.getsockname()) as client, left, right:
            served, _ = server.accept()
            with served:
                client.setsockopt(socket.IPPROTO_TCP, QUICK, 0)
                acknowledge_quickly()
                assert client.getsockopt(socket.IPPROTO_TCP, QUICK) == 1
                client.sendall(b"still open")
                assert served.recv(10) == b"still open"
                left.sendall(b"too")
                assert right.recv(3) == b"too"
                assert os.fstat(file.fileno()).st_size == 0


def test_a_process_without_connections_has_nothing_to_ask_for() -> None:
    acknowledge_quickly()
