"""Facts about the index of stored rows: its order, its runs, and what is found in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from godwit.checkpoint.stored_index import (
    Buckets,
    KeyGroupRange,
    SortedRun,
    estimate_num_keys,
)
from godwit.columns.groups import group_rows
from godwit.model.key_groups import key_groups_of
from godwit.store.index import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def drawn_hashes(count: int, seed: int = 1) -> Integers:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count)


def run_of(blocks: Sequence[Integers], num_key_groups: int = 1, *, first: int = 0) -> SortedRun:
    """A run over whole blocks, which are numbered from `first`."""
    spans = [
        (number, np.zeros(1, np.int64), np.array([len(hashes)]), hashes)
        for number, hashes in enumerate(blocks, start=first)
    ]
    every = KeyGroupRange(num_key_groups=num_key_groups, first=0, count=num_key_groups)
    return SortedRun.build(spans, every, None)


def places_of(run: SortedRun, hashes: Integers) -> list[tuple[int, int]]:
    owners, places = run.find(distinct(run.key_groups.prefixes(hashes)))
    return list(zip(owners.tolist(), places.tolist(), strict=True))


@pytest.mark.parametrize("num_key_groups", [1, 7, 8, 1000])
def test_rows_in_the_order_of_groups_are_in_the_order_of_codes(num_key_groups: int) -> None:
    hashes = drawn_hashes(5000)
    keys = pa.record_batch({"k": pa.array(hashes)})
    ordered = group_rows(hashes, keys, num_key_groups).hashes
    every = KeyGroupRange(num_key_groups=num_key_groups, first=0, count=num_key_groups)
    codes = every.prefixes(ordered)
    assert (codes[1:] >= codes[:-1]).all()
    assert len(np.unique(codes)) == len(codes)
    groups = key_groups_of(ordered, num_key_groups)
    some = (groups >= num_key_groups // 3) & (groups < num_key_groups // 3 + num_key_groups // 5)
    part = KeyGroupRange(
        num_key_groups=num_key_groups, first=num_key_groups // 3, count=num_key_groups // 5
    )
    codes = part.prefixes(ordered[some])
    assert (codes[1:] >= codes[:-1]).all()


@pytest.mark.parametrize("ordered", [True, False])
def test_all_rows_of_a_hash_are_found_and_older_ones_come_first(ordered: bool) -> None:
    hashes = np.sort(drawn_hashes(300)) if ordered else drawn_hashes(300)
    run = run_of([hashes, hashes[100:], hashes[200:]])
    assert places_of(run, hashes[:1]) == [(0, 0)]
    assert places_of(run, hashes[250:251]) == [(0, 250), (1, 150), (2, 50)]
    assert len(places_of(run, hashes)) == 300 + 200 + 100
    assert places_of(run, drawn_hashes(300, seed=2)) == []


def test_merged_runs_find_what_they_found_apart(tmp_path: Path) -> None:
    hashes = drawn_hashes(400)
    older, newer = run_of([hashes[:300]], 8), run_of([hashes[200:], hashes[250:]], 8, first=1)
    merged = older.followed_by(newer, tmp_path)
    assert places_of(merged, hashes) == [*places_of(older, hashes), *places_of(newer, hashes)]
    assert merged.num_rows == older.num_rows + newer.num_rows


@pytest.mark.parametrize("versions", [1, 3])
def test_the_number_of_keys_is_estimated_whatever_their_versions(versions: int) -> None:
    hashes = drawn_hashes(20_000)
    runs = [run_of([hashes[:12_000]]), *[run_of([hashes[4000:]])] * versions]
    assert estimate_num_keys(runs) == pytest.approx(20_000, rel=0.1)


@pytest.mark.parametrize(
    "codes",
    [
        drawn_hashes(3000).view(np.uint64),
        drawn_hashes(3000).view(np.uint64) >> np.uint64(9),
        np.append(np.arange(2000, dtype=np.uint64), np.uint64(2**64 - 1)),  # nearly all in a bucket
        np.array([7, 7, 7], np.uint64),
        np.array([2**63], np.uint64),
    ],
    ids=["spread", "narrow", "crowded", "equal", "one"],
)
def test_buckets_lead_to_the_first_code_that_is_not_below(codes: npt.NDArray[np.uint64]) -> None:
    codes = np.sort(codes)
    asked = np.concatenate((codes, codes + np.uint64(1), codes - np.uint64(1), drawn_hashes(100)))
    asked = np.append(asked.view(np.uint64), np.array([0, 2**64 - 1], np.uint64))
    assert np.array_equal(Buckets(codes).first(asked), np.searchsorted(codes, asked))
