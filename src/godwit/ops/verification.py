"""Verification of a checkpoint, and repair of its records without guessing.

`verify` checks every byte of every record and block that a retained epoch needs against its
checksum, every reference against the file it names, every row against its key group, every chain of
records for gaps, every manifest against its records.  It reports all problems together and does not
raise them.  `start_problems` checks only for problems that prevent a start: it opens the checkpoint
as a start does.

`plan_record_repair`: after a power failure, or an accident with the directory, a checkpoint can be
unusable although no committed data are lost; the plan, which is shown before it is carried out,
repairs it.  Invariant: a step only restores content that the records determine, or sets aside files
that they do not need, in ``set-aside/``; files that an epoch needs are not removed or changed.  If
a record between others is lost, the epochs after it cannot be read: they are taken back, by name,
and only if all files of the epoch before are intact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from godwit.checkpoint.blocks import read_batch, read_block
from godwit.checkpoint.chains import Chains
from godwit.checkpoint.collection import collected_since
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import is_entries_of
from godwit.checkpoint.evolution import FlowVersion, columns_of
from godwit.checkpoint.framing import encode_record, load_record, load_with_digest
from godwit.checkpoint.ownership import (
    edit_problems,
    is_taken_back,
    key_group_problems,
    link_problems,
)
from godwit.checkpoint.records import (
    BLOCKS,
    COMMITS,
    EDITS,
    FLOWS,
    IDENTITY,
    KEPT,
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
    kept_path,
    manifest_path,
    number_in,
    padded,
    plan_path,
)
from godwit.checkpoint.repair import RepairStep
from godwit.model.errors import CheckpointError, GodwitError
from godwit.model.key_groups import key_groups_of
from godwit.plan.staging import decode_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from godwit.checkpoint.storage import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A problem of a checkpoint, with its file and remedy."""

    file: str  # path of the file within the checkpoint
    problem: str
    remedy: str


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
        """True if there are no findings."""
        return not self.findings


_RESTORE = "Restore this file from a copy of the checkpoint, or start with a new checkpoint."
_ONE_HISTORY = (
    "One directory has files of two checkpoints: restore the whole directory from one copy."
)
_SPARK_COMMITS = "spark/commits"
_REPORT = "This is an error in Godwit: please report it with this text."

_T = TypeVar("_T")


def verify(
    storage: CheckpointStorage, on_block: Callable[[int], None] = lambda _: None
) -> VerificationReport:
    """Verify everything that the retained epochs need.

    Findings are in the report, nothing is raised.

    `on_block`: called with the bytes of each block, to show progress.
    """
    return _Verification(storage, on_block).run()


