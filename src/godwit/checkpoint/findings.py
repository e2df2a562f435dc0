"""What a verification of a checkpoint finds, as values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "VerificationReport"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One thing that is wrong with a checkpoint.

    Attributes
    ----------
    file
        Path of the file within the checkpoint.
    problem
        What is wrong.
    remedy
        What can be done about it.
    """

    file: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What `verify` found.

    Attributes
    ----------
    findings
        Everything that is wrong, ordered by file; empty if the checkpoint is whole.
    epochs
        Retained epochs, first and last; ``None`` if none is committed or it cannot be told.
    records, blocks, checked_bytes
        How many records and blocks were checked, and their size.
    collected
        Files that a running query collected before they were checked: nothing needs them any more.
    """

    findings: tuple[Finding, ...]
    epochs: tuple[int, int] | None
    records: int
    blocks: int
    checked_bytes: int
    collected: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings
