"""Facts about files of tables on disk."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from tests.unit.state.key_tables import BLOBS, COUNTS

from godwit.model.errors import StorageFullError
from godwit.state.layout import Capacity, file_bytes
from godwit.state.table_file import blank_image, create_file, map_file, version_in

if TYPE_CHECKING:
    from pathlib import Path

CAPACITY = Capacity(rows=33, columns=((0, 512), (0, 0), (0, 0)))


def test_a_created_file_has_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "op" / "1.table"
    create_file(path, COUNTS, CAPACITY)
    stat = path.stat()
    assert stat.st_size == file_bytes(COUNTS, CAPACITY)
    assert stat.st_blocks * 512 >= stat.st_size


def test_what_one_mapping_writes_another_reads(tmp_path: Path) -> None:
    path = tmp_path / "1.table"
    image, identity = create_file(path, COUNTS, CAPACITY)
    image.version = 9
    mapped = map_file(path, COUNTS)
    assert mapped is not None
    assert mapped[1] == identity
    assert mapped[0] is not None
    assert mapped[0].version == version_in(path) == 9


def test_a_leftover_is_replaced_and_not_reused(tmp_path: Path) -> None:
    path = tmp_path / "1.new"
    old, old_identity = create_file(path, COUNTS, CAPACITY)
    _, identity = create_file(path, COUNTS, CAPACITY)
    assert identity != old_identity
    old.version = 3
    assert version_in(path) == -1


def test_a_missing_file_is_no_table(tmp_path: Path) -> None:
    assert map_file(tmp_path / "1.table", COUNTS) is None
    assert version_in(tmp_path / "1.table") is None


@pytest.mark.parametrize("size", [0, 7, 64, 500])
def test_a_file_cut_short_is_no_table(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1.table"
    create_file(path, COUNTS, CAPACITY)
    os.truncate(path, size)
    mapped = map_file(path, COUNTS)
    assert mapped is not None
    assert mapped[0] is None
    assert version_in(path) is None


def test_a_file_of_another_schema_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "1.table"
    create_file(path, COUNTS, CAPACITY)
    mapped = map_file(path, BLOBS)
    assert mapped is not None
    assert mapped[0] is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_was_needed_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    path = tmp_path / "1.table"
    size = file_bytes(COUNTS, CAPACITY)
    with pytest.raises(StorageFullError, match=f"needs {size} bytes for .*1.table.*Free") as caught:
        create_file(path, COUNTS, CAPACITY)
    assert caught.value.context == {"path": str(path), "needed_bytes": size}
    assert not path.exists()


def test_other_errors_of_the_file_system_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "disk on fire")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="disk on fire"):
        create_file(tmp_path / "1.table", COUNTS, CAPACITY)


def test_a_blank_table_is_empty_and_has_no_file() -> None:
    blank = blank_image(COUNTS)
    assert (blank.version, blank.num_keys, blank.state_bytes, blank.dirty) == (-1, 0, 0, False)
