"""Steps of a repair: files of a checkpoint that are written again, or set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.checkpoint.storage import CheckpointStorage

_SET_ASIDE: Final = "set-aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """A problem with one file, and the action taken."""

    path: str  # the file, within the checkpoint
    problem: str
    # ``"write"``: `content` is put there; ``"set aside"``: it is moved to ``set-aside/``;
    # ``"none"``: nothing can be done about it here
    action: Literal["write", "set aside", "none"]
    content: bytes = b""  # of the file to write


def execute_repair(storage: CheckpointStorage, steps: Sequence[RepairStep]) -> None:
    """Execute the steps of a repair plan; may be repeated after a crash."""
    for step in steps:
        if step.action == "none":
            continue
        # Hadoop's checksum beside a local file does not match the rewritten content.
        folder, _, name = step.path.rpartition("/")
        storage.delete(f"{folder}/.{name}.crc" if folder else f".{name}.crc")
        if step.path in storage.list(folder):
            previous = storage.read(step.path).to_pybytes()
            storage.write_atomic(f"{_SET_ASIDE}/{step.path}", previous)
        if step.action == "write":
            storage.write_atomic(step.path, step.content)
        else:
            storage.delete(step.path)
