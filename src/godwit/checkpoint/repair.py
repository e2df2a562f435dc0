"""Mending a checkpoint that cannot be opened, without guessing: a plan that is shown, then done.

Problem: after a power failure, or a mishap with the directory, a checkpoint can be whole in all
that counts and still be unusable: a file that nobody committed stands above the last epoch, or a
manifest that the records can give again is gone.

Invariant: a step only adds what the records say, or sets aside what they do not count on.  Nothing
that an epoch needs is removed or changed, and what is set aside stays in ``set-aside/``.  Where a
record between others is gone, the epochs after it cannot be read by anybody: they are taken back,
by name, and only if everything that the epoch before needs is still there.

`start_problems` finds what would keep a checkpoint from being started: it opens it as a start does
and looks whether the files are there that the latest epoch stands on.  (`verify` reads every byte
of every retained epoch.)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec.structs import replace

from godwit.checkpoint.chains import Chains
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.ownership import link_problems, load_record, load_with_digest
from godwit.checkpoint.records import (
    BLOCKS,
    COMMITS,
    IDENTITY,
    MANIFESTS,
    CommitRecord,
    FlowIdentity,
    Manifest,
    PhysicalPlan,
    commit_path,
    flow_path,
    manifest_path,
    number_in,
    padded,
    plan_path,
)
from godwit.checkpoint.verification import Finding
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["RepairStep", "carry_out", "plan_record_repair", "start_problems"]

_RESTORE = "Restore it from a copy of the checkpoint, or start with a new checkpoint."


def start_problems(storage: CheckpointStorage) -> tuple[Finding, ...]:
    """Find what would keep the checkpoint from being started, if anything.

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
            for block, problem in lacking_blocks(storage, blocks)
        )
    except GodwitError as error:
        finding = Finding(
            file=str(error.context.get("file", "")), problem=error.message, remedy=error.remedy
        )
        return (finding,)


def lacking_blocks(
    storage: CheckpointStorage, blocks: Iterable[BlockRef]
) -> Iterator[tuple[BlockRef, str]]:
    """Yield each block whose file is missing or too short, and what is wrong, once a file."""
    sizes = {
        entry.path: entry.size_bytes
        for directory in (BLOCKS, COMMITS)
        for entry in storage.list(directory)
    }
    seen: set[str] = set()
    for block in sorted(blocks, key=lambda block: (block.file, -block.offset)):
        if block.file in seen:
            continue
        seen.add(block.file)
        size = sizes.get(block.file)
        if size is None:
            yield block, "It is missing, though the latest epoch needs it."
        elif size < block.offset + padded(block.length):
            yield block, f"It has {size} bytes, fewer than the latest epoch needs of it."


_SET_ASIDE = "set-aside"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """One thing that is wrong with one file, and what is done about it."""

    path: str  # the file, within the checkpoint
    problem: str  # what is wrong with it
    # ``"write"``: `content` is put there; ``"set aside"``: it is moved to ``set-aside/``;
    # ``"none"``: nothing can be done about it here
    action: Literal["write", "set aside", "none"]
    content: bytes = b""  # what to write


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRepair:
    """Plan to repair Godwit's own records."""

    steps: tuple[RepairStep, ...]  # in the order in which they are done
    # the committed records that stay, in order of epochs; empty if none can be read
    records: tuple[CommitRecord, ...]
    # Epochs that were committed, and whose output was delivered, and that do not stay: what is
    # between them and the rest is lost. Spark reads their rows again.
    taken_back: tuple[int, ...] = ()


def plan_record_repair(storage: CheckpointStorage) -> RecordRepair:
    """Find what keeps the records of a checkpoint from being opened, and what would mend it."""
    identity = load_record(storage, IDENTITY, FlowIdentity)
    return _RecordPlan(storage, identity).made()


def carry_out(storage: CheckpointStorage, steps: Sequence[RepairStep]) -> None:
    """Do what a plan says; it may be done again after a crash in between."""
    for step in steps:
        if step.action == "none":
            continue
        # Hadoop keeps a checksum beside a local file; it is not that of what is written here.
        folder, _, name = step.path.rpartition("/")
        storage.delete(f"{folder}/.{name}.crc" if folder else f".{name}.crc")
        if any(entry.path == step.path for entry in storage.list(folder)):
            previous = storage.read(step.path).to_pybytes()
            storage.write_atomic(f"{_SET_ASIDE}/{step.path}", previous)
        if step.action == "write":
            storage.write_atomic(step.path, step.content)
        else:
            storage.delete(step.path)


