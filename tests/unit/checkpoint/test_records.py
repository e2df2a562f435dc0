from __future__ import annotations

import pickle

import pytest
from tests.support.records import segment_ref

from godwit.checkpoint.records import (
    BlockRef,
    commit_path,
    manifest_path,
    number_in,
    padded,
    run_path,
)


def test_every_numbered_name_gives_its_number_back() -> None:
    for path in (commit_path(12), manifest_path(12), run_path(12)):
        assert number_in(path) == 12
    assert number_in("blocks/000000000007-by_plane-lane3-0af3.blk") == 7


@pytest.mark.parametrize(
    "path",
    [
        "commits/12",  # Spark's own commit log, should it share the directory
        "commits/.12.crc",
        "commits/000000000012.rec.bak",
        "other/000000000012.rec",
        "identity.rec",
        "blocks/readme.txt",
        "000000000012.rec",
    ],
)
def test_a_name_that_is_not_ours_has_no_number(path: str) -> None:
    assert number_in(path, temporary=True) is None


def test_a_temporary_name_counts_only_where_asked() -> None:
    path = commit_path(3) + ".0af3.tmp"
    assert number_in(path) is None
    assert number_in(path, temporary=True) == 3


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_lengths_are_rounded_up(length: int, expected: int) -> None:
    assert padded(length) == expected


def test_references_survive_pickling_on_their_way_to_an_executor() -> None:
    block = BlockRef(file="", offset=0, length=1, checksum=2, data=b"x")
    segment = segment_ref(operator="a", epoch=1, block=block, key_groups=(1, 2), row_ends=(3, 4))
    assert pickle.loads(pickle.dumps(segment)) == segment
