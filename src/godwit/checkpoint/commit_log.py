"""The commit log: one small record per epoch, whose existence is the commit.

Problem: lanes write many files, fail, are retried and run twice; the set of their files that count
must change atomically, and stay decided after any later failure.

Invariants:

- epochs are committed in order without gaps, each by one file that is created at once and only if
  it does not exist;
- a run that no longer owns the checkpoint commits nothing: opening it for writing takes the next
  number of run, and a commit first checks that it is still the highest.  In a race, the
  exclusive creation of the record decides, and the loser raises an error;
- a flow version, and a physical plan, counts from the first record that names it;
- a record names its predecessor by a digest (`godwit.checkpoint.ownership`);
- opening reads one manifest and the records after it, never the whole history; every epoch from
  ``retained_from`` of the latest record on can be read; and reading writes nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from godwit.checkpoint.chains import Chains
from godwit.checkpoint.evolution import FlowVersion, flow_mismatch
from godwit.checkpoint.framing import (
    create_numbered,
    digest_of,
    encode_commit,
    encode_record,
    load_record,
    load_with_digest,
    numbers_in,
)
from godwit.checkpoint.ownership import (
    HistoryPoint,
    acquire_run,
    create_identity,
    edit_problems,
    identity_differences,
    is_taken_back,
    key_group_problems,
    link_problems,
    lost_ownership,
    stored_identity,
)
from godwit.checkpoint.records import (
    COMMITS,
    EDITS,
    FLOWS,
    KEPT,
    MANIFESTS,
    PLANS,
    RUNS,
    CommitRecord,
    EditRecord,
    FlowIdentity,
    KeptEpoch,
    Manifest,
    PhysicalPlan,
    RunRecord,
    StateId,
    commit_path,
    edit_path,
    flow_path,
    is_kept,
    manifest_path,
    number_in,
    plan_path,
    run_path,
)
from godwit.model.errors import (
    CheckpointError,
    ConcurrentRunError,
    CorruptCheckpointError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.checkpoint.ownership import Relation
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.model.errors import CheckpointMismatchError

_T = TypeVar("_T")

DEFAULT_RETAIN_EPOCHS: Final = 10
DEFAULT_MANIFEST_INTERVAL: Final = 50


def check_identity(
    storage: CheckpointStorage, stored: FlowIdentity, identity: FlowIdentity
) -> None:
    """Raise if a checkpoint is of another flow."""
    problems = list(identity_differences(stored, identity))
    if problems:
        remedy = "Start the changed flow with a new checkpoint, or undo the change."
        raise flow_mismatch(storage.uri, problems, remedy=remedy)


def other_key_groups(uri: str, stored: int, today: int) -> CheckpointMismatchError:
    """Return the error that a checkpoint has another number of key groups than the flow."""
    return flow_mismatch(
        uri,
        [f"it has {stored} key groups, not {today}"],
        remedy=f"Leave num_key_groups={stored} in gw.Flow, or have the state rewritten: start once "
        "with checkpointing=gw.Checkpointing(repartition=True).",
    )


class CommitLog:
    """The committed epochs of one checkpoint; made by `create_or_open` or `open_read_only`.

    `flow` and `plan` are the versions of the next record.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        identity: FlowIdentity,
        *,
        run_id: str = "",
        run_number: int = -1,
        retain_epochs: int = DEFAULT_RETAIN_EPOCHS,
        manifest_interval: int = DEFAULT_MANIFEST_INTERVAL,
    ) -> None:
        self.storage = storage  # the checkpoint's directory
        self.identity = identity  # whose checkpoint it is
        self._loaded_records: dict[str, tuple[Any, str]] = {}  # path → record, and its digest
        # the latest commit record; ``None`` before the first
        self.latest: CommitRecord | None = None
        self._readable_from = 0  # override of `retained_from` of the latest record by a repair
        records = numbers_in(storage, COMMITS)
        latest = max(records, default=-1)
        while latest >= 0 and identity.origins and self._is_taken_back(latest):
            latest = max((number for number in records if number < latest), default=-1)
        self._manifests = [
            number
            for number in numbers_in(storage, MANIFESTS)
            if number <= latest or number not in records or not self._is_taken_back(number)
        ]
        if self._manifests and self._manifests[-1] > latest:
            load_record(storage, commit_path(self._manifests[-1]), CommitRecord)
        if latest >= 0:
            self.latest = self.load_record(latest)
            if self.latest.manifest >= 0 and self.latest.manifest not in self._manifests:
                load_record(storage, manifest_path(self.latest.manifest), Manifest)
            self._check_version(self.latest)
        if latest >= 0 and latest in self._manifests:
            manifest = load_record(storage, manifest_path(latest), Manifest)
            self._readable_from = manifest.retained_from
        # chains of all key groups as of `latest`, by the names of `flow`
        self.chains = self.replay_chains(latest)
        self.flow = self.chains.flow  # the current flow version; -1: none
        # number of the current physical plan; -1: none
        self.plan = -1 if self.latest is None else self.latest.plan
        self.retain_epochs = retain_epochs  # how many committed epochs stay readable
        self.manifest_interval = manifest_interval  # epochs between two manifests
        self._run_id, self._run_number = run_id, run_number  # of the run that commits; -1 for none
        # Held while a commit changes `chains` and `latest`, and never while it reads or writes.
        # Held for consistent reads of several values during commits.
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
        """Open a checkpoint for writing, created if need be, and become its owner.

        `flow` and `plan` apply from the next epoch on; ``None``: unchanged. A
        manifest is written every `manifest_interval` epochs. Raises `ConcurrentRunError` if another
        run takes it over at the same moment, or has committed another flow version than the one
        that `flow` follows.
        """
        if retain_epochs < 1 or manifest_interval < 1:
            raise CheckpointError(
                f"retain_epochs is {retain_epochs} and manifest_interval is {manifest_interval}.",
                remedy="Both must be at least 1.",
            )
        stored = create_identity(storage, identity)
        check_identity(storage, stored, identity)
        log = cls(
            storage,
            stored,
            run_id=run_id,
            run_number=acquire_run(storage, run_id),
            retain_epochs=retain_epochs,
            manifest_interval=manifest_interval,
        )
        if log.latest is None and stored.num_key_groups != identity.num_key_groups:
            # another start was faster
            raise other_key_groups(storage.uri, stored.num_key_groups, identity.num_key_groups)
        if flow is not None or log.latest is None:
            log._begin_version(flow or FlowVersion())
        log.use_plan(plan or log.physical_plan or PhysicalPlan())
        return log

    @classmethod
    def open_read_only(cls, storage: CheckpointStorage) -> CommitLog:
        """Open a checkpoint for reading, also while a query runs on it."""
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
                return cls(storage, identity)
            except CorruptCheckpointError:
                # Listed files may be collected before they are read, once later epochs are
                # committed.
                if max(numbers_in(storage, COMMITS), default=-1) == latest:
                    raise

    def _load_record(self, path: str, kind: type[_T]) -> tuple[_T, str]:
        """Read the record at `path`; return it and the hexadecimal digest of its file. Cached."""
        entry = self._loaded_records.get(path)
        if entry is None:
            entry = self._loaded_records[path] = load_with_digest(self.storage, path, kind)
        return entry

    def _is_taken_back(self, epoch: int) -> bool:
        """Return true if the record of an epoch is of those that a start has taken back."""
        return is_taken_back(self.identity, self.load_record(epoch))

    def version(self, number: int) -> FlowVersion:
        """Return the flow version with this number; cached."""
        return self._load_record(flow_path(number), FlowVersion)[0]

    def _check_version(self, record: CommitRecord) -> None:
        """Raise if a commit record names another flow version than the file of that number has."""
        path = flow_path(record.flow)
        if record.flow_digest != self._load_record(path, FlowVersion)[1]:
            problem = f"epoch {record.epoch} ran under another flow version of this number"
            raise self._other_history(path, problem)

    @property
    def physical_plan(self) -> PhysicalPlan | None:
        """Physical plan that the next commits name, if any; raises if it is of another history."""
        if self.plan < 0:
            return None
        path, latest = plan_path(self.plan), self.latest
        plan, digest = self._load_record(path, PhysicalPlan)
        if latest and latest.plan == self.plan and latest.plan_digest != digest:
            problem = f"epoch {latest.epoch} ran under another physical plan of this number"
            raise self._other_history(path, problem)
        return plan

    def versions_since(self, number: int) -> dict[int, FlowVersion]:
        """Return the flow versions from number `number` to the current one, by number."""
        versions: dict[int, FlowVersion] = {}
        current = self.flow
        while current >= max(number, 0):
            versions[current] = self.version(current)
            current = versions[current].previous
        return versions

    def edits(self) -> tuple[EditRecord, ...]:
        """Return the edits that the next flow version will apply, in order.

        Each has the digests of the edit before it, the flow version and the latest record; raises
        `CorruptCheckpointError` for an edit of another checkpoint.
        """
        edits: list[EditRecord] = []
        previous = ""
        for edit, digest in self._load_edits():
            for problem in edit_problems(
                self.identity,
                edit,
                record=self._known_digest(edit.epoch),
                flow_version=self._load_record(flow_path(edit.flow), FlowVersion)[1],
                previous=previous,
            ):
                raise self._other_history(edit_path(edit.number), problem)
            edits.append(edit)
            previous = digest
        return tuple(edits)

    def next_edit(self, edit: EditRecord) -> EditRecord:
        """Return a copy of `edit` with the next number and the digests of the records before it."""
        return msgspec.structs.replace(
            edit,
            number=max(self.edit_numbers(), default=-1) + 1,
            flow=self.flow,
            history=self.identity.origin_of(self.latest_epoch).history,
            epoch=self.latest_epoch,
            record=self._known_digest(self.latest_epoch),
            flow_digest=self._load_record(flow_path(self.flow), FlowVersion)[1],
            previous=next((digest for _, digest in reversed(self._load_edits())), ""),
        )

    def _load_edits(self) -> list[tuple[EditRecord, str]]:
        """Read the edits of the current flow version, each with its digest."""
        edits = [
            load_with_digest(self.storage, edit_path(number), EditRecord)
            for number in self.edit_numbers()
        ]
        return [(edit, digest) for edit, digest in edits if edit.flow == self.flow]

    def _known_digest(self, epoch: int) -> str:
        """Return the digest of an epoch's commit record; empty if it is removed or unreadable."""
        with suppress(CorruptCheckpointError):
            return self.digest(epoch)
        return ""

    def edit_numbers(self) -> list[int]:
        """Return the numbers of all edits in the checkpoint, ascending."""
        return numbers_in(self.storage, EDITS)

    def recorded_as(self, state: StateId) -> StateId:
        """Return the id of a state in the latest commit record, before pending renamings."""
        if self.latest is None or self.latest.flow == self.flow:
            return state
        before = self.version(self.flow).name_before(state.operator)
        return state if before is None else StateId(before, state.state)

    @property
    def latest_epoch(self) -> int:
        """Number of the latest committed epoch; -1 before the first."""
        return -1 if self.latest is None else self.latest.epoch

    @property
    def retained_epochs(self) -> range:
        """Numbers of the epochs whose state can still be read."""
        latest = self.latest  # read once: a collection may run beside commits
        if latest is None:
            return range(0)
        return range(max(latest.retained_from, self._readable_from), latest.epoch + 1)

    def kept_epochs(self) -> dict[str, KeptEpoch]:
        """Return name → epoch, of the epochs of this history that stay until they are released."""
        paths = self.storage.list(KEPT)
        kept_records = [
            load_record(self.storage, path, KeptEpoch) for path in paths if is_kept(path)
        ]
        return {
            kept_epoch.name: kept_epoch
            for kept_epoch in sorted(
                kept_records, key=lambda kept_epoch: (kept_epoch.epoch, kept_epoch.name)
            )
            if kept_epoch.history == self.identity.origin_of(kept_epoch.epoch).history
            and kept_epoch.epoch <= self.latest_epoch
        }

    def record(self, epoch: int) -> CommitRecord:
        """Return the commit record of a retained or kept epoch."""
        self._require_retained(epoch)
        return self.load_record(epoch)

    def chains_at(self, epoch: int) -> Chains:
        """Return the snapshots and segments of all states as of a retained or kept epoch."""
        self._require_retained(epoch)
        return self.replay_chains(epoch)

    def manifest_before(self, epoch: int) -> int:
        """Return the epoch of the latest manifest of `epoch` or earlier; -1 for none."""
        return max((m for m in self._manifests if m <= epoch), default=-1)

    @property
    def manifest_is_due(self) -> bool:
        """True if the next commit writes a manifest, of the epoch before it."""
        latest = self.latest_epoch
        return latest - self.manifest_before(latest) >= self.manifest_interval

    def forget_manifests(self, epochs: Iterable[int]) -> None:
        """Record that the manifests of these epochs were deleted."""
        for epoch in {*epochs}.intersection(self._manifests):
            self._manifests.remove(epoch)  # in place: a commit beside this may append one

    def point(self, epoch: int) -> HistoryPoint:
        """Return an epoch's number, its history, and the digest of its commit record."""
        origin = self.identity.origin_of(epoch)
        return HistoryPoint(
            query_id=origin.query_id,
            history=origin.history,
            epoch=epoch,
            digest=self.digest(epoch),
        )

    def relation(self, point: HistoryPoint) -> Relation:
        """Compare an epoch, as a sink's target stores it, with the epochs of this checkpoint."""
        origin = self.identity.origin_of(point.epoch)
        if (point.query_id, point.history) != (origin.query_id, origin.history):
            return "diverged"
        if point.epoch > self.latest_epoch:
            return "ahead"
        if point.epoch not in self.retained_epochs:
            return "unknown"
        return "shared" if self.digest(point.epoch) == point.digest else "diverged"

    def last_shared_epoch(self, point: HistoryPoint) -> int:
        """Return the last epoch that this checkpoint shares with the history of a point.

        Returns -1 if none is known: the histories are unrelated, or where they parted is not
        recorded.
        """
        relation = self.relation(point)
        if relation != "diverged":
            return min(point.epoch, self.latest_epoch)
        origins = [
            origin.epoch
            for origin in self.identity.origins
            if (origin.query_id, origin.history) == (point.query_id, point.history)
        ]
        return min(max(origins, default=-1), point.epoch, self.latest_epoch)

    def digest(self, epoch: int) -> str:
        """Return the digest of an epoch's commit record, which covers all records before it."""
        return self._load_record(commit_path(epoch), CommitRecord)[1]

    def _require_retained(self, epoch: int) -> None:
        """Raise `CheckpointError` if an epoch is neither retained nor kept."""
        retained = self.retained_epochs
        if epoch in retained:
            return
        epochs_by_name = self.kept_epochs()
        if epoch not in {own.epoch for own in epochs_by_name.values()}:
            there_are = (
                f"epochs {retained[0]} to {retained[-1]} are retained"
                if retained
                else "no epoch is committed yet"
            )
            if epochs_by_name:
                there_are += f", and kept are {', '.join(map(str, epochs_by_name.values()))}"
            raise CheckpointError(
                f"Epoch {epoch} cannot be read from the checkpoint {self.storage.uri!r}: "
                f"{there_are}.",
                remedy="Name one of the retained epochs; retain_epochs sets their number.",
                epoch=epoch,
                retained=(retained.start, retained.stop - 1),
            )

    def replay_chains(self, epoch: int) -> Chains:
        """Replay the chains of any epoch, retained or not; raise if its records contradict."""
        start = self.manifest_before(epoch)
        if start >= 0:
            path = manifest_path(start)
            manifest = load_record(self.storage, path, Manifest)
            digest = actual_digest = manifest.record
            problems: Iterator[str] = iter(())
            with suppress(CorruptCheckpointError):  # the record is not needed to continue from here
                record, actual_digest = self._load_record(commit_path(start), CommitRecord)
                problems = key_group_problems(self.identity, manifest, record)
            for problem in problems:
                raise _contradiction_error(self.storage, path, problem)
            if digest != actual_digest:
                raise self._other_history(path, f"it belongs to another record of epoch {start}")
            chains = Chains.restore(manifest)
        else:
            chains = Chains(self.identity.num_key_groups)
            digest = ""
        for later in range(start + 1, epoch + 1):
            record, own_digest = self._load_record(commit_path(later), CommitRecord)
            for problem in link_problems(self.identity, record, digest=digest):
                raise self._other_history(commit_path(later), problem)
            digest = own_digest
            self._check_version(record)
            if record.flow != chains.flow:
                chains.upgrade(record.flow, self.version(record.flow))
            for problem in chains.problems(record):
                raise _contradiction_error(self.storage, commit_path(later), problem)
            chains.apply(record)
        return chains

    def load_record(self, epoch: int) -> CommitRecord:
        """Return the commit record of any epoch whose record exists, retained or not."""
        return self._load_record(commit_path(epoch), CommitRecord)[0]

    def _other_history(self, path: str, problem: str) -> CorruptCheckpointError:
        """Return the error that the file `path` is of another history than the checkpoint."""
        return CorruptCheckpointError(
            f"The file {path!r} of the checkpoint {self.storage.uri!r} does not continue its "
            f"history: {problem}.",
            remedy="One directory has files of two checkpoints. Restore the whole directory "
            "from one copy, never single records of another query's or an older one's.",
            file=path,
            uri=self.storage.uri,
        )

    def _begin_version(self, version: FlowVersion) -> None:
        """Write a flow version for the next epochs; raise if another run has written one."""
        if version.previous != self.flow:
            raise ConcurrentRunError(
                f"While run {self._run_id!r} was starting, another one committed flow version "
                f"{self.flow} to the checkpoint {self.storage.uri!r}.",
                remedy="Let only one query run on a checkpoint, and start this one again.",
                uri=self.storage.uri,
                run_id=self._run_id,
            )
        # Versions of starts that failed before their first epoch keep their numbers.
        number = create_numbered(self.storage, FLOWS, version, after=self.flow)
        self.chains.upgrade(number, version)
        self.flow = number

    def use_plan(self, plan: PhysicalPlan) -> None:
        """Use a physical plan for the commits of the next epochs; write it if it is new."""
        if self.plan < 0 or plan != self.physical_plan:
            self.plan = create_numbered(self.storage, PLANS, plan, after=self.plan)

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Commit the next epoch; it is durable once this returns.

        Returns the record as it was written: every block has a file, and small blocks also keep
        their bytes in memory. Raises `ConcurrentRunError` if another run owns the checkpoint.
        """
        if self._run_number < 0:
            raise CheckpointError(
                f"The checkpoint {self.storage.uri!r} is open to read only.",
                remedy="Open it with CommitLog.create_or_open to commit.",
            )
        record = msgspec.structs.replace(
            record,
            run_id=self._run_id,
            query_id=self.identity.query_id,
            history=self.identity.history,
            previous="" if self.latest is None else self.digest(self.latest_epoch),
            flow=self.flow,
            plan=self.plan,
            num_key_groups=record.num_key_groups or self.chains.num_key_groups,
            flow_digest=self._load_record(flow_path(self.flow), FlowVersion)[1],
            plan_digest=self._load_record(plan_path(self.plan), PhysicalPlan)[1],
        )
        self.chains.check(record)
        self._check_files(record)
        self._check_ownership()
        # A manifest goes by the names of its own epoch, and these chains may be one ahead.
        if self.manifest_is_due and self.latest is not None and self.latest.flow == self.flow:
            self._write_manifest()
        record = msgspec.structs.replace(
            record,
            retained_from=max(self.retained_epochs.start, record.epoch - self.retain_epochs + 1),
            manifest=self.manifest_before(self.latest_epoch),
        )
        data, written = encode_commit(record)
        try:
            self.storage.create_exclusive(commit_path(record.epoch), data)
        except FileExistsError as error:
            if self.storage.read(commit_path(record.epoch)).to_pybytes() != data:
                stored = load_record(self.storage, commit_path(record.epoch), CommitRecord)
                if not is_taken_back(self.identity, stored):
                    raise self._lost_commit(record.epoch) from error
                # of a run that was just committing it when it lost the checkpoint
                self.storage.delete(commit_path(record.epoch))
                self.storage.create_exclusive(commit_path(record.epoch), data)
        with self.lock:
            self.chains.apply(written)
            self.latest = written
            self._loaded_records[commit_path(record.epoch)] = written, digest_of(data)
        first_path = commit_path(max(self.manifest_before(self.retained_epochs.start), 0))
        for path in list(self._loaded_records):  # a copy: a collection beside this may add some
            if path.startswith(COMMITS) and path < first_path:
                self._loaded_records.pop(path, None)
        return written

    def _write_manifest(self) -> None:
        """Write a manifest of all chains; it may be there from a commit that failed."""
        path = manifest_path(self.latest_epoch)
        try:
            manifest = msgspec.structs.replace(
                self.chains.manifest(), record=self.digest(self.latest_epoch)
            )
            self.storage.create_exclusive(path, encode_record(manifest))
        except FileExistsError:
            # Only a manifest of the same epoch can be there, and records do not change; or one of
            # an epoch that was taken back.
            present = load_record(self.storage, path, Manifest)
            if present.record != manifest.record and self.identity.origins:
                self.storage.write_atomic(path, encode_record(manifest))
        self._manifests.append(self.latest_epoch)
        with self.lock:
            self.chains.forget_inline_bytes(before=self.retained_epochs.start)

    def _check_files(self, record: CommitRecord) -> None:
        """Refuse a commit record that names files of an earlier epoch."""
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

    def _check_ownership(self) -> None:
        """Raise if a later run owns the checkpoint, so that this one may not commit."""
        highest = max(numbers_in(self.storage, RUNS), default=-1)
        if highest != self._run_number:
            owner = load_record(self.storage, run_path(highest), RunRecord)
            raise lost_ownership(self.storage, self._run_id, owner.run_id)

    def _lost_commit(self, epoch: int) -> CheckpointError:
        """Return the error that another run committed the epoch."""
        other = load_record(self.storage, commit_path(epoch), CommitRecord).run_id
        if other != self._run_id:
            return lost_ownership(self.storage, self._run_id, other)
        return CheckpointError(
            f"Epoch {epoch} of the checkpoint {self.storage.uri!r} was already committed by an "
            f"attempt of this run that seemed to fail.",
            remedy="Start the query again: it continues after the committed epochs.",
            epoch=epoch,
        )


def _contradiction_error(
    storage: CheckpointStorage, path: str, problem: str
) -> CorruptCheckpointError:
    """Return the error that the record at `path` contradicts the records before it."""
    return CorruptCheckpointError(
        f"The file {path!r} of the checkpoint {storage.uri!r} contradicts the records before it: "
        f"{problem}.",
        remedy="Restore this file from a copy of the checkpoint; run `godwit checkpoint verify` to "
        "see what else is affected.",
        file=path,
        uri=storage.uri,
    )
