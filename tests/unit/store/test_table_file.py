"""Facts about files of tables on disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.key_tables import BLOBS, COUNTS

from godwit.model.errors import LocalStoreError, StorageFullError
from godwit.store.image import TableImage, blank_image, create_file, open_file
from godwit.store.layout import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.store.columns import StateSchema

CAPACITY = (2**20, 0, 2**24, 0, 0, 0, 0)
ROOM = (1000, 0, 4096, 0, 0, 0, 0)


def create(path: Path) -> TableImage:
    return create_file(path, COUNTS, 4, CAPACITY, ROOM)


def test_a_created_file_is_sparse_and_has_blocks_for_its_room(tmp_path: Path) -> None:
    path = tmp_path / "op" / "1.table"
    file = create(path)
    stat = path.stat()
    assert stat.st_size == layout_of(COUNTS, 4, CAPACITY).file_bytes
    needed = sum(length for _, length in file.layout.extents(None, ROOM))
    assert needed <= stat.st_blocks * 512 < needed + 200_000
    assert file.room == ROOM


def test_a_file_grows_in_place(tmp_path: Path) -> None:
    file = create(tmp_path / "1.table")
    more = (5000, 0, 10_000, 0, 0, 0, 0)
    before = (tmp_path / "1.table").stat()
    file.grow(more, 1 << 14)
    after = (tmp_path / "1.table").stat()
    assert (file.room, file.slots) == (more, 1 << 14)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_blocks > before.st_blocks


def test_what_one_mapping_writes_another_reads(tmp_path: Path) -> None:
    path = tmp_path / "1.table"
    file = create(path)
    file.versions[2] = 9
    opened = open_file(path, COUNTS, 4)
    assert opened is not None
    assert opened.identity == file.identity
    assert opened.versions.tolist() == [-1, -1, 9, -1]


def test_a_leftover_is_replaced_and_not_reused(tmp_path: Path) -> None:
    old, new = create(tmp_path / "1.new"), create(tmp_path / "1.new")
    assert new.identity != old.identity
    old.versions[0] = 3
    assert new.versions[0] == -1


def test_a_missing_file_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "1.table", COUNTS, 4)


@pytest.mark.parametrize("size", [0, 7, 64, 500, -1])
def test_a_file_cut_short_is_no_table(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1.table"
    file = create(path)
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert not file.is_whole
    assert open_file(path, COUNTS, 4) is None


def test_a_file_of_another_schema_or_number_of_key_groups_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "1.table"
    create(path)
    for schema, num_key_groups in ((BLOBS, 4), (COUNTS, 8)):
        assert open_file(path, schema, num_key_groups) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_was_needed_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    path = tmp_path / "1.table"
    with pytest.raises(StorageFullError, match=r"needs \d+ bytes for .*1.table.*Free") as caught:
        create(path)
    assert caught.value.context["path"] == str(path)
    assert not path.exists()


def test_a_full_disk_leaves_a_file_that_cannot_grow_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    file = create(tmp_path / "1.table")
    slots = file.slots
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFullError):
        file.grow(CAPACITY, 1 << 14)
    assert (file.room, file.slots) == (ROOM, slots)


def test_other_errors_of_the_file_system_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "disk on fire")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="disk on fire"):
        create(tmp_path / "1.table")


def test_a_blank_table_is_empty_and_has_no_file() -> None:
    blank = blank_image(COUNTS, 4)
    assert (blank.versions.tolist(), blank.live, blank.used) == ([-1] * 4, 0, 0)


@pytest.mark.parametrize("schema", [COUNTS, BLOBS])
def test_what_is_read_without_being_written_has_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: StateSchema
) -> None:
    blocks: list[range] = []
    monkeypatch.setattr(
        os, "posix_fallocate", lambda _, at, size: blocks.append(range(at, at + size))
    )
    blobs = (2**20, 0, 0, 2**20, 2**24), (1000, 0, 0, 1000, 4096)
    capacity, room = (CAPACITY, ROOM) if schema is COUNTS else blobs
    layout = create_file(tmp_path / "1.table", schema, 4, capacity, room).layout
    for array in layout._arrays:
        if array.section.per != "byte":
            size = array.section.dtype.itemsize * (array.section.width or 1)
            last = array.end(capacity) - size
            # Rows and entries up to the room's, and one more offset than entries; the last of all.
            for place in (array.start, array.end(room) - size, last):
                assert any(place in block for block in blocks), array


def test_a_full_file_system_in_memory_is_an_error_and_no_signal(tmp_path: Path) -> None:
    enter = ["unshare", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run([*enter, "true"], check=False, capture_output=True)
    except FileNotFoundError:
        pytest.skip("There is no unshare(1) here.")
    if allowed.returncode:
        pytest.skip("This user may not mount a file system of its own.")
    program = Path(__file__).parents[2] / "support" / "full_tmpfs.py"
    run = f"mount -t tmpfs -o size=1100k tmpfs '{tmp_path}' && exec '{sys.executable}' '{program}'"
    command = [*enter, "sh", "-c", f"{run} '{tmp_path}'"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 50 < int(done.stdout) < 275  # of 275 pages: both too little room and enough


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda p: p.symlink_to("elsewhere")])
def test_anything_but_a_file_in_the_place_of_a_table_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "1.table"
    make(path)
    with pytest.raises(LocalStoreError, match=r"1\.table, which is not a regular file.*remove"):
        open_file(path, COUNTS, 4)
    assert path.exists() or path.is_symlink()