class _Verification:
    """Verifies one checkpoint; methods add findings, and continue after them."""

    def __init__(self, storage: CheckpointStorage, on_block: Callable[[int], None]) -> None:
        self.storage, self.on_block = storage, on_block
        self.findings: set[Finding] = set()
        self.records = self.checked_bytes = 0
        self.identity: FlowIdentity | None = None
        self.num_key_groups: int | None = None
        self.digests: dict[str, str] = {}
        self.flows: dict[int, FlowVersion | None] = {}
        self.plans: dict[int, PhysicalPlan | None] = {}
        self.checked: dict[BlockRef, pa.Schema | None] = {}

    def run(self) -> VerificationReport:
        """Verify the whole checkpoint, and return the report."""
        try:
            self.identity = load_record(self.storage, IDENTITY, FlowIdentity)
            self.num_key_groups = self.identity.num_key_groups
            self.records += 1
        except GodwitError as error:
            self.add_error(IDENTITY, error)
        self.read_all(RUNS, RunRecord)
        edits = self.read_all(EDITS, EditRecord).values()
        self.flows = self.read_all(FLOWS, FlowVersion)
        self.plans = self.read_all(PLANS, PhysicalPlan)
        commits, manifests = (
            self.read_all(COMMITS, CommitRecord),
            self.read_all(MANIFESTS, Manifest),
        )
        if (identity := self.identity) is not None and identity.origins:
            for number, record in [*commits.items()]:
                if record is not None and is_taken_back(identity, record):
                    del commits[number]  # the next start sets it aside
                    manifests.pop(number, None)
        epochs = self.check_epochs(commits, manifests)
        self.check_kept_epochs()
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

    def add_finding(self, file: str, problem: str, remedy: str) -> None:
        """Add a finding about a file: the problem and the remedy, as text."""
        self.findings.add(Finding(file=file, problem=problem, remedy=remedy))

    def add_error(self, file: str, error: GodwitError) -> None:
        """Add a finding from an error about a file."""
        self.add_finding(file, error.message, error.remedy)

    def read_all(self, directory: str, kind: type[_T]) -> dict[int, _T | None]:
        """Return number → record of a directory; ``None``, and a finding, if one is unreadable."""
        try:
            records = _load_all(self.storage, directory, kind, self.digests, self.add_error)
        except GodwitError as error:
            self.add_error(directory, error)
            return {}
        self.records += sum(record is not None for record in records.values())
        return records

    def check_epochs(
        self, commits: dict[int, CommitRecord | None], manifests: dict[int, Manifest | None]
    ) -> tuple[int, int] | None:
        """Replay the records from the first manifest needed.

        Returns the first and the last retained epoch; ``None`` if there are none. `commits`,
        `manifests`: by epoch; ``None``: cannot be read.
        """
        last = max([*commits, *manifests], default=-1)
        if last < 0:
            self.check_spark_commits()
            return None
        # The latest readable record has the earliest retained epoch.
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
                chains = self.check_manifest(chains, manifests[epoch], record)
            if chains is not None:
                self.num_key_groups = chains.num_key_groups
            elif record is not None and record.num_key_groups:
                self.num_key_groups = record.num_key_groups
            if epoch == floor and chains is not None:
                self.check_flows(chains)
                self.check_segments(chains.segments())
                self.check_snapshots(chains.snapshots())
            if epoch >= floor and record is not None:
                self.check_references(record)
                self.check_segments(record.segments)
                self.check_snapshots(record.snapshots)
                self.check_outputs(record.outputs)
        if chains is not None:
            self.check_columns(chains)
        return floor, last

    def check_kept_epochs(self) -> None:
        """Replay each kept epoch, and check its record and blocks."""
        if not self.storage.list(KEPT):
            return
        try:
            log = CommitLog.open_read_only(self.storage)
            epochs_by_name = log.kept_epochs()
        except GodwitError as error:  # a damaged name; or what keeps the log closed is reported
            self.add_error(str(error.context.get("file", KEPT)), error)
            return
        for own in epochs_by_name.values():
            path = kept_path(own.name)
            try:
                chains, record = log.chains_at(own.epoch), log.record(own.epoch)
            except GodwitError as error:
                problem = f"Epoch {own.epoch} cannot be read: {error.message}"
                self.add_finding(path, problem, error.remedy)
                continue
            if log.digest(own.epoch) != own.record:
                problem = f"It belongs to a different record of epoch {own.epoch}."
                self.add_finding(path, problem, _ONE_HISTORY)
            self.num_key_groups = chains.num_key_groups
            self.check_segments(chains.segments())
            self.check_snapshots(chains.snapshots())
            self.check_outputs(record.outputs)

    def check_history(
        self,
        first: int,
        commits: dict[int, CommitRecord | None],
        manifests: dict[int, Manifest | None],
    ) -> None:
        """Add a finding for each record or manifest, from epoch `first` on, of another history."""
        for epoch in sorted(epoch for epoch in {*commits, *manifests} if epoch >= first):
            record, manifest = commits.get(epoch), manifests.get(epoch)
            digest = self.digests.get(commit_path(epoch), "")
            if manifest is not None and digest not in {"", manifest.record}:
                problem = f"It belongs to a different record of epoch {epoch}."
                self.add_finding(manifest_path(epoch), problem, _ONE_HISTORY)
            if record is None or self.identity is None:
                continue
            noted = manifests.get(epoch - 1)
            digest = self.digests.get(commit_path(epoch - 1), "" if noted is None else noted.record)
            for problem in link_problems(self.identity, record, digest=digest):
                self.add_finding(
                    commit_path(epoch), f"The record is invalid: {problem}.", _ONE_HISTORY
                )

    def check_edits(self, edits: Sequence[EditRecord]) -> None:
        """Add a finding for each edit that belongs to another checkpoint."""
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
                self.add_finding(
                    edit_path(edit.number), f"The edit is invalid: {problem}.", _ONE_HISTORY
                )
            previous = self.digests[edit_path(edit.number)]

    def check_spark_commits(self) -> None:
        """Add a finding if Spark has completed a micro-batch without a commit record."""
        try:
            names = [path.rpartition("/")[2] for path in self.storage.list(_SPARK_COMMITS)]
        except GodwitError as error:
            self.add_error(_SPARK_COMMITS, error)
            return
        if any(name.isdecimal() for name in names):
            problem = "There is no record, although Spark has recorded completed micro-batches."
            self.add_finding(COMMITS, problem, _RESTORE)

    def check_references(self, record: CommitRecord) -> None:
        """Add a finding if a record's flow version or plan is missing, or of another history."""
        for path, digest, kind in (
            (flow_path(record.flow), record.flow_digest, "flow version"),
            (plan_path(record.plan), record.plan_digest, "physical plan"),
        ):
            if self.digests.get(path, digest) != digest:
                problem = f"It is not the {kind} of the retained epochs."
                self.add_finding(path, problem, _ONE_HISTORY)
        if record.plan not in self.plans:
            problem = f"It is missing, but epoch {record.epoch} used it."
            self.add_finding(plan_path(record.plan), problem, _RESTORE)

    def check_records_exist(self, first: int, commits: Collection[int], last: int) -> None:
        """Add findings for commit records missing from epoch `first` to `last`, as ranges.

        The work depends on the number of files, not on the epoch numbers, which may be arbitrarily
        large.
        """
        for epoch in [*sorted(epoch for epoch in commits if epoch >= first), last + 1]:
            if epoch > first:
                some = (
                    f"record of epoch {first} is"
                    if epoch == first + 1
                    else (f"records of epochs {first} to {epoch - 1} are")
                )
                problem = f"The {some} missing, although epoch {last} is committed."
                self.add_finding(commit_path(first), problem, _RESTORE)
            first = epoch + 1

    def check_manifests_exist(
        self, records: list[CommitRecord], floor: int, manifests: dict[int, Manifest | None]
    ) -> int:
        """Add findings for missing manifests; return the epoch of the manifest to start from.

        -1 if none is needed or available. `floor`: the earliest retained epoch.
        """
        named = {record.manifest for record in records if record.epoch >= floor}
        anchor = max((m for m in (*named, *manifests) if m <= floor), default=-1)
        for epoch in sorted(named - manifests.keys()):
            if epoch >= max(anchor, 0):
                problem = f"The manifest of epoch {epoch} is missing, although records refer to it."
                self.add_finding(manifest_path(epoch), problem, _RESTORE)
        return anchor

    def advance(self, chains: Chains | None, record: CommitRecord | None) -> Chains | None:
        """Apply a commit record to chains; ``None`` if the record does not continue them."""
        if chains is None or record is None or record.epoch != chains.epoch + 1:
            return None
        if not self.upgrade_chains(chains, record):
            return None
        problems = list(chains.problems(record))
        for problem in problems:
            self.add_finding(
                commit_path(record.epoch), f"The record is invalid: {problem}.", _REPORT
            )
        if problems:
            return None
        chains.apply(record)
        return chains

    def check_flows(self, chains: Chains) -> None:
        """Add a finding for each missing flow version that wrote a part of the chains."""
        number, first = chains.flow, min(chains.written_under())
        while number >= first:
            version = self.flows.get(number)
            if version is None:
                self.add_missing_flow(number)
                return
            number = version.previous

    def add_missing_flow(self, number: int) -> None:
        """Add the finding that flow version `number` is missing."""
        if number not in self.flows:  # otherwise its problem was reported
            problem = "The flow version is missing, although state was written with it."
            self.add_finding(flow_path(number), problem, _RESTORE)

    def upgrade_chains(self, chains: Chains, record: CommitRecord) -> bool:
        """Upgrade chains to a commit record's flow version; return ``False`` if it is missing."""
        if record.flow != chains.flow:
            version = self.flows.get(record.flow)
            if version is None:
                self.add_missing_flow(record.flow)
                return False
            chains.upgrade(record.flow, version)
        return True

    def check_manifest(
        self, chains: Chains | None, manifest: Manifest | None, record: CommitRecord | None
    ) -> Chains | None:
        """Compare a manifest with the replayed chains, or, without any, with its epoch's `record`.

        Return them, or the manifest's if there are none.
        """
        if manifest is None:
            return chains
        if chains is None:
            if self.identity is None or record is None:
                return Chains.restore(manifest)
            for problem in key_group_problems(self.identity, manifest, record):
                path = manifest_path(manifest.epoch)
                self.add_finding(path, f"The manifest is invalid: {problem}.", _RESTORE)
                return None
            return Chains.restore(manifest)
        if chains.manifest() != replace(manifest, record="", retained_from=0):
            self.add_finding(
                manifest_path(manifest.epoch),
                f"The manifest of epoch {manifest.epoch} contradicts the records.",
                _REPORT,
            )
        return chains

    def read_unseen(self, ref: BlockRef) -> pa.RecordBatch | None:
        """Read a block; ``None`` if it was read before, or is unreadable, which adds a finding.

        Only its schema is kept: the retained state may be larger than memory.
        """
        if ref in self.checked:
            return None
        self.checked[ref] = None
        self.on_block(padded(ref.length))
        try:
            batch = read_batch(self.storage, ref)
        except GodwitError as error:
            self.add_error(ref.file, error)
            return None
        self.checked[ref] = batch.schema.remove_metadata()
        self.checked_bytes += ref.length
        return batch

    def check_segments(self, segments: Iterable[SegmentRef]) -> None:
        """Read segments; add findings for wrong rows, checksums and key groups."""
        for segment in segments:
            where = (
                f"The {segment.kind} segment of '{segment.id}', epoch {segment.epoch}, lane "
                f"{segment.lane}, at {segment.block.offset}"
            )
            filed_under = segment.key_groups if segment.kind == "changes" else None
            self.check_rows(segment.block, where, segment.row_ends, filed_under)

    def check_snapshots(self, snapshots: Iterable[SnapshotRef]) -> None:
        """Read snapshots; add findings for wrong rows, checksums and key groups."""
        for snapshot in snapshots:
            where = (
                f"The snapshot of key group {snapshot.key_group} of '{snapshot.id}' at "
                f"{snapshot.block.offset}"
            )
            self.check_rows(snapshot.block, where, (snapshot.rows,), (snapshot.key_group,))

    def check_rows(
        self, ref: BlockRef, where: str, row_ends: Sequence[int], filed_under: Sequence[int] | None
    ) -> None:
        """Compare a block's rows and their key groups with the reference to the block.

        `row_ends`: end of each key group's rows. `filed_under`: these key groups; ``None`` if rows
        have no hashes. `where`: text for findings.
        """
        batch = self.read_unseen(ref)
        if batch is None:
            return
        ends = (0, *row_ends)
        if ends[-1] != batch.num_rows:
            problem = f"{where} has {batch.num_rows} rows, not {ends[-1]}."
            self.add_finding(ref.file, problem, _REPORT)
            if len(row_ends) > 1:  # whose the rows are is not known
                return
            ends = (0, batch.num_rows)
        if filed_under is None:
            return
        column = batch.column(0) if batch.num_columns else None
        if column is None or column.type != pa.int64() or column.null_count:
            self.add_finding(ref.file, f"{where} has no column of hashes.", _REPORT)
            return
        if self.num_key_groups is None:
            return
        filed = np.repeat(np.array(filed_under, np.int64), np.diff(ends))
        actual = key_groups_of(column.to_numpy(), self.num_key_groups)
        misplaced = np.flatnonzero(actual != filed)
        if len(misplaced):
            self.add_finding(
                ref.file,
                f"{where} has {len(misplaced)} rows in the wrong key group, the first in row "
                f"{misplaced[0]}: it is stored in {filed[misplaced[0]]} but belongs to "
                f"{actual[misplaced[0]]}.",
                _REPORT,
            )

    def check_outputs(self, outputs: Iterable[OutputRef]) -> None:
        """Read staged output; add findings for wrong checksums and numbers of rows."""
        for output in outputs:
            if output.kind == "files":
                self.on_block(padded(output.block.length))
                try:
                    block = read_block(self.storage, output.block)
                    rows = sum(file.rows for file in decode_files(block).files)
                except GodwitError as error:
                    self.add_error(output.block.file, error)
                    continue
            else:
                batch = self.read_unseen(output.block)
                rows = output.rows if batch is None else batch.num_rows
            if rows != output.rows:
                self.add_finding(
                    output.block.file,
                    f"The output for {output.sink!r} at {output.block.offset} has {rows} rows, "
                    f"not {output.rows}.",
                    _REPORT,
                )

    def check_columns(self, chains: Chains) -> None:
        """Add a finding for each block whose columns are not those of its flow version."""
        changes = [segment for segment in chains.segments() if segment.kind == "changes"]
        written = [(ref.id, ref.flow, ref.block) for ref in changes]
        written += [(ref.id, ref.flow, ref.block) for ref in chains.snapshots()]
        for state, flow, block in written:
            schema = self.checked.get(block)
            version = self.flows.get(flow)
            if schema is None or version is None:
                continue
            operator = version.operator(state.operator)  # one that has left, if it was regrouped
            if operator is None or state.state not in operator.states:
                problem = f"Flow version {flow} has no state '{state}', which was written with it."
                self.add_finding(flow_path(flow), problem, _REPORT)
                continue
            described = operator.states[state.state]
            expected = (*operator.keys, *described.entries, *described.columns)
            if not is_entries_of(columns_of(schema), expected):
                self.add_finding(
                    block.file,
                    f"State of '{state}' at {block.offset} has columns or types that differ from "
                    f"flow version {flow}: {schema.names}.",
                    _REPORT,
                )


