"""Pairs of key groups are kept where they say something, and never many."""

from __future__ import annotations

import numpy as np

from godwit.model.key_groups import OTHERS, KeyGroupPairs


def as_dict(pairs: KeyGroupPairs) -> dict[tuple[int, int], float]:
    return {
        (s, t): r
        for s, t, r in zip(
            pairs.source.tolist(), pairs.target.tolist(), pairs.rows.tolist(), strict=True
        )
    }


def test_rows_are_counted_by_pair() -> None:
    pairs = KeyGroupPairs.counted(np.array([3, 3, 0, 3]), np.array([5, 5, 2, 1]), 2.0)
    assert as_dict(pairs) == {(0, 2): 2.0, (3, 1): 2.0, (3, 5): 4.0}
    assert len(KeyGroupPairs.counted(np.empty(0, np.int64), np.empty(0, np.int64))) == 0


def test_targets_that_get_less_than_an_eighth_count_together() -> None:
    source = np.repeat([0, 1], 160)
    target = np.concatenate([np.arange(160) % 16, np.where(np.arange(160) < 150, 7, 9)])
    pairs = KeyGroupPairs.counted(source, target)
    assert as_dict(pairs) == {(0, OTHERS): 160.0, (1, OTHERS): 10.0, (1, 7): 150.0}
    assert as_dict(pairs.known) == {(1, 7): 150.0}


def test_there_are_at_most_nine_entries_for_a_sender_and_no_row_is_lost() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 64, 9000), rng.zipf(1.5, 9000) % 64
    pairs = KeyGroupPairs.counted(source, target)
    assert np.bincount(pairs.source).max() <= 9
    assert pairs.rows.sum() == 9000


def test_sums_over_lanes_and_epochs_keep_what_is_frequent_in_the_sum() -> None:
    one = KeyGroupPairs.counted(np.array([0] * 4), np.array([1, 1, 1, 2]))
    other = KeyGroupPairs.counted(np.array([0] * 20), np.array([1] * 18 + [3, 4]))
    assert as_dict(KeyGroupPairs.total([one, other])) == {(0, OTHERS): 3.0, (0, 1): 21.0}
    assert as_dict(KeyGroupPairs.total([one]).times(0.5)) == {(0, 1): 1.5, (0, 2): 0.5}
    assert len(KeyGroupPairs.total([])) == 0
