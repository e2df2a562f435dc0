"""Verification: every byte, reference, row and chain that a retained epoch needs.

`verify` checks every byte of every record and block against its checksum, every reference against
the file it names, every row against the key group it is filed under, every chain of records for
gaps, every manifest against the records it sums up.  It finds as much as it can in one go and never
raises because of what it finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import read_batch, read_block
from godwit.checkpoint.chains import Chains
from godwit.checkpoint.collection import collected_since
from godwit.checkpoint.entries import is_entries_of
from godwit.checkpoint.evolution import FlowVersion, columns_of
from godwit.checkpoint.ownership import edit_problems, link_problems, load_with_digest
from godwit.checkpoint.records import (
    COMMITS,
    EDITS,
    FLOWS,
    IDENTITY,
    MANIFESTS,
    PLANS,
    RUNS,
    BlockRef,
    CommitRecord,
    EditRecord,
    FlowIdentity,
    Manifest,
    OutputRef,
    PhysicalPlan,
    RunRecord,
    SegmentRef,
    SnapshotRef,
    commit_path,
    edit_path,
    flow_path,
    manifest_path,
    number_in,
    plan_path,
)
from godwit.checkpoint.staged_output import decode_files
from godwit.model.errors import GodwitError
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["Finding", "VerificationReport", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One thing that is wrong with a checkpoint."""

    file: str  # path of the file within the checkpoint
    problem: str  # what is wrong
    remedy: str  # what can be done about it


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """Result of `verify`."""

    # everything that is wrong, ordered by file; empty if the checkpoint is whole
    findings: tuple[Finding, ...]
    # retained epochs, first and last; ``None`` if none is committed or it is not known
    epochs: tuple[int, int] | None
    # records, blocks, checked_bytes: how many records and blocks were checked, and their size
    records: int
    blocks: int
    checked_bytes: int
    # files that a running query collected before they were checked: nothing needs them any more
    collected: int = 0

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.findings


_RESTORE = "Restore this file from a copy of the checkpoint, or start with a new checkpoint."
_ONE_HISTORY = (
    "Files of two checkpoints lie in one directory: restore the whole directory from one copy."
)
_SPARK_COMMITS = "spark/commits"
_REPORT = "This is an error in Godwit: please report it with this text."

IntArray = npt.NDArray[np.int64]

_T = TypeVar("_T")


def verify(storage: CheckpointStorage) -> VerificationReport:
    """Check everything that the retained epochs need.

    Never raises because of the checkpoint: what is wrong is in the report.
    """
    return _Verification(storage).run()