def _load_all(
    storage: CheckpointStorage,
    directory: str,
    kind: type[_T],
    digests: dict[str, str],
    refused: Callable[[str, GodwitError], None],
) -> dict[int, _T | None]:
    """Return number → record of a directory; ``None`` for an unreadable record.

    `digests`: filled with path → digest of the readable ones. `refused`: called with path and error
    of the others.
    """
    records: dict[int, _T | None] = {}
    for path in storage.list(directory):
        number = number_in(path)
        if number is not None:
            records[number] = None
            try:
                records[number], digests[path] = load_with_digest(storage, path, kind)
            except GodwitError as error:
                refused(path, error)
    return records


def start_problems(storage: CheckpointStorage) -> tuple[Finding, ...]:
    """Find reasons why a query could not start from the checkpoint.

    Reads the records that a start reads, and lists directories; blocks are not read.
    """
    try:
        log = CommitLog.open_read_only(storage)
        if log.latest is None:
            return ()
        chains, _ = log.chains, log.physical_plan
        log.versions_since(min(chains.written_under()))
        log.edits()
        blocks = {*chains.blocks(), *log.latest.blocks()}
        return tuple(
            Finding(file=block.file, problem=problem, remedy=_RESTORE)
            for block, problem in _missing_blocks(storage, blocks)
        )
    except GodwitError as error:
        finding = Finding(
            file=str(error.context.get("file", "")), problem=error.message, remedy=error.remedy
        )
        return (finding,)


