"""Peers of Godwit, and Godwit: the program of each, its variants and its environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.processes import Usage, run
from benchmarks.peers.workloads import Workload, first_files

__all__ = ["PEERS", "Peer"]

_PROGRAMS = Path(__file__).with_name("programs")
_FLINK = "apache-flink==2.3.0"
_BYTEWAX = "bytewax==0.21.1"
_PATHWAY = "pathway==0.33.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine as it is run: a program, its variants, and the package that it needs."""

    name: str
    program: str
    variant: str | None  # for aggregates
    function: str | None  # for a Python function
    requirement: str | None = None  # none: the environment of this process
    fast: bool = False
    header: bool = False  # its files begin with a line of names

    def run(
        self, python: Path, job: Workload, files: Path, number: int, results: Path | None = None
    ) -> Usage:
        """Run a job over the first files."""

        def command(work: Path) -> list[str | Path]:
            first_files(files, number, work / "in", header=self.header)
            variant = self.function if job.function else self.variant
            assert variant is not None
            rows = str(job.rows * number)
            program: list[str | Path] = [
                python,
                _PROGRAMS / f"{self.program}.py",
                variant,
                work / "in",
                work,
                rows,
            ]
            return program if results is None else [*program, "--results", results]

        return run(command)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="godwit", program="on_spark", variant="own", function="own-function", fast=True),
        Peer(
            name="godwit-adopted",
            program="on_spark",
            variant="adopted",
            function="adopted-function",
            fast=True,
        ),
        Peer(name="spark-memory", program="on_spark", variant="memory", function=None),
        Peer(name="spark-rocksdb", program="on_spark", variant="rocksdb", function="function"),
        Peer(
            name="flink-heap",
            program="on_flink",
            variant="heap",
            function="function",
            requirement=_FLINK,
            fast=True,
        ),
        Peer(
            name="flink-rocksdb",
            program="on_flink",
            variant="rocksdb",
            function=None,
            requirement=_FLINK,
            fast=True,
        ),
        Peer(
            name="bytewax",
            program="on_bytewax",
            variant="sums",
            function="function",
            requirement=_BYTEWAX,
        ),
        Peer(
            name="pathway",
            program="on_pathway",
            variant="sums",
            function="function",
            requirement=_PATHWAY,
            fast=True,
            header=True,
        ),
    )
}
