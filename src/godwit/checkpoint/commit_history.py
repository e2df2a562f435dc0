"""The committed epochs of a checkpoint, as whoever reads them needs them.

Invariants: opening reads one manifest and the records after it, never the whole history; every
epoch from ``retained_from`` of the latest record on can be read; and reading writes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from godwit.checkpoint.chains import Chains
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.history import HistoryPoint, link_problems
from godwit.checkpoint.manifest import Manifest
from godwit.checkpoint.ownership import load_record, load_with_digest, numbers_in
from godwit.checkpoint.paths import (
    COMMITS,
    EDITS,
    MANIFESTS,
    commit_path,
    edit_path,
    flow_path,
    manifest_path,
    plan_path,
)
from godwit.checkpoint.physical_plan import PhysicalPlan
from godwit.checkpoint.records import CommitRecord, EditRecord, FlowIdentity, StateId
from godwit.model.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from godwit.checkpoint.history import Relation
    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = ["CommitHistory"]


class CommitHistory:
    """The committed epochs of one checkpoint."""

    def __init__(self, storage: CheckpointStorage, identity: FlowIdentity) -> None:
        self.storage = storage  # the checkpoint's directory
        self.identity = identity  # whose checkpoint it is
        self._records: dict[int, tuple[CommitRecord, str]] = {}  # each with its digest
        self._versions: dict[int, tuple[FlowVersion, str]] = {}  # each with its digest
        self._plans: dict[int, tuple[PhysicalPlan, str]] = {}
        # the latest commit record; ``None`` before the first
        self.latest: CommitRecord | None = None
        records = numbers_in(storage, COMMITS)
        self._manifests = numbers_in(storage, MANIFESTS)
        latest = max(records, default=-1)
        if self._manifests and self._manifests[-1] > latest:
            load_record(storage, commit_path(self._manifests[-1]), CommitRecord)
        if latest >= 0:
            self.latest = self.load(latest)
            if self.latest.manifest >= 0 and self.latest.manifest not in self._manifests:
                load_record(storage, manifest_path(self.latest.manifest), Manifest)
            self._insist_on_version(self.latest)
        # what brings each key group to its version as of `latest`, by the names of `flow`
        self.chains = self.replay(latest)
        self.flow = self.chains.flow  # the flow version that counts; -1 if there is none
        # number of the physical plan that counts; -1 if there is none
        self.plan = -1 if self.latest is None else self.latest.plan

    def version(self, number: int) -> FlowVersion:
        """Give a flow version that a committed record or reference names."""
        return self._version(number)[0]

    def _version(self, number: int) -> tuple[FlowVersion, str]:
        found = self._versions.get(number)
        if found is None:
            found = load_with_digest(self.storage, flow_path(number), FlowVersion)
            self._versions[number] = found
        return found

    def _plan(self, number: int) -> tuple[PhysicalPlan, str]:
        found = self._plans.get(number)
        if found is None:
            found = load_with_digest(self.storage, plan_path(number), PhysicalPlan)
            self._plans[number] = found
        return found

    def _insist_on_version(self, record: CommitRecord) -> None:
        """Refuse a file of another history in the place of a flow version."""
        if record.flow_digest and record.flow_digest != self._version(record.flow)[1]:
            problem = f"epoch {record.epoch} ran under another flow version of this number"
            raise self._forked(flow_path(record.flow), problem)

    @property
    def physical_plan(self) -> PhysicalPlan | None:
        """The physical plan that counts; ``None`` if there is none."""
        if self.plan < 0:
            return None
        plan, digest = self._plan(self.plan)
        latest = self.latest
        if (
            latest is not None
            and latest.plan == self.plan
            and latest.plan_digest not in {"", digest}
        ):
            problem = f"epoch {latest.epoch} ran under another physical plan of this number"
            raise self._forked(plan_path(self.plan), problem)
        return plan

    def versions_since(self, number: int) -> dict[int, FlowVersion]:
        """Flow versions from the one that counts back to `number`, as far as they go."""
        found: dict[int, FlowVersion] = {}
        at = self.flow
        while at >= max(number, 0):
            found[at] = self.version(at)
            at = found[at].previous
        return found

    def edits(self) -> tuple[EditRecord, ...]:
        """Edits of the flow version that counts, which the next one is to take up, in order."""
        found = (
            load_record(self.storage, edit_path(number), EditRecord)
            for number in self.edit_numbers()
        )
        return tuple(edit for edit in found if edit.flow == self.flow)

    def edit_numbers(self) -> list[int]:
        """Numbers of all edits that are there, ascending."""
        return numbers_in(self.storage, EDITS)

    def recorded_as(self, state: StateId) -> StateId:
        """Give the names of a state as of the latest record: a renaming may be yet to commit."""
        if self.latest is None or self.latest.flow == self.flow:
            return state
        before = self.version(self.flow).name_before(state.operator)
        return state if before is None else StateId(before, state.state)

    @property
    def latest_epoch(self) -> int:
        """The latest committed epoch; -1 before the first."""
        return -1 if self.latest is None else self.latest.epoch

    @property
    def retained_epochs(self) -> range:
        """The epochs whose state can be read."""
        latest = self.latest  # read once: a collection may run beside commits
        return range(0) if latest is None else range(latest.retained_from, latest.epoch + 1)

    def record(self, epoch: int) -> CommitRecord:
        """Commit record of a retained epoch."""
        self._require_retained(epoch)
        return self.load(epoch)

    def chains_at(self, epoch: int) -> Chains:
        """Chains as of a retained epoch."""
        self._require_retained(epoch)
        return self.replay(epoch)

    @property
    def anchor(self) -> int:
        """Epoch of the manifest that the earliest retained epoch starts from; -1 for none."""
        return self.manifest_before(self.retained_epochs.start)

    def manifest_before(self, epoch: int) -> int:
        """Epoch of the latest manifest of `epoch` or earlier; -1 for none."""
        return max((m for m in self._manifests if m <= epoch), default=-1)

    def forget_manifests(self, *, before: int) -> None:
        """Take note that manifests of epochs earlier than `before` were deleted."""
        for epoch in [epoch for epoch in self._manifests if epoch < before]:
            self._manifests.remove(epoch)

    def point(self, epoch: int) -> HistoryPoint:
        """Digest of a committed epoch whose record is still there, and whose history it is."""
        origin = self.identity.origin_of(epoch)
        return HistoryPoint(
            query_id=origin.query_id,
            history=origin.history,
            epoch=epoch,
            digest=self.digest(epoch),
        )

    def relation(self, point: HistoryPoint) -> Relation:
        """How an epoch that somebody noted lies to this checkpoint's history."""
        origin = self.identity.origin_of(point.epoch)
        if (point.query_id, point.history) != (origin.query_id, origin.history):
            return "diverged"
        if point.epoch > self.latest_epoch:
            return "ahead"
        if point.epoch not in self.retained_epochs:
            return "unknown"
        return "shared" if self.digest(point.epoch) == point.digest else "diverged"

    def shared_with(self, point: HistoryPoint) -> int:
        """Last epoch that this checkpoint has in common with the history of a point.

        Returns -1 if none is known: the histories have nothing to do with each other, or it is not
        known where they parted.
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
        """Digest of any commit record that is still there; it stands for all before it too."""
        return self._load(epoch)[1]

    def _require_retained(self, epoch: int) -> None:
        if epoch not in self.retained_epochs:
            retained = self.retained_epochs
            there_are = (
                f"epochs {retained[0]} to {retained[-1]} are retained"
                if retained
                else "no epoch is committed yet"
            )
            raise CheckpointError(
                f"Epoch {epoch} cannot be read from the checkpoint {self.storage.uri!r}: "
                f"{there_are}.",
                remedy="Name one of the retained epochs; retain_epochs says how many are kept.",
                epoch=epoch,
                retained=(retained.start, retained.stop - 1),
            )

    def replay(self, epoch: int) -> Chains:
        """Give the chains as of any epoch whose records are still there, retained or not."""
        start = self.manifest_before(epoch)
        if start >= 0:
            path = manifest_path(start)
            manifest = load_record(self.storage, path, Manifest)
            if manifest.num_key_groups != self.identity.num_key_groups:
                raise _contradiction(
                    self.storage,
                    path,
                    f"it has {manifest.num_key_groups} key groups, not "
                    f"{self.identity.num_key_groups}",
                )
            chains = Chains.restore(manifest)
            digest = manifest.record
            here = digest
            with suppress(CorruptCheckpointError):  # the record is not needed to go on from here
                here = self.digest(start)
            if digest not in {"", here}:
                raise self._forked(path, f"it sums up another record of epoch {start}")
        else:
            chains = Chains(self.identity.num_key_groups)
            digest = ""
        before: CommitRecord | None = None
        for later in range(start + 1, epoch + 1):
            record, own_digest = self._load(later)
            if record.history and not digest and later > 0:
                digest = self.digest(later - 1)  # not in a manifest of format 2
            for problem in link_problems(self.identity, record, before=before, digest=digest):
                raise self._forked(commit_path(later), problem)
            before, digest = record, own_digest
            self._insist_on_version(record)
            if record.flow != chains.flow:
                chains.become(record.flow, self.version(record.flow))
            for problem in chains.problems(record):
                raise _contradiction(self.storage, commit_path(later), problem)
            chains.apply(record)
        return chains

    def load(self, epoch: int) -> CommitRecord:
        """Give the commit record of any epoch whose record is still there, retained or not."""
        return self._load(epoch)[0]

    def _load(self, epoch: int) -> tuple[CommitRecord, str]:
        found = self._records.get(epoch)
        if found is None:
            found = load_with_digest(self.storage, commit_path(epoch), CommitRecord)
            self._records[epoch] = found
        return found

    def _forked(self, path: str, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"The file {path!r} of the checkpoint {self.storage.uri!r} does not continue its "
            f"history: {problem}.",
            remedy="Files of two checkpoints lie in one directory. Restore the whole directory "
            "from one copy, never single records of another query's or an older one's.",
            file=path,
            uri=self.storage.uri,
        )


def _contradiction(storage: CheckpointStorage, path: str, problem: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"The file {path!r} of the checkpoint {storage.uri!r} contradicts the records before it: "
        f"{problem}.",
        remedy="Restore this file from a copy of the checkpoint; run a verification to see what "
        "else is affected.",
        file=path,
        uri=storage.uri,
    )
