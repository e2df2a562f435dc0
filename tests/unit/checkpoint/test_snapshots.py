from __future__ import annotations

import numpy as np
import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.chains import Chains, choose_snapshots
from godwit.checkpoint.records import (
    BlockRef,
    CommitRecord,
    SegmentRef,
    SnapshotRef,
    StateId,
    commit_path,
)

NUM_KEY_GROUPS = 8
STATE = StateId("op", "state")


def block(length: int) -> BlockRef:
    return BlockRef(file="blocks/x.blk", offset=0, length=length, checksum=0)


def segment(epoch: int, key_group: int, length: int) -> SegmentRef:
    return segment_ref(epoch=epoch, block=block(length), key_groups=(key_group,))


def snapshot(key_group: int, version: int, length: int) -> SnapshotRef:
    return snapshot_ref(key_group=key_group, version=version, block=block(length))


def chains_of(sizes: dict[int, tuple[int, int]]) -> Chains:
    """Build chains with (snapshot bytes, changelog bytes) per key group, one segment each."""
    chains = Chains(NUM_KEY_GROUPS)
    chains.apply(
        CommitRecord(
            epoch=0,
            run_id="r",
            segments=tuple(segment(0, g, 1) for g in sizes),
            snapshots=tuple(snapshot(g, 0, s) for g, (s, _) in sizes.items() if s),
        )
    )
    chains.apply(
        CommitRecord(
            epoch=1, run_id="r", segments=tuple(segment(1, g, c) for g, (_, c) in sizes.items())
        )
    )
    return chains


def choose(chains: Chains, *, budget_bytes: int = 10**9, growth: float = 1.0) -> list[int]:
    return choose_snapshots(
        chains,
        STATE,
        range(NUM_KEY_GROUPS),
        budget_bytes=budget_bytes,
        growth=growth,
        segment_overhead_bytes=0,
        min_changelog_bytes=10,
    )


def test_a_key_group_is_due_when_its_changelog_has_outgrown_its_snapshot() -> None:
    chains = chains_of({0: (100, 99), 1: (100, 100), 2: (100, 101)})
    assert choose(chains) == [2, 1]
    assert choose(chains, growth=0.5) == [2, 1, 0]


def test_the_one_that_has_outgrown_most_comes_first_and_ties_in_order() -> None:
    chains = chains_of({0: (100, 200), 3: (10, 100), 5: (50, 100), 6: (0, 50)})
    assert choose(chains) == [6, 3, 0, 5]


def test_small_changelogs_are_left_alone() -> None:
    assert choose(chains_of({0: (0, 8), 1: (1, 9)})) == []


def test_no_more_is_written_than_the_budget() -> None:
    chains = chains_of({g: (100, 200 + g) for g in range(6)})
    assert choose(chains, budget_bytes=700) == [5, 4]


def test_one_key_group_larger_than_the_budget_is_not_put_off_for_ever() -> None:
    chains = chains_of({0: (100, 200)})
    assert choose(chains, budget_bytes=1) == [0]
    assert choose(chains, budget_bytes=0) == []


def test_only_candidates_are_chosen() -> None:
    chains = chains_of(dict.fromkeys(range(6), (100, 200)))
    for candidates in ([4, 2], np.array([2, 4, 4], np.int32)):
        assert choose_snapshots(
            chains, STATE, candidates, budget_bytes=10**9, min_changelog_bytes=0
        ) == [2, 4]
    assert choose_snapshots(chains, STATE, [], budget_bytes=10**9) == []


def test_an_operator_without_state_has_nothing_to_choose() -> None:
    assert choose_snapshots(Chains(4), STATE, range(4), budget_bytes=10**9) == []


@pytest.mark.parametrize("changed_bytes", [100, 5_000])
@pytest.mark.parametrize("state_bytes", [2_000, 1_000_000])
def test_what_is_rewritten_is_a_constant_factor_of_what_was_changed(
    state_bytes: int, changed_bytes: int
) -> None:
    overhead, epochs = 1_000, 2_000
    chains = Chains(NUM_KEY_GROUPS)
    first = segment(0, 0, state_bytes)
    chains.apply(CommitRecord(epoch=0, run_id="r", segments=(first,)))
    rewritten = longest = 0
    for epoch in range(1, epochs):
        due = choose_snapshots(chains, STATE, [0], budget_bytes=1, segment_overhead_bytes=overhead)
        snapshots = (snapshot(0, epoch - 1, state_bytes),) if due else ()
        rewritten += len(snapshots) * state_bytes
        record = CommitRecord(
            epoch=epoch,
            run_id="r",
            segments=(segment(epoch, 0, changed_bytes),),
            snapshots=snapshots,
        )
        chains.apply(record)
        longest = max(longest, int(chains.chains_of(STATE).num_segments[0]))
    # One snapshot of the state as it came is beside the point.
    assert rewritten - state_bytes <= epochs * (changed_bytes + overhead)
    assert longest <= max(state_bytes, 64 * 1024) / (changed_bytes + overhead) + 2


