"""A real Redis server for tests, started from the binary that is installed or on the path.

It listens on a Unix socket in a directory of its own and nowhere else, stores nothing on disk, and
is stopped by the process id it was started with.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["redis", "redis_server", "running_redis"]

_START_TIMEOUT_S = 120.0


@contextlib.contextmanager
def running_redis(*settings: str) -> Iterator[str]:
    """Run a server for as long as the context lasts; yield its URL. `settings`: of the server."""
    pytest.importorskip("redis", reason="Redis tests need redis-py.")
    # Debian's redis-tools has the same program under the second name.
    binary = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if binary is None:
        pytest.skip("Redis tests need redis-server: apt install redis-server.")
    directory = Path(tempfile.mkdtemp(prefix="godwit-redis-"))
    socket = directory / "socket"
    try:
        with (directory / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    *("redis-server", "--port", "0", "--unixsocket", str(socket)),
                    *("--save", "", "--appendonly", "no", "--dir", str(directory), *settings),
                ],
                executable=binary,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while "ready to accept connections" not in (text := (directory / "log").read_text()):
                assert server.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.02)
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait(timeout=_START_TIMEOUT_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Yield the URL of a server that lives as long as the test session."""
    with running_redis() as url:
        yield url


@pytest.fixture
def redis(redis_server: str) -> Iterator[str]:
    """Yield the URL of a database that is empty, as long as no other test uses it."""
    from redis import Redis

    with Redis.from_url(redis_server) as client:
        client.flushdb()
        yield redis_server
        client.flushdb()