class _Verification:
    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage
        self.findings: set[Finding] = set()
        self.records = self.checked_bytes = 0
        self.identity: FlowIdentity | None = None
        self.num_key_groups: int | None = None
        self.digests: dict[str, str] = {}
        self.flows: dict[int, FlowVersion | None] = {}
        self.plans: dict[int, PhysicalPlan | None] = {}
        self.checked: dict[BlockRef, pa.Schema | None] = {}

    def run(self) -> VerificationReport:
        identity = self.identity = self.load(IDENTITY, FlowIdentity)
        self.num_key_groups = None if identity is None else identity.num_key_groups
        for _, path in self.numbered(RUNS):
            self.load(path, RunRecord)
        self.flows = {n: self.load(path, FlowVersion) for n, path in self.numbered(FLOWS)}
        self.plans = {n: self.load(path, PhysicalPlan) for n, path in self.numbered(PLANS)}
        edits = [self.load(path, EditRecord) for _, path in self.numbered(EDITS)]
        commits = {n: self.load(path, CommitRecord) for n, path in self.numbered(COMMITS)}
        manifests = {n: self.load(path, Manifest) for n, path in self.numbered(MANIFESTS)}
        epochs = self.check_epochs(commits, manifests)
        readable = [record for _, record in sorted(commits.items()) if record is not None]
        if readable:
            flow = readable[-1].flow
            self.check_edits([edit for edit in edits if edit is not None and edit.flow == flow])
        # A query may be running, which retains its last epochs and collects the others.
        collected = collected_since(self.storage, {finding.file for finding in self.findings})
        return VerificationReport(
            findings=tuple(sorted(f for f in self.findings if f.file not in collected)),
            epochs=epochs,
            records=self.records,
            blocks=len(self.checked),
            checked_bytes=self.checked_bytes,
            collected=len(collected),
        )

    def find(self, file: str, problem: str, remedy: str) -> None:
        self.findings.add(Finding(file=file, problem=problem, remedy=remedy))

    def numbered(self, directory: str) -> list[tuple[int, str]]:
        try:
            paths = [entry.path for entry in self.storage.list(directory)]
        except GodwitError as error:
            self.find(directory, error.message, error.remedy)
            return []
        return [(n, path) for path in paths if (n := number_in(path)) is not None]

    def load(self, path: str, kind: type[_T]) -> _T | None:
        try:
            value, self.digests[path] = load_with_digest(self.storage, path, kind)
        except GodwitError as error:
            self.find(path, error.message, error.remedy)
            return None
        self.records += 1
        return value

    def check_epochs(
        self, commits: dict[int, CommitRecord | None], manifests: dict[int, Manifest | None]
    ) -> tuple[int, int] | None:
        """Walk from the manifest that the retained epochs start from to the latest record."""
        last = max([*commits, *manifests], default=-1)
        if last < 0:
            self.check_that_none_was_carried_out()
            return None
        # The latest record that can be read says what is retained.
        readable = [record for _, record in sorted(commits.items()) if record is not None]
        floor = readable[-1].retained_from if readable else last
        summary = manifests.get(last)
        if summary is not None:  # of a repair that took epochs back
            floor = max(floor, summary.retained_from)
        anchor = self.check_manifests_exist(readable, floor, manifests)
        chains: Chains | None = None
        if anchor < 0:
            chains = None if self.num_key_groups is None else Chains(self.num_key_groups)
        start = max(anchor, 0)
        self.check_records_exist(start, commits, last)
        self.check_history(start, commits, manifests)
        for epoch in sorted(epoch for epoch in {*commits, *manifests} if epoch >= start):
            record = commits.get(epoch)
            if epoch > anchor:
                chains = self.advance(chains, record)
            if epoch in manifests and epoch >= anchor:
                chains = self.check_manifest(chains, manifests[epoch])
            if epoch == floor and chains is not None:
                self.check_flows(chains)
                self.check_segments(chains.segments())
                self.check_snapshots(chains.snapshots())
            if epoch >= floor and record is not None:
                self.check_named(record)
                self.check_plan(record)
                self.check_segments(record.segments)
                self.check_snapshots(record.snapshots)
                self.check_outputs(record.outputs)
        if chains is not None:
            self.check_columns(chains)
        return floor, last

    def check_history(
        self,
        first: int,
        commits: dict[int, CommitRecord | None],
        manifests: dict[int, Manifest | None],
    ) -> None:
        """Find records, and manifests, that are of another history than the ones before them."""
        for epoch in sorted(epoch for epoch in {*commits, *manifests} if epoch >= first):
            record, manifest = commits.get(epoch), manifests.get(epoch)
            digest = self.digests.get(commit_path(epoch), "")
            if manifest is not None and manifest.record and digest not in {"", manifest.record}:
                problem = f"It sums up another record of epoch {epoch} than the one that is here."
                self.find(manifest_path(epoch), problem, _ONE_HISTORY)
            if record is None or self.identity is None:
                continue
            noted = manifests.get(epoch - 1)
            digest = self.digests.get(commit_path(epoch - 1), "" if noted is None else noted.record)
            for problem in link_problems(
                self.identity, record, before=commits.get(epoch - 1), digest=digest
            ):
                self.find(commit_path(epoch), f"The record is wrong: {problem}.", _ONE_HISTORY)

    def check_edits(self, edits: Sequence[EditRecord]) -> None:
        """Find edits of the latest flow version that were written for another checkpoint."""
        if self.identity is None:
            return
        previous = ""
        for edit in edits:
            for problem in edit_problems(
                self.identity,
                edit,
                record=self.digests.get(commit_path(edit.epoch), ""),
                flow_version=self.digests.get(flow_path(edit.flow), edit.flow_digest),
                previous=previous,
            ):
                self.find(edit_path(edit.number), f"The edit is wrong: {problem}.", _ONE_HISTORY)
            previous = self.digests[edit_path(edit.number)]

    def check_that_none_was_carried_out(self) -> None:
        """Find that no epoch is there, though Spark has noted the end of one."""
        try:
            names = [entry.path.rpartition("/")[2] for entry in self.storage.list(_SPARK_COMMITS)]
        except GodwitError as error:
            self.find(_SPARK_COMMITS, error.message, error.remedy)
            return
        if any(name.isdecimal() for name in names):
            problem = "No record is there, though Spark has noted that micro-batches were done."
            self.find(COMMITS, problem, _RESTORE)

    def check_named(self, record: CommitRecord) -> None:
        """Find flow versions and plans of another history than the record that names them."""
        for path, digest, what in (
            (flow_path(record.flow), record.flow_digest, "flow version"),
            (plan_path(record.plan), record.plan_digest, "physical plan"),
        ):
            if digest and self.digests.get(path, digest) != digest:
                problem = f"It is another {what} than the one that retained epochs ran under."
                self.find(path, problem, _ONE_HISTORY)

    def check_plan(self, record: CommitRecord) -> None:
        if record.plan not in self.plans:
            problem = f"It is missing; epoch {record.epoch} ran under it."
            self.find(plan_path(record.plan), problem, _RESTORE)

    def check_records_exist(self, first: int, commits: Collection[int], last: int) -> None:
        """Find the records that are missing from `first` on, a run of them at a time.

        A number costs nothing to write, so the work goes by the files there are.
        """
        for epoch in [*sorted(epoch for epoch in commits if epoch >= first), last + 1]:
            if epoch > first:
                some = (
                    f"record of epoch {first} is"
                    if epoch == first + 1
                    else (f"records of epochs {first} to {epoch - 1} are")
                )
                problem = f"The {some} missing, though epoch {last} is committed."
                self.find(commit_path(first), problem, _RESTORE)
            first = epoch + 1

    def check_manifests_exist(
        self, records: list[CommitRecord], floor: int, manifests: dict[int, Manifest | None]
    ) -> int:
        """Return the epoch of the manifest that `floor` starts from; -1 for none."""
        named = {record.manifest for record in records if record.epoch >= floor}
        anchor = max((m for m in (*named, *manifests) if m <= floor), default=-1)
        for epoch in sorted(named - manifests.keys()):
            if epoch >= max(anchor, 0):
                problem = f"The manifest of epoch {epoch} is missing, though records name it."
                self.find(manifest_path(epoch), problem, _RESTORE)
        return anchor

    def advance(self, chains: Chains | None, record: CommitRecord | None) -> Chains | None:
        if chains is None or record is None or record.epoch != chains.epoch + 1:
            return None
        if not self.under_its_flow(chains, record):
            return None
        problems = list(chains.problems(record))
        for problem in problems:
            self.find(commit_path(record.epoch), f"The record is wrong: {problem}.", _REPORT)
        if problems:
            return None
        chains.apply(record)
        return chains

    def check_flows(self, chains: Chains) -> None:
        """Check that every flow version is there through which something is read."""
        number, first = chains.flow, min(chains.written_under())
        while number >= first:
            version = self.flows.get(number)
            if version is None:
                self.find_flow(number)
                return
            number = version.previous

    def find_flow(self, number: int) -> None:
        if number not in self.flows:  # otherwise what is wrong with it was found
            problem = "The flow version is missing, though state was written under it."
            self.find(flow_path(number), problem, _RESTORE)

    def under_its_flow(self, chains: Chains, record: CommitRecord) -> bool:
        """Bring chains to the flow version of a record; whether that is known."""
        if record.flow != chains.flow:
            version = self.flows.get(record.flow)
            if version is None:
                self.find_flow(record.flow)
                return False
            chains.become(record.flow, version)
        return True

    def check_manifest(self, chains: Chains | None, manifest: Manifest | None) -> Chains | None:
        """Compare a manifest with the records; where they are unknown, go on from it."""
        if manifest is None:
            return chains
        if chains is None:
            if self.num_key_groups in {None, manifest.num_key_groups}:
                return Chains.restore(manifest)
            self.find(
                manifest_path(manifest.epoch),
                f"It has {manifest.num_key_groups} key groups, not {self.num_key_groups}.",
                _RESTORE,
            )
            return None
        if chains.manifest() != msgspec.structs.replace(manifest, record="", retained_from=0):
            self.find(
                manifest_path(manifest.epoch),
                f"The manifest of epoch {manifest.epoch} does not agree with the records.",
                _REPORT,
            )
        return chains

    def batch(self, ref: BlockRef) -> pa.RecordBatch | None:
        """Read a block; ``None`` if it was checked before or cannot be read, which is then found.

        Only its schema is kept: the retained state may be larger than memory.
        """
        if ref in self.checked:
            return None
        self.checked[ref] = None
        try:
            batch = read_batch(self.storage, ref)
        except GodwitError as error:
            self.find(ref.file, error.message, error.remedy)
            return None
        self.checked[ref] = batch.schema.remove_metadata()
        self.checked_bytes += ref.length
        return batch

    def check_segments(self, segments: Iterable[SegmentRef]) -> None:
        for segment in segments:
            batch = self.batch(segment.block)
            if batch is None:
                continue
            ends = (0, *segment.row_ends)
            where = (
                f"The {segment.kind} segment of '{segment.id}', epoch {segment.epoch}, lane "
                f"{segment.lane}, at {segment.block.offset}"
            )
            if ends[-1] != batch.num_rows:
                problem = f"{where} has {batch.num_rows} rows, not {ends[-1]}."
                self.find(segment.block.file, problem, _REPORT)
            elif segment.kind == "changes" and self.has_hashes(segment.block, batch, where):
                filed = np.repeat(np.array(segment.key_groups, np.int64), np.diff(ends))
                self.check_hashes(segment.block, batch, filed, where)

    def check_snapshots(self, snapshots: Iterable[SnapshotRef]) -> None:
        for snapshot in snapshots:
            batch = self.batch(snapshot.block)
            if batch is None:
                continue
            where = (
                f"The snapshot of key group {snapshot.key_group} of '{snapshot.id}' at "
                f"{snapshot.block.offset}"
            )
            if snapshot.rows != batch.num_rows:
                problem = f"{where} has {batch.num_rows} rows, not {snapshot.rows}."
                self.find(snapshot.block.file, problem, _REPORT)
            if self.has_hashes(snapshot.block, batch, where):
                filed = np.full(batch.num_rows, snapshot.key_group, np.int64)
                self.check_hashes(snapshot.block, batch, filed, where)

    def check_outputs(self, outputs: Iterable[OutputRef]) -> None:
        for output in outputs:
            if output.kind == "files":
                rows = self.rows_in_files(output.block)
            else:
                batch = self.batch(output.block)
                rows = None if batch is None else batch.num_rows
            if rows is not None and rows != output.rows:
                self.find(
                    output.block.file,
                    f"The output for {output.sink!r} at {output.block.offset} has {rows} rows, "
                    f"not {output.rows}.",
                    _REPORT,
                )

    def rows_in_files(self, ref: BlockRef) -> int | None:
        """Rows in files that a block describes; ``None`` if it does not, which is then found."""
        try:
            return sum(file.rows for file in decode_files(read_block(self.storage, ref)).files)
        except GodwitError as error:
            self.find(ref.file, error.message, error.remedy)
            return None

    def has_hashes(self, ref: BlockRef, batch: pa.RecordBatch, where: str) -> bool:
        """Return whether the first column is one of hashes."""
        column = batch.column(0) if batch.num_columns else None
        if column is None or column.type != pa.int64() or column.null_count:
            self.find(ref.file, f"{where} has no column of hashes.", _REPORT)
            return False
        return True

    def check_hashes(
        self, ref: BlockRef, batch: pa.RecordBatch, filed: IntArray, where: str
    ) -> None:
        """Compare the key group of each row's hash with the one it is filed under."""
        if self.num_key_groups is None:
            return
        actual = key_groups_of(batch.column(0).to_numpy(), self.num_key_groups)
        wrong = np.flatnonzero(actual != filed)
        if len(wrong):
            self.find(
                ref.file,
                f"{where} has {len(wrong)} rows in the wrong key group, the first in row "
                f"{wrong[0]}: it is filed under {filed[wrong[0]]} and belongs to "
                f"{actual[wrong[0]]}.",
                _REPORT,
            )

    def check_columns(self, chains: Chains) -> None:
        """Find state whose blocks do not have the columns that their flow version describes."""
        changes = [segment for segment in chains.segments() if segment.kind == "changes"]
        written = [(ref.id, ref.flow, ref.block) for ref in changes]
        written += [(ref.id, ref.flow, ref.block) for ref in chains.snapshots()]
        for state, flow, block in written:
            schema = self.checked.get(block)
            version = self.flows.get(flow)
            if schema is None or version is None:
                continue
            operator = version.operators.get(state.operator)
            if operator is None or state.state not in operator.states:
                problem = f"Flow version {flow} has no state '{state}', which was written under it."
                self.find(flow_path(flow), problem, _REPORT)
                continue
            described = operator.states[state.state]
            expected = (*operator.keys, *described.entries, *described.columns)
            if not is_entries_of(columns_of(schema), expected):
                self.find(
                    block.file,
                    f"State of '{state}' at {block.offset} has other columns than flow version "
                    f"{flow} says: {schema.names}, or their types differ.",
                    _REPORT,
                )
