"""Godwit beside its peers, over the same CSV files in one run: ``python -m benchmarks.peers``.

Workloads: number and sum of the rows of a key, of one million keys that are drawn uniformly and of
100,000 by Zipf's law, and the same by a Python function with state per key.  Options: ``--only
PEER ...``, ``--workloads``, ``--rounds``, ``--rows`` of a file, and ``--environments``, the
directory of virtual environments, which are made once and kept.  A peer that cannot be installed
or fails is in the table, with the reason.

Parallelism is 2, and JVMs may take 4 GiB.  Godwit commits every epoch of a file, Spark every
micro-batch of one; Flink makes a checkpoint every 10 s; Bytewax and Pathway run without recovery.
Every peer runs a job over the first files and one over more of them, each in a process of its own;
`benchmarks.peers.table` says how a rate follows.  Results are dropped.  They are checked by a run
before, of the same program over few rows, which writes them: the last result of every key is
DuckDB's, or the peer has no figure.  Peers take turns, and every other round the other way round.

Quix Streams is not among them, since it reads from Kafka alone: `benchmarks.kafka.rivals`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.options import append_json, read_options, temporary_directory
from benchmarks.peers.engines import PEERS, Peer
from benchmarks.peers.environments import PeerFailedError, python_of
from benchmarks.peers.table import Figures, lines_of
from benchmarks.peers.workloads import CHECK, Workload, difference, workloads
from benchmarks.streaming.measure import in_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare", "main"]


def compare(
    workload: Workload,
    peers: Sequence[Peer],
    *,
    rounds: int,
    inputs: Path,
    environments: Path,
    checked: set[str],
) -> list[Figures]:
    """Check every peer's results, then run its jobs in turns; none after one that fails.

    `checked`: names of peers whose results need no other check.
    """
    files, few = workload.files(inputs), replace(CHECK, function=workload.function).files(inputs)
    sizes = {peer.name: workload.fast if peer.fast else workload.slow for peer in peers}
    figures = {}
    for peer in peers:
        small, large = sizes[peer.name]
        rows = (small * workload.rows, large * workload.rows)
        figures[peer.name] = Figures(name=peer.name, rows=rows)
    for turn in range(-1, rounds):  # the first one checks
        for peer in in_turns(peers, turn):
            taken = figures[peer.name]
            if taken.failure is not None:
                continue
            try:
                python = _python(peer, environments)
                if turn < 0:
                    if peer.name not in checked:
                        _check(peer, python, workload, few)
                        checked.add(peer.name)
                    continue
                small, large = sizes[peer.name]
                taken.small.append(peer.run(python, workload, files, small))
                taken.large.append(peer.run(python, workload, files, large))
                seconds = taken.small[-1].seconds, taken.large[-1].seconds
                shown = f"{seconds[0]:.1f} and {seconds[1]:.1f} s"
            except PeerFailedError as error:
                taken.failure = shown = str(error)
            print(f"{workload.name}, round {turn + 1}, {peer.name}: {shown}", flush=True)
    return list(figures.values())


def _python(peer: Peer, environments: Path) -> Path:
    if peer.requirement is None:
        return Path(sys.executable)
    return python_of(environments, peer.name, peer.requirement)


def _check(peer: Peer, python: Path, workload: Workload, few: Path) -> None:
    """Run a peer's program over few rows."""
    job = replace(CHECK, function=workload.function)
    with temporary_directory() as place:
        results = place / "results.csv"
        peer.run(python, job, few, max(CHECK.fast), results)
        wrong = difference(few, results)
    if wrong is not None:
        raise PeerFailedError(f"a wrong result: {wrong}")
    print(f"{workload.name}, {peer.name}: results are right", flush=True)


def main() -> None:
    """Compare, print a table for each workload, and append the figures to a file."""
    options = read_options(
        __doc__,
        only=list(PEERS),
        workloads=list(workloads(0)),
        rounds=3,
        rows=400_000,
        inputs=Path("artifacts/inputs"),
        environments=Path("artifacts/environments"),
        json=Path("artifacts/peers.jsonl"),
    )
    checked: dict[bool, set[str]] = {True: set(), False: set()}  # by ``function``
    for name, workload in workloads(options.rows).items():
        peers = [
            peer
            for peer in PEERS.values()
            if peer.name in {"godwit", *options.only}
            and (peer.function if workload.function else peer.variant) is not None
        ]
        if name not in options.workloads or not peers:
            continue
        figures = compare(
            workload,
            peers,
            rounds=options.rounds,
            inputs=options.inputs.absolute(),
            environments=options.environments,
            checked=checked[workload.function],
        )
        about = f"{workload.about} ({workload.rows:,} rows a file)"
        print("", *lines_of(about, figures), "", sep="\n", flush=True)
        for taken in figures:
            append_json(options.json, taken.json(name, figures[0]))


if __name__ == "__main__":
    main()