def _missing_blocks(
    storage: CheckpointStorage, blocks: Iterable[BlockRef]
) -> Iterator[tuple[BlockRef, str]]:
    """Yield, per file that is missing or too short, one of its blocks and the problem as text."""
    sizes = storage.list(BLOCKS) | storage.list(COMMITS)
    seen: set[str] = set()
    for block in sorted(blocks, key=lambda block: (block.file, -block.offset)):
        if block.file in seen:
            continue
        seen.add(block.file)
        size = sizes.get(block.file)
        if size is None:
            yield block, "It is missing, but the latest epoch needs it."
        elif size < block.offset + padded(block.length):
            yield block, f"It has {size} bytes, fewer than the latest epoch needs."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRepair:
    """Plan to repair Godwit's own records."""

    steps: tuple[RepairStep, ...]  # in the order in which they are done
    # the committed records that stay, in order of epochs; empty if none can be read
    records: tuple[CommitRecord, ...]
    # committed and delivered epochs that are taken back, since a record before them is lost; Spark
    # reads their rows again
    taken_back: tuple[int, ...] = ()


def plan_record_repair(storage: CheckpointStorage, back_to: int | None = None) -> RecordRepair:
    """Return a plan to repair the records that keep a checkpoint from being opened.

    `back_to`: the epoch before a damaged last record, to give up the epoch of that record. Raises
    `CheckpointError` if it is another epoch.
    """
    identity = load_record(storage, IDENTITY, FlowIdentity)
    return _RecordPlan(storage, identity, back_to).plan()


