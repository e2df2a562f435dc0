"""What a verification of a checkpoint finds, as values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "VerificationReport"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One thing that is wrong with a checkpoint."""

    file: str  # path of the file within the checkpoint
    problem: str  # what is wrong
    remedy: str  # what can be done about it


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What `verify` found."""

    # everything that is wrong, ordered by file; empty if the checkpoint is whole
    findings: tuple[Finding, ...]
    # retained epochs, first and last; ``None`` if none is committed or it cannot be told
    epochs: tuple[int, int] | None
    # records, blocks, checked_bytes: how many records and blocks were checked, and their size
    records: int
    blocks: int
    checked_bytes: int
    # files that a running query collected before they were checked: nothing needs them any more
    collected: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings
