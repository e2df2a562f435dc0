"""A real MariaDB server for tests, started from the binaries that are installed or on the path.

It lives in a directory of its own, listens on a Unix socket there and nowhere else, does not wait
for the disk, and is stopped by the process id it was started with.
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
_LOG = ("--log-bin=log", "--server-id=7", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
_SYSTEM = (  # tables of rights, and of positions of replicas
    "CREATE DATABASE mysql;\nUSE mysql;\nSET @current_hostname = 'localhost';\n"
    "SET @skip_auth_anonymous = 1;\nSET @auth_root_socket = NULL;\n"
)


@contextlib.contextmanager
def running_mariadb(*options: str) -> Iterator[str]:
    """Run a server for as long as the context lasts; yield its socket.

    `options`: by default it logs complete rows.
    """
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
    share = root / "share/mysql"
    common = [
        *(binary, "--no-defaults", f"--datadir={data}", *user, f"--tmpdir={directory}"),
        *("--innodb-log-file-size=8M", f"--lc-messages-dir={share}"),
        f"--character-sets-dir={share}/charsets",
    ]
    try:
        names = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
        statements = _SYSTEM + "".join((share / name).read_text() for name in names)
        with (directory / "log").open("w") as log:
            subprocess.run(
                [*common, "--bootstrap"],
                input=statements.encode(),
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
            server = subprocess.Popen(
                [
                    *(*common, f"--socket={socket}", "--skip-networking", *(options or _LOG)),
                    *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M"),
                    "--character-set-server=latin1",
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
