"""A real PostgreSQL server for tests, started from the binaries that are installed.

It lives in a directory of its own, listens on a Unix socket there and nowhere else, does not wait
for the disk, and is stopped by the process id it was started with.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PostgresServer", "drop_slots", "postgres", "postgres_server", "running_postgres"]

_START_TIMEOUT_S = 120.0


class _RunAs(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server.

    Attributes
    ----------
    directory
        Where its socket is.
    """

    directory: Path

    @property
    def dsn(self) -> str:
        """Connection string, for the superuser."""
        return f"host={self.directory} user=postgres dbname=postgres"


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server for as long as the context lasts."""
    pytest.importorskip("psycopg", reason="PostgreSQL tests need psycopg.")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL tests need initdb and postgres: apt install postgresql.")
    run_as = _run_as()
    directory = Path(tempfile.mkdtemp(prefix="godwit-pg-"))
    try:
        if "user" in run_as:
            os.chown(directory, run_as["user"], run_as["group"])
        data = directory / "data"
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        common: dict[str, Any] = {"cwd": directory, "env": environment, **run_as}
        initdb = subprocess.run(
            [
                *(binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            check=False,
            capture_output=True,
            text=True,
            **common,
        )
        assert initdb.returncode == 0, initdb.stderr
        with (directory / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    *(binaries / "postgres", "-D", data, "-k", directory, "-F"),
                    *("-c", "listen_addresses=", "-c", "shared_buffers=16MB"),
                    *("-c", "max_connections=40", "-c", "full_page_writes=off"),
                    *("-c", "wal_level=logical", "-c", "max_wal_senders=20"),
                    *("-c", "max_replication_slots=20"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                **common,
            )
        try:
            _wait_for(server, directory)
            yield PostgresServer(directory)
        finally:
            server.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
            server.wait(timeout=_START_TIMEOUT_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a server that lives as long as the test session."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """Yield a connection string whose schema is empty and this test's own.

    Not a database of its own: that is a thousand files.
    """
    import psycopg

    with psycopg.Connection.connect(postgres_server.dsn, autocommit=True) as connection:
        schema = f"test_{connection.info.backend_pid}"
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        yield f"{postgres_server.dsn} options=-csearch_path={schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def drop_slots(dsn: str, *slots: str) -> None:
    """Drop replication slots, and the publications of the same names; end what reads them."""
    import psycopg
    from psycopg import sql

    with psycopg.Connection.connect(dsn, autocommit=True) as connection:
        for slot in slots:
            known = "FROM pg_replication_slots WHERE slot_name = %s"
            for action in (
                f"SELECT pg_terminate_backend(active_pid, 60000) {known} AND active",
                f"SELECT pg_drop_replication_slot(slot_name) {known}",
            ):
                connection.execute(action.encode(), [slot])
            drop = sql.SQL("DROP PUBLICATION IF EXISTS {}")
            connection.execute(drop.format(sql.Identifier(slot)))


def _binaries() -> Path | None:
    """Directory of ``initdb`` and ``postgres``, the newest version first."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: float(path.parent.name),
        reverse=True,
    )
    on_path = shutil.which("postgres")
    candidates = [*debian, *([Path(on_path).resolve().parent] if on_path else [])]
    return next(
        (
            path
            for path in candidates
            if (path / "initdb").exists() and (path / "postgres").exists()
        ),
        None,
    )


def _run_as() -> _RunAs:
    """Whom the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user to run it as.")


def _wait_for(server: subprocess.Popen[bytes], directory: Path) -> None:
    import psycopg

    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(f"host={directory} user=postgres dbname=postgres").close()
        except psycopg.OperationalError:
            assert server.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.05)
        else:
            return
