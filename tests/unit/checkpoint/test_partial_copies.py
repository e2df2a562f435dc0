"""Facts about copies that have the entries of touched keys, while others are in the checkpoint."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.key_tables import COUNTS, NUM_KEY_GROUPS, batch, group_of, hashes_of, held
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint import partial_copies, stored_chains, stored_index
from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.chains import KeyGroupChain
from godwit.checkpoint.entries import EntryLayout, pack_entries
from godwit.checkpoint.hydration import catch_up_copies, pack_copies, unpack_copies
from godwit.checkpoint.partial_copies import PartialCopies, Touched
from godwit.checkpoint.records import StateId
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CorruptCheckpointError, EpochFailedError
from godwit.model.key_groups import key_group_mask
from godwit.store.changes import StateRows
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.records import BlockRef, SegmentRef, SnapshotRef

STATE = StateId("op", "state")
KEYS = [f"k{i}" for i in range(60)]
ALL = np.ones(NUM_KEY_GROUPS, np.bool_)
Entries = dict[str, int]


class History:
    """A checkpoint that grows by epochs, and the truth about every key."""

    def __init__(self, root: Path) -> None:
        self.storage = CheckpointStorage.open(root / "checkpoint")
        self.epoch = -1
        self.truth: Entries = {}
        self.segments: list[SegmentRef] = []
        self.snapshots: dict[int, SnapshotRef] = {}
        self.recovered = 0

    def commit(self, changed: Mapping[str, int | None]) -> None:
        """Commit an epoch; None stands for a removal."""
        self.epoch += 1
        groups, counts = np.unique([group_of(key) for key in changed], return_counts=True)
        if changed:
            ref = segment_ref(
                epoch=self.epoch,
                lane=0,
                block=self._block(sorted(changed.items(), key=lambda item: group_of(item[0]))),
                key_groups=tuple(groups.tolist()),
                row_ends=tuple(np.cumsum(counts).tolist()),
            )
            self.segments.append(ref)
        for key, count in changed.items():
            self.truth.pop(key, None)
            if count is not None:
                self.truth[key] = count

    def write_snapshot(self, key_group: int) -> None:
        """Write a snapshot of a key group, as of the last epoch."""
        own = [(key, count) for key, count in self.truth.items() if group_of(key) == key_group]
        self.snapshots[key_group] = snapshot_ref(
            key_group=key_group, version=self.epoch, rows=len(own), block=self._block(own)
        )

    def _block(self, entries: Sequence[tuple[str, int | None]]) -> BlockRef:
        gone = np.array([count is None for _, count in entries], np.bool_)
        counts = [count or 0 for _, count in entries]
        rows = StateRows(
            hashes=hashes_of([key for key, _ in entries]),
            keys=batch(COUNTS.keys, [key for key, _ in entries]),
            values=batch(COUNTS.values, counts, [float(count) for count in counts]),
            removed=gone if gone.any() else None,
        )
        with BlockWriter(self.storage, epoch=self.epoch, name="x", inline_limit_bytes=0) as writer:
            writer.add(encode_batch(pack_entries(rows)))
            (ref,) = writer.close()
        return ref

    def chains(self, key_groups: Iterable[int]) -> dict[int, KeyGroupChain]:
        """Return the chains of key groups as of the last epoch."""
        self.recovered += 1
        chains = {}
        for g in key_groups:
            snapshot = self.snapshots.get(g)
            after = -1 if snapshot is None else snapshot.version
            own = [s for s in self.segments if s.epoch > after and g in s.key_groups]
            version = own[-1].epoch if own else after
            chains[g] = KeyGroupChain(
                state=STATE, key_group=g, snapshot=snapshot, segments=tuple(own), version=version
            )
        return chains

    def prepare(self, local: LocalState, key_groups: Iterable[int] = range(NUM_KEY_GROUPS)) -> None:
        """Index key groups before a lane of this local store needs them."""
        chains = self.chains(sorted(key_groups))
        partial_copies.prepare(
            local,
            key_group_mask(chains, NUM_KEY_GROUPS),
            [s for s in self.segments if any(s in c.segments for c in chains.values())],
            {g: c.snapshot for g, c in chains.items() if c.snapshot is not None},
            storage=self.storage,
            epoch=self.epoch,
        )

    def bring(
        self,
        local: LocalState,
        touched: Sequence[str] | None,
        floor: Any,
        *,
        whole: Any = (),
        bound: int = 0,
        used: int = 0,
    ) -> int:
        """Bring copies forward as a lane does, and complete one; return the bytes missing then.

        `touched`: all entries if it is None. `used`: bytes of the bound that tables have.
        """
        mask = np.zeros(NUM_KEY_GROUPS, np.bool_)
        mask[[group_of(key) for key in touched or ()]] = True
        mask[list(whole)] = False
        needed = ALL if touched is None else mask.copy()
        needed[list(whole)] = True
        chains = self.chains(range(NUM_KEY_GROUPS))
        snapshots = {
            g: chain.snapshot
            for g, chain in chains.items()
            if chain.snapshot is not None and floor[g] < chain.snapshot.version
        }
        floor = floor.copy()
        floor[list(snapshots)] = -1
        few = (
            None
            if touched is None
            else Touched(hashes=hashes_of(touched), key_groups=mask, min_bytes=0)
        )
        cold, parts = catch_up_copies(
            local,
            needed,
            ALL,
            layout=EntryLayout(name="op", schema=COUNTS),
            storage=self.storage,
            segments=[s for s in self.segments if any(floor[g] < s.epoch for g in s.key_groups)],
            snapshots=snapshots,
            floor=floor,
            load=ALL,
            recover=self.chains,
            homes=np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 2,
            touched=few,
            bound_bytes=bound,
        )
        assert not cold.any()
        return parts.complete_some(ALL, until_s=0.0, used_bytes=used)


def counts_of(local: LocalState, keys: Sequence[str]) -> Entries:
    """Look keys up."""
    groups = np.array([group_of(key) for key in keys], np.int64)
    known, values = local.look_up(batch(COUNTS.keys, keys), groups)
    counts = values.column(0).to_pylist()
    return {key: count for key, count, has in zip(keys, counts, known, strict=True) if has}


def rows_of(rows: StateRows) -> Entries:
    """Return key → count."""
    counts = rows.values.column(0).to_pylist()
    return dict(zip(rows.keys.column(0).to_pylist(), counts, strict=True))


def new_store(path: Path) -> LocalState:
    return LocalState(path, "op", COUNTS, NUM_KEY_GROUPS)


def none() -> Any:
    return np.full(NUM_KEY_GROUPS, -1, np.int64)


def copies_of(local: LocalState, history: History) -> PartialCopies:
    return PartialCopies(
        local,
        layout=EntryLayout(name="op", schema=COUNTS),
        storage=history.storage,
        recover=history.chains,
        homes=np.zeros(NUM_KEY_GROUPS, np.int32),
        gone=None,
    )


def filled(root: Path) -> History:
    """A history of two epochs with all keys."""
    history = History(root)
    history.commit(dict.fromkeys(KEYS, 1))
    history.commit(dict.fromkeys(KEYS[::2], 2))
    return history


def test_the_first_epoch_reads_touched_keys_alone_and_later_ones_complete_the_copies(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    missing = [history.bring(local, KEYS[:4], none())]
    assert counts_of(local, KEYS[:4]) == {"k0": 2, "k1": 1, "k2": 2, "k3": 1}
    begun = np.flatnonzero(local.bases >= 0).tolist()
    assert begun == sorted({group_of(key) for key in KEYS[:4]})
    held_keys = sum(int(table._image.num_keys.sum()) for table in local._tables.values())
    assert held_keys == 4
    floor = local.versions.copy()
    for left in reversed(range(len(begun))):
        missing.append(history.bring(local, KEYS[:1], floor))
        assert np.count_nonzero(local.bases >= 0) == left
    assert missing == sorted(set(missing), reverse=True)
    assert missing[-1] == 0
    history.bring(local, None, local.versions.copy())
    assert {key: row[0] for key, row in held(local).items()} == history.truth


def test_what_another_machine_may_delete_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.checkpoint.storage.is_on_own_disk", lambda _: False)
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    assert not (local.bases >= 0).any()
    assert {key: row[0] for key, row in held(local).items()} == history.truth


def test_a_process_maps_a_limited_number_of_blocks_of_all_states_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_copies, "_MAX_BLOCKS", 3)
    monkeypatch.setattr(partial_copies, "_known", WeakKeyDictionary())
    history = filled(tmp_path)  # of two blocks
    first, second = (new_store(tmp_path / name) for name in ("first", "second"))
    for local in (first, second):
        history.bring(local, KEYS, none())
    assert (first.bases >= 0).any()
    assert not (second.bases >= 0).any()
    assert {key: row[0] for key, row in held(second).items()} == history.truth


def test_entries_of_a_partial_copy_are_never_read_as_all(tmp_path: Path) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    some = np.flatnonzero(local.bases >= 0)
    for read in (local.scan, lambda groups: local.min_after(groups, 1, after=0)):
        with pytest.raises(EpochFailedError, match="only those of some keys"):
            read(some)
    packs = [*pack_copies(local, some, run_id="r", state="op")]
    copies = unpack_copies(packs, some, run_id="r", state="op", schema=COUNTS)
    assert [*copies] == []


def test_a_process_that_dies_while_it_fills_leaves_no_copy_that_seems_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    write = "godwit.store.image.TableImage.write"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(write, die)
        with pytest.raises(KeyboardInterrupt):
            history.bring(local, KEYS, none())
    again = new_store(tmp_path / "local")
    history.bring(again, KEYS[:30], none())
    assert counts_of(again, KEYS[:30]) == {key: history.truth[key] for key in KEYS[:30]}
    floor = again.versions.copy()
    with monkeypatch.context() as patch:  # while copies are completed
        patch.setattr(write, die)
        with pytest.raises(KeyboardInterrupt):
            history.bring(new_store(tmp_path / "local"), None, floor)
    after = new_store(tmp_path / "local")
    history.bring(after, None, none())
    assert {key: row[0] for key, row in held(after).items()} == history.truth


def test_blocks_that_are_gone_are_looked_up_again(tmp_path: Path) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS[:20], none())
    old = [*history.segments]
    for g in range(NUM_KEY_GROUPS):
        history.write_snapshot(g)
    for segment in old:
        history.storage.delete(segment.block.file)
    history.segments.clear()
    floor = local.versions.copy()
    partial_copies._known[local].blocks._batches.clear()
    history.bring(local, KEYS[20:], floor, whole=range(0, NUM_KEY_GROUPS, 3))
    assert counts_of(local, KEYS[20:]) == {key: history.truth[key] for key in KEYS[20:]}


def test_a_corrupt_block_is_refused_by_name_and_leaves_no_copy_that_seems_whole(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS[:20], none())
    path = tmp_path / "checkpoint" / history.segments[1].block.file
    sound = path.read_bytes()
    path.unlink()  # the old file stays mapped
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    partial_copies._known[local].blocks._batches.clear()
    with pytest.raises(CorruptCheckpointError, match=path.name):
        history.bring(local, KEYS, local.versions.copy())
    path.write_bytes(sound)
    right = history.segments[1]
    history.segments[1] = replace(right, row_ends=(*right.row_ends[:-1], 99))
    again = new_store(tmp_path / "again")
    with pytest.raises(CorruptCheckpointError, match=r"segment of epoch 1 of .* rows, not 99"):
        history.bring(again, KEYS, none())
    history.segments[1] = right
    for store in (local, again):
        history.bring(store, None, none())
        assert {key: row[0] for key, row in held(store).items()} == history.truth


def test_under_a_bound_blocks_are_indexed_in_steps_before_entries_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, None, none(), bound=100, used=49)
    assert local not in partial_copies._known
    indexed: list[int] = []
    build = stored_index.SortedRun.build

    def counted(spans: Any, *arguments: Any) -> Any:
        spans = list(spans)
        indexed.append(sum(len(hashes) for *_, hashes in spans))
        return build(spans, *arguments)

    monkeypatch.setattr(stored_index.SortedRun, "build", counted)
    monkeypatch.setattr(stored_chains, "_PART_ROWS", 20)
    steps = 0
    while not steps or partial_copies._known[local].coming is not None:
        before = len(indexed)
        history.commit({KEYS[0]: steps})
        history.bring(local, KEYS[:1], local.versions.copy(), bound=100, used=50)
        assert len(indexed) <= before + 1
        steps += 1
        assert steps < 100
    assert len(indexed) > 1
    assert not (local.bases >= 0).any()
    assert steps > len(indexed)  # the blocks were verified before, one in each epoch
    indexed.clear()
    recovered = history.recovered
    local.evict(np.flatnonzero(ALL))
    history.bring(local, KEYS, local.versions.copy(), bound=100, used=50)
    assert counts_of(local, KEYS) == history.truth
    assert sum(indexed) <= steps  # rows of segments that are newer than the index
    assert history.recovered == recovered + 1  # by `bring` itself


def test_chains_that_have_doubled_are_indexed_again_while_the_former_index_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_chains, "_MIN_ROWS", 1)
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none(), bound=100, used=50)
    local.evict(np.flatnonzero(ALL))
    known, removed = partial_copies._known[local], False
    first = known._chains[0]
    for number in range(80):
        history.commit(dict.fromkeys(KEYS[::2], 1000 + number))
        history.bring(local, KEYS[1:4], local.versions.copy(), bound=100, used=50)
        local.evict(np.flatnonzero(ALL))
        if known._chains[0] is not first:
            break
        if known.coming is not None and not removed:  # compaction removes blocks to be verified
            for g in range(NUM_KEY_GROUPS):
                history.write_snapshot(g)
            (tmp_path / "checkpoint" / known.coming._blocks[-1].ref.block.file).unlink()
            removed = True
    assert removed
    assert known._chains[0] is not first
    history.bring(local, KEYS, local.versions.copy(), bound=100, used=50)
    assert counts_of(local, KEYS) == history.truth


def test_blocks_are_unmapped_though_another_process_has_dropped_the_partial_copies(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    assert local in partial_copies._known
    new_store(tmp_path / "local").drop(np.flatnonzero(ALL))
    copies_of(local, history).release(~ALL)
    assert local not in partial_copies._known


def test_a_copy_that_another_process_has_changed_meanwhile_is_never_taken_for_completed(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    last = max(KEYS, key=group_of)
    group = ALL & (np.arange(NUM_KEY_GROUPS) == group_of(last))
    history.commit({last: None})
    history.commit({})
    history.bring(new_store(tmp_path / "local"), [last], local.versions.copy())
    with pytest.raises(EpochFailedError, match="has changed in the local store"):
        copies_of(local, history).complete(group)
    copies_of(local, history).complete(group)
    assert local.bases[group] == -1


def held_keys(local: LocalState) -> int:
    """Return the number of keys in all tables."""
    return sum(int(table._image.num_keys.sum()) for table in local._tables.values())


def test_evicted_key_groups_fetch_touched_keys_again_and_those_of_later_epochs(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, None, none())
    history.commit({"k1": None, "k2": 9, "more": 7})
    history.bring(local, ["more"], local.versions.copy())
    local.evict(np.flatnonzero(ALL))
    assert held_keys(local) == 0
    for touched in (["k1", "k2", "k3"], ["k2", "more"]):
        history.bring(local, touched, local.versions.copy(), bound=1)
        expected = {key: history.truth[key] for key in touched if key in history.truth}
        assert counts_of(local, touched) == expected
    assert held_keys(local) == 3
    assert (local.bases >= 0).any()  # a bound of one byte leaves no room to complete them


def test_keys_that_were_fetched_are_read_from_the_checkpoint_once_until_they_are_evicted(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    groups = np.array([group_of(key) for key in KEYS])
    mask = np.isin(np.arange(NUM_KEY_GROUPS), groups)
    history.bring(local, KEYS[:9], none(), bound=1)

    def fetched(keys: Sequence[str]) -> int:
        local.refresh(np.flatnonzero(ALL))
        copies = copies_of(local, history)
        own = mask & (local.bases >= 0)
        copies.fetch(own, Touched(hashes=hashes_of(keys), key_groups=own, min_bytes=0))
        return copies.num_fetched

    begun = [key for key in KEYS if local.bases[group_of(key)] >= 0]
    first = [key for key in KEYS[:9] if key in begun]
    assert fetched(first) == 0
    others = [key for key in begun if key not in first]
    assert fetched(others) == len(others)
    assert fetched([*begun, *first]) == 0
    new_store(tmp_path / "local").drop(np.array([group_of(begun[0])]))
    other = new_store(tmp_path / "local")
    other.refresh(np.flatnonzero(ALL))
    other.evict(np.array([group_of(begun[-1])]))
    again = [key for key in begun if group_of(key) == group_of(begun[-1])]
    assert fetched([key for key in begun if group_of(key) != group_of(begun[0])]) == len(again)


def test_a_chain_is_extended_by_segments_and_looked_up_if_some_are_missing(
    tmp_path: Path,
) -> None:
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none(), bound=1)
    before = history.recovered
    for number in range(3):
        history.commit(dict.fromkeys(KEYS[number::3], number))
        history.bring(local, KEYS[:1], local.versions.copy(), bound=1)
    local.evict(np.flatnonzero(ALL))
    history.bring(local, KEYS, local.versions.copy(), bound=1)
    assert counts_of(local, KEYS) == history.truth
    assert history.recovered == before + 4  # by `bring` itself
    for number in range(2):  # in another process
        history.commit(dict.fromkeys(KEYS, 7 + number))
        history.bring(new_store(tmp_path / "local"), KEYS[:1], local.versions.copy(), bound=1)
    local.refresh(np.flatnonzero(ALL))
    local.evict(np.flatnonzero(ALL))
    (chains,) = partial_copies._known[local]._chains
    history.bring(local, KEYS, local.versions.copy(), bound=1)
    assert counts_of(local, KEYS) == history.truth
    assert history.recovered > before + 4 + 3
    assert partial_copies._known[local]._chains == [chains]  # so its index is extended too


@pytest.mark.parametrize("limit", ["_MIN_ROWS", "_MIN_BLOCKS"])
def test_chains_that_have_doubled_are_looked_up_and_their_blocks_are_unmapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(stored_chains, limit, 1)
    history, local = filled(tmp_path), new_store(tmp_path / "local")
    history.bring(local, KEYS, none(), bound=1)
    for number in range(48):
        local.evict(np.flatnonzero(ALL))
        history.commit(dict.fromkeys(KEYS, number))
        history.bring(local, KEYS, local.versions.copy(), bound=1)
        for g in range(0 if number % 2 else NUM_KEY_GROUPS):
            history.write_snapshot(g)
        assert counts_of(local, KEYS) == history.truth
        known = partial_copies._known[local]
        assert known.num_blocks <= 2 * NUM_KEY_GROUPS + 8
        assert len(known.blocks._batches) <= known.num_blocks


@pytest.mark.parametrize("seed", range(6))
def test_drawn_histories_read_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    if seed % 2:  # keys of a key group have one code, or a few, so that they are told apart by keys
        bits = np.uint64(seed // 2)
        monkeypatch.setattr(
            stored_index.KeyGroupRange,
            "prefixes",
            lambda _, h: (h.view(np.uint64) & bits) << np.uint64(32),
        )
        monkeypatch.setattr(stored_chains, "_numbers_of_equal_hashes", lambda h: h & int(bits))
    monkeypatch.setattr(stored_chains, "_PART_ROWS", 1 << rng.randrange(8))
    monkeypatch.setattr(stored_chains, "_RUN_ROWS", 1 << rng.randrange(8))
    monkeypatch.setattr(stored_chains, "_LONG_SPAN", rng.randrange(4))
    monkeypatch.setattr(stored_chains, "_MIN_ROWS", 1 << rng.randrange(8))
    monkeypatch.setattr(stored_chains, "_MIN_BLOCKS", 1 << rng.randrange(8))
    monkeypatch.setattr(partial_copies, "_MAX_NEWER", rng.randrange(4))
    bound = rng.choice((0, 1 << 30))
    history, stores = History(tmp_path), 0
    history.commit({key: rng.randrange(9) for key in KEYS})
    local, floor = new_store(tmp_path / "0"), none()
    for _ in range(25):
        chance = rng.random()
        if chance < 0.1:  # another executor, or a new run
            stores += 1
            local, floor = new_store(tmp_path / str(stores)), none()
        elif chance < 0.25:  # another process of the executor
            local = new_store(tmp_path / str(stores))
        elif chance < 0.35:
            dropped = np.array(sorted(rng.sample(range(NUM_KEY_GROUPS), 3)))
            local.drop(dropped)
            floor[dropped] = -1 if rng.random() < 0.5 else floor[dropped]
        elif chance < 0.42:
            local.refresh(np.arange(NUM_KEY_GROUPS))
            local.evict(np.array(sorted(rng.sample(range(NUM_KEY_GROUPS), rng.randrange(1, 16)))))
        elif chance < 0.5:
            for g in rng.sample(range(NUM_KEY_GROUPS), 4):
                history.write_snapshot(g)
        if rng.random() < 0.3:
            history.prepare(local, rng.sample(range(NUM_KEY_GROUPS), rng.randrange(1, 16)))
        if rng.random() < 0.1:
            history.bring(local, None, floor)
            assert {key: row[0] for key, row in held(local).items()} == history.truth
            floor = local.versions.copy()
            continue
        touched = rng.sample(KEYS, rng.randrange(1, 20)) + ["new"] * (rng.random() < 0.3)
        whole = rng.sample(range(NUM_KEY_GROUPS), 2) if rng.random() < 0.2 else ()
        if rng.random() < 0.2:  # an attempt that fails after it has read
            history.bring(local, touched, floor, whole=whole, bound=bound)
        history.bring(local, touched, floor, whole=whole, bound=bound)
        assert counts_of(local, touched) == {
            key: history.truth[key] for key in touched if key in history.truth
        }
        for g in whole:
            assert local.bases[g] < 0
        every = range(NUM_KEY_GROUPS)
        versions = np.array([chain.version for chain in history.chains(every).values()])
        for contents in copies_of(local, history).contents(np.array(every), versions):
            assert contents.epochs.tolist() == versions[contents.key_groups].tolist()
            assert rows_of(contents.rows) == {
                key: count
                for key, count in history.truth.items()
                if group_of(key) in contents.key_groups
            }
        newer = local.versions > floor
        if rng.random() < 0.7:
            floor[newer] = local.versions[newer]
        gone = 0.3 if rng.random() < 0.5 else 0.0
        history.commit(
            {
                key: None if rng.random() < gone else rng.randrange(9)
                for key in dict.fromkeys(touched)
            }
        )
    history.bring(local, None, none())
    assert {key: row[0] for key, row in held(local).items()} == history.truth