class _RecordPlan:
    """Builds the steps that repair a checkpoint's commit records and manifests."""

    def __init__(
        self, storage: CheckpointStorage, identity: FlowIdentity, back_to: int | None
    ) -> None:
        self.storage = storage
        self.identity = identity
        self.back_to = back_to
        self.digests: dict[str, str] = {}
        self.steps: list[RepairStep] = []
        load = partial(_load_all, storage, digests=self.digests, refused=lambda *_: None)
        self.commits: dict[int, CommitRecord | None] = load(COMMITS, CommitRecord)
        self.manifests: dict[int, Manifest | None] = load(MANIFESTS, Manifest)

    def plan(self) -> RecordRepair:
        """Return the repair of the checkpoint's commit records and manifests.

        Nothing is changed yet.
        """
        last, chains = self._last_reachable()
        genuine = [
            number_
            for number_, record in self.commits.items()
            if number_ > last and self._belongs_here(record)
        ]
        if self.back_to is not None:
            self._check_back_to(last)
            genuine = [number_ for number_ in self.commits if number_ > last]
        taken_back = tuple(range(last + 1, max(genuine, default=last) + 1))
        problem = self._end_problem(last, chains, taken_back)
        if problem is not None:
            self._add_step(*problem, "none")
            return RecordRepair(steps=tuple(self.steps), records=())
        if chains is None:
            return RecordRepair(steps=tuple(self.steps), records=())
        problem_of_later = f"It is later than epoch {last}, the last one that can be replayed."
        for path_of, numbers in ((commit_path, self.commits), (manifest_path, self.manifests)):
            for number in sorted(number for number in numbers if number > last):
                self._add_step(path_of(number), problem_of_later, "set aside")
        records = [
            record_
            for number_, record_ in sorted(self.commits.items())
            if number_ <= last and record_ is not None
        ]
        unreadable = {
            number_
            for number_, manifest in self.manifests.items()
            if number_ <= last and (manifest is None or not self._matches_record(manifest))
        }
        named_manifests = {records[-1].manifest} - {-1, *self.manifests}
        for number in sorted(unreadable | named_manifests):
            self._rewrite_manifest(number)
        self._plan_manifest(chains, records[-1])
        return RecordRepair(steps=tuple(self.steps), records=tuple(records), taken_back=taken_back)

    def _check_back_to(self, last: int) -> None:
        """Raise `CheckpointError` if the checkpoint cannot go back to the requested epoch.

        `last`: the last epoch that can be replayed.
        """
        is_damaged = self.commits.get(last + 1, ...) is None
        if self.back_to != last or not is_damaged or last < 0:
            can = f"only to epoch {last}" if is_damaged and last >= 0 else "to no epoch"
            raise CheckpointError(
                f"The checkpoint cannot be taken back to epoch {self.back_to}, {can}.",
                remedy="An epoch can be given up if its commit record is the last one, and damaged."
                " To go back further, start from a copy of the checkpoint; the state of epochs that"
                " are retained can be read by gw.read_state(epoch=...).",
            )

    def _plan_manifest(self, chains: Chains, latest: CommitRecord) -> None:
        """Add a first step that writes a manifest, if epochs set aside retained fewer epochs.

        The manifest of `latest`, the last epoch that stays, then has their `retained_from`; other
        steps for its file are dropped.
        """
        later = (record for number, record in self.commits.items() if number > latest.epoch)
        retained_from = max(
            (r.retained_from for r in later if r and self._belongs_here(r)), default=0
        )
        if self.back_to is not None:  # the damaged record's earliest retained epoch is unknown
            retained_from = latest.epoch
        noted = self.manifests.get(latest.epoch)
        if retained_from <= max(latest.retained_from, 0 if noted is None else noted.retained_from):
            return
        path = manifest_path(latest.epoch)
        self.steps = [step for step in self.steps if step.path != path]
        self.steps.insert(
            0,  # before its records are set aside
            RepairStep(
                path=path,
                problem=f"Epochs before {retained_from} can no longer be read: the removed "
                "epochs did not retain them.",
                action="write",
                content=encode_record(
                    replace(
                        chains.manifest(),
                        record=self.digests[commit_path(latest.epoch)],
                        retained_from=min(retained_from, latest.epoch),
                    )
                ),
            ),
        )

    def _last_reachable(self) -> tuple[int, Chains | None]:
        """Return the last epoch that can be replayed from manifests and records, and its chains.

        -1 and ``None`` without one.
        """
        anchors = [n for n, manifest in self.manifests.items() if manifest is not None]
        reached = [c for anchor in (*anchors, -1) if (c := self._replay_from(anchor)) is not None]
        chains = max(reached, key=lambda chains: chains.epoch, default=None)
        if chains is None or chains.epoch < 0:
            return -1, None
        return chains.epoch, chains

    def _end_problem(
        self, last: int, chains: Chains | None, taken_back: tuple[int, ...]
    ) -> tuple[str, str] | None:
        """Return the file and the problem for which the repair cannot end with epoch `last`.

        ``None`` if it can. `chains`: as of that epoch. `taken_back`: the committed epochs after it.
        """
        following = last + 1
        if last >= 0 and self.commits.get(last) is None:
            return commit_path(last), self._damage_of(last)
        if chains is None:
            problem = "There is neither a manifest nor epoch 0 from which to replay records."
            return (COMMITS, problem) if self.commits else None
        if not taken_back:
            if self.commits.get(following, ...) is None:
                return commit_path(following), self._damage_of(following)
            return None
        collected = [block.file for block, _ in _missing_blocks(self.storage, chains.blocks())]
        for file in (*collected, *self._collected_records(chains)):
            problem = (
                f"{self._damage_of(following)} The checkpoint cannot go back to epoch {last}: "
                f"{file} was deleted as garbage."
            )
            return commit_path(following), problem
        return None

    def _collected_records(self, chains: Chains) -> Iterator[str]:
        """Yield the paths of unreadable plans and flow versions that the epoch of `chains` has."""
        record = self.commits[chains.epoch]
        if record is not None:
            try:
                load_record(self.storage, plan_path(record.plan), PhysicalPlan)
            except GodwitError:
                yield plan_path(record.plan)
        number, first = chains.flow, min(chains.written_under())
        while number >= max(first, 0):
            try:
                number = load_record(self.storage, flow_path(number), FlowVersion).previous
            except GodwitError:
                yield flow_path(number)
                return

    def _damage_of(self, epoch: int) -> str:
        """Return, as text, the damage of an epoch's commit record."""
        if epoch not in self.commits:
            return "It is missing, and its epoch has no other commit."
        if self.commits[epoch] is None:
            return "It is damaged, and its epoch has no other commit."
        return "It does not continue the epochs before it."

    def _belongs_here(self, record: CommitRecord | None) -> bool:
        """Return true if a record has the history of this checkpoint for its epoch."""
        if record is None:
            return False
        origin = self.identity.origin_of(record.epoch)
        return record.history == origin.history

    def _rewrite_manifest(self, number: int) -> None:
        """Add a step that writes the manifest of epoch `number` again from the commit records."""
        chains = self._replay_before(number, before=number)
        path = manifest_path(number)
        problem = "It is missing."
        if number in self.manifests:
            damaged = self.manifests[number] is None
            problem = "It is damaged." if damaged else "It belongs to a record of another history."
        if chains is None:
            self._add_step(path, f"{problem} The records before it are missing.", "none")
            return
        self.steps.append(
            RepairStep(
                path=path,
                problem=problem,
                action="write",
                content=encode_record(
                    replace(chains.manifest(), record=self.digests[commit_path(number)])
                ),
            )
        )

    def _replay_before(self, epoch: int, *, before: int) -> Chains | None:
        """Return the chains at `epoch`, replayed from a manifest earlier than epoch `before`."""
        usable = [
            n for n, manifest in self.manifests.items() if manifest is not None and n < before
        ]
        for anchor in sorted((n for n in (*usable, -1) if n <= epoch), reverse=True):
            chains = self._replay_from(anchor, until=epoch)
            if chains is not None and chains.epoch == epoch:
                return chains
        return None

    def _matches_record(self, manifest: Manifest) -> bool:
        """Return true if a manifest belongs to the commit record of its epoch."""
        digest = self.digests.get(commit_path(manifest.epoch), manifest.record)
        return manifest.record == digest

    def _replay_from(self, anchor: int, *, until: int | None = None) -> Chains | None:
        """Return chains replayed from the manifest of epoch `anchor` (-1: from nothing) to `until`.

        ``None`` if the records do not lead there.
        """
        manifest = self.manifests.get(anchor)
        chains = Chains(self.identity.num_key_groups)
        if manifest is not None:
            anchor_record = self.commits.get(anchor)
            if not self._matches_record(manifest) or (
                anchor_record is not None
                and any(key_group_problems(self.identity, manifest, anchor_record))
            ):
                return None
            chains = Chains.restore(manifest)
        while until is None or chains.epoch < until:
            record = self.commits.get(chains.epoch + 1)
            if record is None:
                return chains
            if record.flow != chains.flow:
                try:
                    version = load_record(self.storage, flow_path(record.flow), FlowVersion)
                except GodwitError:
                    return chains
                chains.upgrade(record.flow, version)
            manifest_digest = (
                manifest.record if manifest is not None and chains.epoch == anchor else ""
            )
            digest = self.digests.get(commit_path(chains.epoch), manifest_digest)
            links = link_problems(self.identity, record, digest=digest)
            if any(True for _ in (*links, *chains.problems(record))):
                return chains
            chains.apply(record)
        return chains

    def _add_step(self, path: str, problem: str, action: Literal["set aside", "none"]) -> None:
        """Add a step to the repair: a file with a problem, and the action."""
        self.steps.append(RepairStep(path=path, problem=problem, action=action))