def in_record(epoch: int, length: int) -> BlockRef:
    return BlockRef(file=commit_path(epoch), offset=0, length=length, checksum=0)


def test_a_chain_that_reads_a_file_before_the_log_is_due_however_short_it_is() -> None:
    chains = chains_of({0: (100, 1), 1: (100, 1), 2: (100, 1)})
    chains.apply(CommitRecord(epoch=2, run_id="r", snapshots=(snapshot(1, 1, 100),)))
    moved = snapshot_ref(key_group=2, version=1, block=in_record(3, 100))
    chains.apply(CommitRecord(epoch=3, run_id="r", snapshots=(moved,)))

    def due(log_from: int) -> list[int]:
        return choose_snapshots(
            chains, STATE, range(NUM_KEY_GROUPS), budget_bytes=10**9, log_from=log_from
        )

    assert [due(log_from) for log_from in (1, 2, 3, 4)] == [[], [0], [0], [0, 2]]


def test_a_snapshot_of_the_same_version_replaces_that_in_an_older_file() -> None:
    chains = Chains(NUM_KEY_GROUPS)
    chains.apply(CommitRecord(epoch=0, run_id="r", segments=(segment(0, 1, 10),)))
    for epoch in (1, 2):
        again = snapshot_ref(key_group=1, version=0, block=in_record(epoch, 10))
        chains.apply(CommitRecord(epoch=epoch, run_id="r", snapshots=(again,)))
    assert [block.file for block in chains.blocks()] == [commit_path(2)]
    assert chains.chain_since(STATE, 1, 0).snapshot is None
    restored = Chains.restore(chains.manifest())
    assert restored.chains_of(STATE).oldest.tolist() == chains.chains_of(STATE).oldest.tolist()


def test_key_groups_that_rarely_change_do_not_keep_the_changes_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.checkpoint.chains.MIN_LOG_BYTES", 2**16)
    random = np.random.default_rng(1)
    operators = {"busy": 4_000, "rare": 500}  # and the bytes of their snapshots
    growth = 4.0
    chains = Chains(NUM_KEY_GROUPS)
    sizes: dict[str, int] = {}
    retained = rewritten = changed = 0
    for epoch in range(600):
        if epoch % 100 == 99:
            chains = Chains.restore(chains.manifest())
        log_from = chains.log_from(growth)
        segments, snapshots = [], []
        for operator, size in operators.items():
            for g in choose_snapshots(
                chains,
                StateId(operator, "state"),
                np.arange(epoch % 2, NUM_KEY_GROUPS, 2),
                budget_bytes=10**9,
                growth=growth,
                log_from=log_from,
            ):
                version = int(chains.versions(StateId(operator, "state"))[g])
                block = in_record(epoch, size)
                snapshots.append(
                    snapshot_ref(operator=operator, key_group=g, version=version, block=block)
                )
            often = [g for g in range(NUM_KEY_GROUPS) if random.random() < 3.0**-g]
            key_groups = range(NUM_KEY_GROUPS) if operator == "busy" else often
            segments += [
                segment_ref(
                    operator=operator, epoch=epoch, key_groups=(g,), block=in_record(epoch, 1_000)
                )
                for g in key_groups
            ]
        chains.apply(
            CommitRecord(
                epoch=epoch, run_id="r", segments=tuple(segments), snapshots=tuple(snapshots)
            )
        )
        written = sum(ref.block.length for ref in snapshots)
        rewritten += written
        changed += sum(ref.block.length for ref in segments)
        sizes[commit_path(epoch)] = written + 1_000 * len(segments)
        if epoch % 20 == 19:
            files = {block.file for block in chains.blocks()}
            retained = max(retained, sum(sizes[file] for file in files))
    state = NUM_KEY_GROUPS * sum(operators.values())
    assert retained <= 2**16 + (growth + 1) * state
    # The snapshots cost no more than by the growth of single key groups.
    assert rewritten <= changed * (1 + 4096 / 1_000) / growth + state
