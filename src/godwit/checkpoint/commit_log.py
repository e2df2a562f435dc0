"""The commit log: one small record an epoch, whose existence is the commit.

Problem: lanes write many files, fail, are retried and run twice; which of their files count must
change in one instant, and stay decided whatever fails afterwards.

Invariants:

- epochs are committed in order without gaps, each by one file that is created at once and only if
  it does not exist;
- a run that no longer owns the checkpoint commits nothing: opening it for writing takes the next
  number of run, and a commit first looks whether that is still the highest.  Where the two cross,
  the exclusive creation of the record decides, and the loser says so;
- a flow version, and a physical plan, counts from the first record that names it; one that none
  names is as if it had never been;
- a record names its predecessor by a digest (`godwit.checkpoint.history`);
- what `godwit.checkpoint.commit_history` says of reading.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.checkpoint.commit_history import CommitHistory
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.framing import digest_of, encode_commit, encode_record
from godwit.checkpoint.identity import differences
from godwit.checkpoint.manifest import Manifest
from godwit.checkpoint.ownership import (
    create_identity,
    create_numbered,
    load_record,
    numbers_in,
    overtaken,
    stored_identity,
    take_over,
)
from godwit.checkpoint.paths import (
    COMMITS,
    FLOWS,
    PLANS,
    RUNS,
    commit_path,
    manifest_path,
    number_in,
    run_path,
)
from godwit.checkpoint.physical_plan import PhysicalPlan
from godwit.checkpoint.records import CommitRecord, FlowIdentity, RunRecord
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    ConcurrentRunError,
    CorruptCheckpointError,
)

if TYPE_CHECKING:
    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = ["DEFAULT_MANIFEST_INTERVAL", "DEFAULT_RETAIN_EPOCHS", "CommitLog"]

DEFAULT_RETAIN_EPOCHS: Final = 10
DEFAULT_MANIFEST_INTERVAL: Final = 50


class CommitLog(CommitHistory):
    """The committed epochs of one checkpoint; made by `create_or_open` or `open_read_only`.

    `flow` and `plan` are what the next record is committed under.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        identity: FlowIdentity,
        *,
        run: RunRecord | None,
        retain_epochs: int,
        manifest_interval: int,
    ) -> None:
        super().__init__(storage, identity)
        self.retain_epochs = retain_epochs  # how many committed epochs stay readable
        self.manifest_interval = manifest_interval  # a manifest is written every so many epochs
        self._run = run
        # Held while a commit changes `chains` and `latest`, and never while it reads or writes.
        # Whoever reads several things that belong together beside commits holds it.
        self.lock = threading.RLock()

    @classmethod
    def create_or_open(
        cls,
        storage: CheckpointStorage,
        identity: FlowIdentity,
        run_id: str,
        *,
        flow: FlowVersion | None = None,
        plan: PhysicalPlan | None = None,
        retain_epochs: int = DEFAULT_RETAIN_EPOCHS,
        manifest_interval: int = DEFAULT_MANIFEST_INTERVAL,
    ) -> CommitLog:
        """Open a checkpoint for writing, creating it if there is none, and take it over.

        `flow`: what the flow is from the next epoch on; ``None`` if that is what it was.
        `plan`: what makes a component from the next epoch on; ``None`` if that is what it was.
        `retain_epochs`, `manifest_interval`: see the attributes; at least 1.
        Raises `ConcurrentRunError` if another run takes it over at the same moment, or has
        committed another flow version than the one that `flow` follows.
        """
        if retain_epochs < 1 or manifest_interval < 1:
            raise CheckpointError(
                f"retain_epochs is {retain_epochs} and manifest_interval is {manifest_interval}.",
                remedy="Both must be at least 1.",
            )
        stored = create_identity(storage, identity)
        found = list(differences(stored, identity))
        if found:
            raise CheckpointMismatchError(
                f"The checkpoint {storage.uri!r} does not fit this flow: {'; '.join(found)}.",
                remedy="Start the changed flow with a new checkpoint, or undo the change.",
                uri=storage.uri,
                differences=found,
            )
        run = take_over(storage, run_id)
        log = cls(
            storage,
            stored,
            run=run,
            retain_epochs=retain_epochs,
            manifest_interval=manifest_interval,
        )
        if flow is not None or log.latest is None:
            log._begin(flow or FlowVersion(), run)
        log.use_plan(plan or log.physical_plan or PhysicalPlan())
        return log

    @classmethod
    def open_read_only(cls, storage: CheckpointStorage) -> CommitLog:
        """Open a checkpoint to read it, whoever is running on it."""
        identity = stored_identity(storage)
        if identity is None:
            raise CheckpointError(
                f"There is no checkpoint at {storage.uri!r}.",
                remedy="Check the location; it is the one that was given to start().",
                uri=storage.uri,
            )
        while True:
            latest = max(numbers_in(storage, COMMITS), default=-1)
            try:
                return cls(
                    storage,
                    identity,
                    run=None,
                    retain_epochs=DEFAULT_RETAIN_EPOCHS,
                    manifest_interval=DEFAULT_MANIFEST_INTERVAL,
                )
            except CorruptCheckpointError:
                # What was listed may be collected before it is read, once there are later epochs.
                if max(numbers_in(storage, COMMITS), default=-1) == latest:
                    raise

    def _begin(self, version: FlowVersion, run: RunRecord) -> None:
        """Go on under another flow version, which counts once a record names it."""
        if version.previous != self.flow:
            raise ConcurrentRunError(
                f"While run {run.run_id!r} was starting, another one committed flow version "
                f"{self.flow} to the checkpoint {self.storage.uri!r}.",
                remedy="Let only one query run on a checkpoint, and start this one again.",
                uri=self.storage.uri,
                run_id=run.run_id,
            )
        # Versions of starts that failed before their first epoch keep their numbers.
        number = create_numbered(self.storage, FLOWS, version, after=self.flow)
        self.chains.become(number, version)
        self.flow = number

    def use_plan(self, plan: PhysicalPlan) -> None:
        """Commit the epochs from the next one on under a physical plan."""
        if self.plan < 0 or plan != self.physical_plan:
            self.plan = create_numbered(self.storage, PLANS, plan, after=self.plan)

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Commit the next epoch. When this returns, it is durable; before, it may or may not be.

        Returns the record as it was written: every block has a file, and small ones still have
        their bytes with them.
        Raises `ConcurrentRunError` if another run owns the checkpoint.
        """
        run = self._run
        if run is None:
            raise CheckpointError(
                f"The checkpoint {self.storage.uri!r} is open to read only.",
                remedy="Open it with CommitLog.create_or_open to commit.",
            )
        record = msgspec.structs.replace(
            record,
            run_id=run.run_id,
            query_id=self.identity.query_id,
            history=self.identity.history_id,
            previous="" if self.latest is None else self.digest(self.latest_epoch),
            flow=self.flow,
            plan=self.plan,
            flow_digest=self._version(self.flow)[1],
            plan_digest=self._plan(self.plan)[1],
        )
        self.chains.check(record)
        self._check_files(record)
        self._check_ownership(run)
        due = self.latest_epoch - self.manifest_before(self.latest_epoch) >= self.manifest_interval
        # A manifest goes by the names of its own epoch, and these chains may be one ahead.
        if due and self.latest is not None and self.latest.flow == self.flow:
            self._write_manifest()
        record = msgspec.structs.replace(
            record,
            retained_from=max(self.retained_epochs.start, record.epoch - self.retain_epochs + 1),
            manifest=self.manifest_before(self.latest_epoch),
        )
        data, settled = encode_commit(record)
        try:
            self.storage.create_exclusive(commit_path(record.epoch), data)
        except FileExistsError as error:
            if self.storage.read(commit_path(record.epoch)).to_pybytes() != data:
                raise self._lost(record.epoch, run) from error
        with self.lock:
            self.chains.apply(settled)
            self.latest = settled
            self._records[record.epoch] = settled, digest_of(data)
        for epoch in list(self._records):  # a copy: a collection beside this may add some
            if epoch < self.anchor:
                self._records.pop(epoch, None)
        return settled

    def _write_manifest(self) -> None:
        path = manifest_path(self.latest_epoch)
        try:
            manifest = msgspec.structs.replace(
                self.chains.manifest(), record=self.digest(self.latest_epoch)
            )
            self.storage.create_exclusive(path, encode_record(manifest))
        except FileExistsError:
            # Only a manifest of the same epoch can be there, and records do not change.
            load_record(self.storage, path, Manifest)
        self._manifests.append(self.latest_epoch)
        with self.lock:
            self.chains.forget_inline_bytes(before=self.retained_epochs.start)

    def _check_files(self, record: CommitRecord) -> None:
        for block in record.blocks():
            epoch = number_in(block.file) if block.file else record.epoch
            if epoch is None or epoch < record.epoch:
                raise CheckpointError(
                    f"The commit record of epoch {record.epoch} names the file {block.file!r}, "
                    f"which was not written for it or a later epoch and may be collected.",
                    remedy="Give BlockWriter the epoch whose record names its blocks.",
                    epoch=record.epoch,
                    file=block.file,
                )

    def _check_ownership(self, run: RunRecord) -> None:
        highest = max(numbers_in(self.storage, RUNS), default=-1)
        if highest != run.number:
            owner = load_record(self.storage, run_path(highest), RunRecord)
            raise overtaken(self.storage, run.run_id, owner.run_id)

    def _lost(self, epoch: int, run: RunRecord) -> CheckpointError:
        other = load_record(self.storage, commit_path(epoch), CommitRecord).run_id
        if other != run.run_id:
            return overtaken(self.storage, run.run_id, other)
        return CheckpointError(
            f"Epoch {epoch} of the checkpoint {self.storage.uri!r} was already committed by an "
            f"attempt of this run that seemed to fail.",
            remedy="Start the query again: it goes on after what is committed.",
            epoch=epoch,
        )