class _RecordPlan:
    def __init__(self, storage: CheckpointStorage, identity: FlowIdentity) -> None:
        self.storage = storage
        self.identity = identity
        self.num_key_groups = identity.num_key_groups
        self.digests: dict[str, str] = {}
        self.steps: list[RepairStep] = []
        self.commits = self._loaded(COMMITS, CommitRecord)
        self.manifests = self._loaded(MANIFESTS, Manifest)

    def made(self) -> RecordRepair:
        last, chains = self._farthest()
        genuine = [n for n, record in self.commits.items() if n > last and self._is_ours(record)]
        taken_back = tuple(range(last + 1, max(genuine, default=last) + 1))
        problem = self._cannot_end_at(last, chains, taken_back)
        if problem is not None:
            self._step(*problem, "none")
            return RecordRepair(steps=tuple(self.steps), records=())
        if chains is None:
            return RecordRepair(steps=tuple(self.steps), records=())
        above = f"It stands above epoch {last}, the last one that leads up from what is there."
        for number in sorted(self.commits):
            if number > last:
                self._step(commit_path(number), above, "set aside")
        for number in sorted(self.manifests):
            if number > last:
                self._step(manifest_path(number), above, "set aside")
        records = [r for n, r in sorted(self.commits.items()) if n <= last and r is not None]
        unreadable = {
            n
            for n, manifest in self.manifests.items()
            if n <= last and (manifest is None or not self._sums_up(manifest))
        }
        named = {records[-1].manifest} - {-1, *self.manifests}
        for number in sorted(unreadable | named):
            self._give_again(number)
        self._note_retained(chains, records[-1])
        return RecordRepair(steps=tuple(self.steps), records=tuple(records), taken_back=taken_back)

    def _note_retained(self, chains: Chains, latest: CommitRecord) -> None:
        """Note in a manifest of the latest epoch what the epochs that are taken back let go of."""
        later = (record for number, record in self.commits.items() if number > latest.epoch)
        retained_from = max((r.retained_from for r in later if r and self._is_ours(r)), default=0)
        noted = self.manifests.get(latest.epoch)
        if retained_from <= max(latest.retained_from, 0 if noted is None else noted.retained_from):
            return
        path = manifest_path(latest.epoch)
        self.steps = [step for step in self.steps if step.path != path]
        self.steps.insert(
            0,  # before the records that say so are set aside
            RepairStep(
                path=path,
                problem=f"Epochs before {retained_from} can be read no more: the epochs that are "
                "taken back had let go of them.",
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

    def _farthest(self) -> tuple[int, Chains | None]:
        """Return the last epoch that records and manifests lead up to; -1 if there is none."""
        anchors = [n for n, manifest in self.manifests.items() if manifest is not None]
        reached = [c for anchor in (*anchors, -1) if (c := self._from(anchor)) is not None]
        chains = max(reached, key=lambda chains: chains.epoch, default=None)
        if chains is None or chains.epoch < 0:
            return -1, None
        return chains.epoch, chains

    def _cannot_end_at(
        self, last: int, chains: Chains | None, taken_back: tuple[int, ...]
    ) -> tuple[str, str] | None:
        """Return the file and the problem by which the checkpoint cannot go on after that epoch."""
        following = last + 1
        if last >= 0 and self.commits.get(last) is None:
            return commit_path(last), self._ailment(last)
        if chains is None:
            problem = "No manifest, and no epoch 0, from which the records could be followed."
            return (COMMITS, problem) if self.commits else None
        if not taken_back:
            if self.commits.get(following, ...) is None:
                return commit_path(following), self._ailment(following)
            return None
        gone = [block.file for block, _ in lacking_blocks(self.storage, chains.blocks())]
        for file in (*gone, *self._collected_records(chains)):
            problem = (
                f"{self._ailment(following)} To go back to epoch {last} is impossible: "
                f"{file} has been collected."
            )
            return commit_path(following), problem
        return None

    def _collected_records(self, chains: Chains) -> Iterator[str]:
        """Yield the plan and flow versions that an epoch is read by, where they are gone."""
        record = self.commits[chains.epoch]
        if record is not None and not self._is_readable(plan_path(record.plan), PhysicalPlan):
            yield plan_path(record.plan)
        number, first = chains.flow, min(chains.written_under())
        while number >= max(first, 0):
            try:
                number = load_record(self.storage, flow_path(number), FlowVersion).previous
            except GodwitError:
                yield flow_path(number)
                return

    def _is_readable(self, path: str, kind: type[object]) -> bool:
        with suppress(GodwitError):
            load_record(self.storage, path, kind)
            return True
        return False

    def _ailment(self, epoch: int) -> str:
        if epoch not in self.commits:
            return "It is missing, and what its epoch committed is known nowhere else."
        if self.commits[epoch] is None:
            return "It is damaged, and what its epoch committed is known nowhere else."
        return "It does not continue the epochs before it."

    def _is_ours(self, record: CommitRecord | None) -> bool:
        """Return whether a record is of an epoch that this checkpoint has committed."""
        if record is None:
            return False
        origin = self.identity.origin_of(record.epoch)
        return record.history in {"", origin.history}

    def _give_again(self, number: int) -> None:
        chains = self._replayed(number, before=number)
        path = manifest_path(number)
        problem = "It is missing."
        if number in self.manifests:
            damaged = self.manifests[number] is None
            problem = "It is damaged." if damaged else "It sums up a record of another history."
        if chains is None:
            self._step(path, f"{problem} The records before it are not there any more.", "none")
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

    def _replayed(self, epoch: int, *, before: int) -> Chains | None:
        """Return the chains as of `epoch`, from the latest manifest below `before`."""
        usable = [
            n for n, manifest in self.manifests.items() if manifest is not None and n < before
        ]
        for anchor in sorted((n for n in (*usable, -1) if n <= epoch), reverse=True):
            chains = self._from(anchor, until=epoch)
            if chains is not None and chains.epoch == epoch:
                return chains
        return None

    def _sums_up(self, manifest: Manifest) -> bool:
        """Return whether a manifest is of the record that is here, as far as that is known."""
        digest = self.digests.get(commit_path(manifest.epoch), manifest.record)
        return manifest.record in {"", digest}

    def _from(self, anchor: int, *, until: int | None = None) -> Chains | None:
        """Follow the records from a manifest on, as far as they lead; ``None`` if not at all."""
        manifest = self.manifests.get(anchor)
        chains = Chains(self.num_key_groups)
        if manifest is not None:
            if manifest.num_key_groups != self.num_key_groups or not self._sums_up(manifest):
                return None
            chains = Chains.restore(manifest)
        before: CommitRecord | None = None
        while until is None or chains.epoch < until:
            record = self.commits.get(chains.epoch + 1)
            if record is None:
                return chains
            if record.flow != chains.flow:
                try:
                    version = load_record(self.storage, flow_path(record.flow), FlowVersion)
                except GodwitError:
                    return chains
                chains.become(record.flow, version)
            noted = manifest.record if manifest is not None and before is None else ""
            digest = self.digests.get(commit_path(chains.epoch), noted)
            links = link_problems(self.identity, record, before=before, digest=digest)
            if any(True for _ in (*links, *chains.problems(record))):
                return chains
            chains.apply(record)
            before = record
        return chains

    def _loaded(self, directory: str, kind: type[_T]) -> dict[int, _T | None]:
        """Return number → record; ``None`` where it cannot be read."""
        records: dict[int, _T | None] = {}
        for entry in self.storage.list(directory):
            number = number_in(entry.path)
            if number is not None:
                records[number] = None
                with suppress(GodwitError):
                    records[number], self.digests[entry.path] = load_with_digest(
                        self.storage, entry.path, kind
                    )
        return records

    def _step(self, path: str, problem: str, action: Literal["set aside", "none"]) -> None:
        self.steps.append(RepairStep(path=path, problem=problem, action=action))
