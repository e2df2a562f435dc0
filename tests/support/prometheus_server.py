"""Prometheus, in a process of its own and on this machine only."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Prometheus", "is_installed", "prometheus"]

_START_TIMEOUT_S = 120.0


def is_installed() -> bool:
    """Return whether the server and its tool are on the path."""
    return all(map(shutil.which, ("prometheus", "promtool")))


class Prometheus:
    """A server's HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; raise if the server refuses."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Return the series of an expression, now or at a time."""
        at = {} if at_s is None else {"time": str(at_s)}
        series: list[dict[str, Any]] = self.get("query", query=expression, **at)["result"]
        return series

    def is_ready(self) -> bool:
        """Return whether it answers questions."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=30) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def prometheus(directory: Path, *, rules: Path, target: str, backfill: str) -> Iterator[Prometheus]:
    """Run a server with rules, a target to scrape, and samples of earlier times (OpenMetrics)."""
    samples, data, config = (directory / name for name in ("samples", "data", "config.yaml"))
    samples.write_text(backfill)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(samples), str(data)]
    subprocess.run(command, check=True, capture_output=True)
    job = {"job_name": "godwit", "static_configs": [{"targets": [target]}]}
    # A list of YAML is one of JSON.
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [job],
            }
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={data}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address={place}",
            ],
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        server, until_s = Prometheus(f"http://{place}"), time.monotonic() + _START_TIMEOUT_S
        while not server.is_ready():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError((directory / "log").read_text())
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()
