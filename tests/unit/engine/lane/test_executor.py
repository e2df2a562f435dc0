from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support.key_tables import BLOBS, COUNTS

from godwit.engine.lane.executor import (
    claim_local_store,
    local_state,
    local_store_root,
    open_local_store,
)
from godwit.model.errors import LocalStoreError

if TYPE_CHECKING:
    from pathlib import Path

RUN = "0123456789ab-cdef00112233"


@pytest.mark.parametrize(
    ("run_id", "executor"),
    [
        ("../../etc-ab", "0"),
        ("ab-../../etc", "0"),
        ("/etc-ab", "0"),
        ("ab", "0"),
        ("-ab", "0"),
        ("AB-ab", "0"),
        ("ab-ab", ".."),
        ("ab-ab", "a/b"),
        ("ab-ab", ""),
        ("ab-ab\n", "0"),
    ],
)
def test_an_id_that_is_none_moves_no_store(tmp_path: Path, run_id: str, executor: str) -> None:
    with pytest.raises(LocalStoreError, match="cannot have a local store"):
        local_store_root(str(tmp_path), run_id, executor)


def test_a_planted_link_is_refused_and_what_it_points_to_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious" / "ab12"
    precious.mkdir(parents=True)
    (precious / "file").write_text("of someone else")
    shared = tmp_path / "shared"
    shared.mkdir()
    root = local_store_root(str(shared), RUN, "local-0")
    root.parent.parent.symlink_to(tmp_path / "precious")
    with pytest.raises(LocalStoreError, match="cannot be opened as a directory"):
        open_local_store(root)
    assert (precious / "file").exists()


def test_links_among_earlier_runs_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("of someone else")
    root = local_store_root(str(tmp_path), RUN, "local-0")
    root.mkdir(parents=True)
    earlier = root.parent.parent / "abcdef"
    earlier.mkdir()
    (earlier / "table").write_text("nobody trusts it")
    (root.parent.parent / "abcd").symlink_to(precious)
    (earlier / "link").symlink_to(precious)
    claim_local_store(root)
    assert not earlier.exists()
    assert (precious / "file").exists()
    assert root.exists()


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    root = local_store_root(str(tmp_path), RUN, "local-0")
    root.parent.mkdir(parents=True)
    os.chown(root.parent.parent, 12345, 12345)
    with pytest.raises(LocalStoreError, match="belongs to user 12345"):
        claim_local_store(root)
    assert root.parent.exists()


def test_a_directory_that_everybody_may_rename_things_in_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    root = local_store_root(str(shared), RUN, "local-0")
    with pytest.raises(LocalStoreError, match="no sticky bit"):
        claim_local_store(root)
    shared.chmod(0o1777)
    claim_local_store(root)
    assert root.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_run_opens_no_table_that_an_earlier_one_left_behind(tmp_path: Path) -> None:
    earlier = local_store_root(str(tmp_path), "0123456789ab-aaaa", "0")
    later = local_store_root(str(tmp_path), "0123456789ab-bbbb", "0")
    claim_local_store(earlier)
    (earlier / "operator").mkdir(parents=True)
    (earlier / "operator" / "000000.table").write_bytes(bytes(256))  # as a power cut may leave it
    claim_local_store(later)
    assert not earlier.exists()
    assert not any(later.rglob("*.table"))


def test_a_state_is_one_object_for_as_long_as_its_schema_stays(tmp_path: Path) -> None:
    root = local_store_root(str(tmp_path), RUN, "0")
    state = local_state(root, "op", COUNTS, 4)
    assert local_state(root, "op", COUNTS, 4) is state
    assert local_state(root, "op", BLOBS, 4) is not state
    assert local_state(root, "other", COUNTS, 4) is not state
