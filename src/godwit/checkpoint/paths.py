"""Names of the files that a checkpoint is made of.

The checkpoint is a directory of files that are written once and never changed::

    identity.rec                            whose checkpoint this is
    offsets.rec                             which lines of Spark's log are of which source
    flows/<number>.rec                      what the flow's operators were, from some epoch on
    plans/<number>.rec                      which operators made a component, from some epoch on
    edits/<number>.rec                      what the next flow version is to rename and drop
    runs/<number>.rec                       who opened it to write; the last one owns it
    commits/<epoch>.rec                     the one record that makes an epoch's files count
    manifests/<epoch>.rec                   all chains as of that epoch, so that few records do
    journal/<number>.rec                    what happened, for people; nothing depends on it
    blocks/<epoch>-<who>-<attempt>.blk      segments, snapshots and staged output of one lane
    diverted/<epoch>-<sink>.rec             rows that a target refused when it got the epoch
    carried/<file>.parquet                  of a copy: what lanes wrote for another query's target
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "ALIGNMENT",
    "BLOCKS",
    "CARRIED",
    "COMMITS",
    "DIVERTED",
    "EDITS",
    "FLOWS",
    "FORMAT",
    "IDENTITY",
    "JOURNAL",
    "MANIFESTS",
    "PLANS",
    "READABLE_FORMATS",
    "RUNS",
    "commit_path",
    "edit_path",
    "flow_path",
    "journal_path",
    "manifest_path",
    "number_in",
    "numbered_path",
    "padded",
    "plan_path",
    "run_path",
]

FORMAT: Final = 3
"""Version of all this, as it is written; what is not readable is refused by name."""
READABLE_FORMATS: Final = frozenset({2, FORMAT})
"""Records of format 2 name no predecessor; the first epoch of a run upgrades the checkpoint."""

IDENTITY: Final = "identity.rec"
FLOWS: Final = "flows"
PLANS: Final = "plans"
EDITS: Final = "edits"
RUNS: Final = "runs"
COMMITS: Final = "commits"
MANIFESTS: Final = "manifests"
BLOCKS: Final = "blocks"
JOURNAL: Final = "journal"
DIVERTED: Final = "diverted"
CARRIED: Final = "carried"

ALIGNMENT: Final = 64
"""Blocks begin at multiples of this many bytes, so that a mapped block is aligned for Arrow."""


def numbered_path(directory: str, number: int) -> str:
    """Path of the record of that number in a directory."""
    return f"{directory}/{number:012d}.rec"


def commit_path(epoch: int) -> str:
    """Path of the commit record of `epoch`."""
    return numbered_path(COMMITS, epoch)


def manifest_path(epoch: int) -> str:
    """Path of the manifest of `epoch`."""
    return numbered_path(MANIFESTS, epoch)


def edit_path(number: int) -> str:
    """Path of the record of edit `number`."""
    return numbered_path(EDITS, number)


def flow_path(number: int) -> str:
    """Path of the record of flow version `number`."""
    return numbered_path(FLOWS, number)


def plan_path(number: int) -> str:
    """Path of the record of physical plan `number`."""
    return numbered_path(PLANS, number)


def run_path(number: int) -> str:
    """Path of the record of run `number`."""
    return numbered_path(RUNS, number)


def journal_path(number: int) -> str:
    """Path of the journal's segment `number`."""
    return numbered_path(JOURNAL, number)


_NUMBERED = re.compile(
    rf"(?:{RUNS}|{FLOWS}|{PLANS}|{EDITS}|{COMMITS}|{MANIFESTS}|{JOURNAL})"
    rf"/(\d{{12}})\.rec(\.[0-9a-f]+\.tmp)?"
    rf"|{BLOCKS}/(\d{{12}})-[\w.+-]+\.blk"
)


def number_in(path: str, *, temporary: bool = False) -> int | None:
    """Give the number (of epoch, run, flow version, ...) in a file's name; None if it is not ours.

    `temporary`: whether to accept also the name of a file that was never finished.
    """
    match = _NUMBERED.fullmatch(path)
    if match is None or (match[2] is not None and not temporary):
        return None
    return int(match[1] or match[3])


def padded(length: int) -> int:
    """`length`, rounded up to a multiple of `ALIGNMENT`."""
    return -(-length // ALIGNMENT) * ALIGNMENT
