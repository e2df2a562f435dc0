"""The hash functions give the bits of the reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from godwit.columns import hashing
from godwit.columns.hashing import hash_bytes, hash_int32, hash_int64

RNG = np.random.default_rng(7)
SEEDS = RNG.integers(0, 2**63, 500).astype(np.uint64) * np.uint64(2) + np.uint64(1)


def reference(values: list[bytes], seeds: np.ndarray) -> list[int]:
    return [
        xxhash.xxh64_intdigest(value, seed)
        for value, seed in zip(values, seeds.tolist(), strict=True)
    ]


def test_integers_of_eight_bytes_hash_as_their_little_endian_bytes() -> None:
    values = RNG.integers(-(2**63), 2**63 - 1, 500)
    expected = reference([value.tobytes() for value in values], SEEDS)
    assert hash_int64(values, SEEDS).tolist() == expected


def test_integers_of_four_bytes_hash_as_their_little_endian_bytes() -> None:
    values = RNG.integers(-(2**31), 2**31 - 1, 500).astype(np.int32)
    expected = reference([value.tobytes() for value in values], SEEDS)
    assert hash_int32(values, SEEDS).tolist() == expected


@pytest.mark.parametrize("block", [1, 7, 1 << 15])
def test_bytes_of_every_length_hash_alike_in_blocks_of_any_size(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_BLOCK", block)
    lengths = np.concatenate([np.arange(140), RNG.integers(0, 900, 60)])
    RNG.shuffle(lengths)
    values = [RNG.bytes(int(length)) for length in lengths]
    data = np.frombuffer(b"".join(values), np.uint8)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    seeds = SEEDS[: len(values)]
    assert hash_bytes(data, starts, lengths, seeds).tolist() == reference(values, seeds)


def test_bytes_of_one_length_hash_alike() -> None:
    values = [RNG.bytes(43) for _ in range(50)]
    data = np.frombuffer(b"".join(values), np.uint8)
    starts, lengths = np.arange(50) * 43, np.full(50, 43)
    assert hash_bytes(data, starts, lengths, SEEDS[:50]).tolist() == reference(values, SEEDS[:50])


def test_values_may_lie_anywhere_and_overlap() -> None:
    data = np.frombuffer(RNG.bytes(64), np.uint8)
    starts, lengths = np.array([40, 3, 0, 64, 3]), np.array([24, 37, 64, 0, 37])
    values = [bytes(data[s : s + n]) for s, n in zip(starts, lengths, strict=True)]
    assert hash_bytes(data, starts, lengths, SEEDS[:5]).tolist() == reference(values, SEEDS[:5])


def test_no_rows_give_no_hashes() -> None:
    nothing, seeds = np.empty(0, np.int64), np.empty(0, np.uint64)
    assert len(hash_bytes(np.empty(0, np.uint8), nothing, nothing, seeds)) == 0
    assert len(hash_int64(nothing, seeds)) == 0
    assert len(hash_int32(nothing.astype(np.int32), seeds)) == 0
