"""Bytewax: a stateful function per key in two processes, without recovery, its fastest way.

A file is a partition, read 10,000 lines at once; a key's rows of a batch are one call.
"""

from __future__ import annotations

import multiprocessing
import socket
from itertools import islice
from typing import TYPE_CHECKING, Any

import bytewax.operators as op
from benchmarks.peers.programs.job import PARALLELISM, Job
from bytewax._bytewax import cluster_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 10_000


class File(StatefulSourcePartition[Any, None]):  # type: ignore[misc]
    """Rows of a file."""

    def __init__(self, path: Path) -> None:
        self.lines = path.open()

    def next_batch(self) -> list[tuple[str, float]]:
        lines = [line.split(",") for line in islice(self.lines, BATCH)]
        if not lines:
            raise StopIteration
        return [(key, float(v)) for key, v in lines]

    def snapshot(self) -> None:
        """Return no state: nothing is recovered."""


class Files(FixedPartitionedSource[Any, None]):  # type: ignore[misc]
    """Files of a directory, which all workers see; each is read by one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def list_parts(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> File:  # noqa: ARG002
        return File(self.directory / for_part)


class Sums(StatefulBatchLogic[Any, Any, Any]):  # type: ignore[misc]
    """Number and sum of the rows of a key."""

    def __init__(self) -> None:
        self.n, self.s = 0, 0.0

    def on_batch(self, values: list[float]) -> tuple[list[tuple[int, float]], bool]:
        self.n += len(values)
        self.s += sum(values)
        return [(self.n, self.s)], False

    def snapshot(self) -> tuple[int, float]:
        return self.n, self.s


class Results(StatelessSinkPartition[Any]):  # type: ignore[misc]
    """Results dropped or written."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def write_batch(self, items: list[Any]) -> None:
        if self.job.results is not None:
            self.job.write((key, n, s) for key, (n, s) in items)


class ResultSink(DynamicSink[Any]):  # type: ignore[misc]
    """A sink in each worker."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def build(self, *_: object) -> Results:
        return Results(self.job)


def work(job: Job, addresses: list[str], number: int) -> None:
    """Run one of the processes."""
    flow = Dataflow("sums")
    rows = op.input("rows", flow, Files(job.input))
    sums = op.stateful_batch("sums", rows, lambda _: Sums())
    op.output("results", sums, ResultSink(job))
    cluster_main(flow, addresses, number)


def free_addresses(count: int) -> list[str]:
    """Return addresses of ports that are free now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return addresses


def main() -> None:
    """Run the job that the command line names."""
    job = Job.of_command_line()
    addresses = free_addresses(PARALLELISM)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=(job, addresses, n)) for n in range(PARALLELISM)]
    job.begin()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)
    job.end()


if __name__ == "__main__":
    main()
