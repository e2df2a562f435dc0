"""A real MariaDB server for tests, started from the binaries that are installed or on the path.

It lives in a directory of its own, listens on a Unix socket there and nowhere else, has no tables
of rights, does not wait for the disk, and is stopped by the process id it was started with.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mariadb", "mariadb_server", "running_mariadb"]

_START_TIMEOUT_S = 120.0


@contextlib.contextmanager
def running_mariadb() -> Iterator[str]:
    """Run a server for as long as the context lasts; yield its socket."""
    pytest.importorskip("pymysql", reason="MariaDB tests need PyMySQL.")
    # Debian has it in a directory that is not on everybody's path.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    binary = shutil.which("mariadbd", path=path)
    if binary is None:
        pytest.skip("MariaDB tests need mariadbd: apt install mariadb-server-core.")
    root = Path(binary).resolve().parents[1]
    directory = Path(tempfile.mkdtemp(prefix="godwit-maria-"))
    data, socket = directory / "data", directory / "socket"
    data.mkdir()
    # It refuses to run as root unless that is what it is told.
    user = ["--user=root"] if os.geteuid() == 0 else []
    try:
        with (directory / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    *(binary, "--no-defaults", f"--datadir={data}", f"--socket={socket}", *user),
                    f"--tmpdir={directory}",
                    *("--skip-networking", "--skip-grant-tables", "--skip-log-bin"),
                    *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M"),
                    *("--innodb-log-file-size=8M", "--character-set-server=latin1"),
                    f"--lc-messages-dir={root}/share/mysql",
                    f"--character-sets-dir={root}/share/mysql/charsets",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
            )
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            # Not by connecting: a connection that fails leaves its socket to the collector.
            while "ready for connections" not in (text := (directory / "log").read_text()):
                assert server.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.02)
            yield str(socket)
        finally:
            server.terminate()
            server.wait(timeout=_START_TIMEOUT_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """Yield the socket of a server that lives as long as the test session."""
    with running_mariadb() as socket:
        yield socket


@pytest.fixture
def mariadb(mariadb_server: str) -> Iterator[str]:
    """Yield a URL of SQLAlchemy's, of a database that is empty and this test's own."""
    import pymysql

    with contextlib.closing(
        pymysql.connect(unix_socket=mariadb_server, user="root", autocommit=True)
    ) as connection:
        name = f"test_{connection.thread_id()}"
        connection.cursor().execute(f"CREATE DATABASE {name}")
        yield f"mariadb+pymysql://root@localhost/{name}?unix_socket={mariadb_server}"
        connection.cursor().execute(f"DROP DATABASE {name}")
