from __future__ import annotations

import errno
import os
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from godwit.checkpoint.storage import (
    CheckpointStorage,
    LocalStorage,
    PosixDisk,
    RemoteStorage,
    is_on_own_disk,
)
from godwit.model.errors import CheckpointError, CorruptCheckpointError, StorageFullError


def mock_storage(*, renames: bool) -> RemoteStorage:
    filesystem, root = pyarrow.fs.FileSystem.from_uri("mock:///bucket/ck")
    return RemoteStorage(
        filesystem, root, uri="mock:///bucket/ck", renames=renames, single_driver=True
    )


@pytest.fixture(params=["local", "object store", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    if request.param == "local":
        return CheckpointStorage.open(tmp_path / "ck")
    return mock_storage(renames=request.param == "hdfs")


def test_what_is_written_is_read_whole_and_in_part(storage: CheckpointStorage) -> None:
    storage.write_atomic("a/b.rec", b"0123456789")
    assert storage.read("a/b.rec").to_pybytes() == b"0123456789"
    assert storage.read("a/b.rec", 3, 4).to_pybytes() == b"3456"
    assert storage.read("a/b.rec", 10).to_pybytes() == b""


def test_write_atomic_replaces(storage: CheckpointStorage) -> None:
    storage.write_atomic("x", b"old")
    storage.write_atomic("x", b"new")
    assert storage.read("x").to_pybytes() == b"new"
    assert list(storage.list("")) == ["x"]


def test_an_exclusive_file_is_created_once_and_leaves_nothing_else(
    storage: CheckpointStorage,
) -> None:
    storage.create_exclusive("runs/1", b"first")
    with pytest.raises(FileExistsError):
        storage.create_exclusive("runs/1", b"second")
    assert storage.read("runs/1").to_pybytes() == b"first"
    assert list(storage.list("runs")) == ["runs/1"]


def test_an_output_appears_with_all_its_parts(storage: CheckpointStorage) -> None:
    with closing(storage.open_output("blocks/x.blk")) as output:
        output.write(b"one")
        output.write(pa.py_buffer(b"two"))
        output.write(memoryview(b"three"))
    assert storage.read("blocks/x.blk").to_pybytes() == b"onetwothree"


def test_an_output_that_is_aborted_leaves_nothing(storage: CheckpointStorage) -> None:
    output = storage.open_output("blocks/x.blk")
    output.write(b"one")
    output.abort()
    assert storage.list("blocks") == {}


def test_files_are_listed_in_order_with_sizes_and_without_directories(
    storage: CheckpointStorage,
) -> None:
    storage.write_atomic("d/b", b"12")
    storage.write_atomic("d/a", b"1")
    storage.write_atomic("d/e/c", b"123")
    assert list(storage.list("d").items()) == [("d/a", 1), ("d/b", 2)]
    assert storage.list("nowhere") == {}


def test_deleting_twice_is_no_error(storage: CheckpointStorage) -> None:
    storage.write_atomic("x", b"1")
    storage.delete("x")
    storage.delete("x")
    assert storage.list("") == {}


def test_a_missing_file_is_named(storage: CheckpointStorage) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"'blocks/no\.blk' is missing") as caught:
        storage.read("blocks/no.blk")
    assert caught.value.context["file"] == "blocks/no.blk"
    assert caught.value.remedy


def test_a_truncated_file_is_named_with_its_size(storage: CheckpointStorage) -> None:
    storage.write_atomic("x", b"123")
    with pytest.raises(CorruptCheckpointError, match=r"'x'.*has 3 bytes and 5 are needed"):
        storage.read("x", 1, 4)


def test_local_storage_survives_pickling(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    storage.write_atomic("x", b"1")
    again = pickle.loads(pickle.dumps(storage))
    assert again.uri == storage.uri
    assert again.read("x").to_pybytes() == b"1"


def test_a_remote_storage_is_opened_again_by_its_uri() -> None:
    again = pickle.loads(pickle.dumps(mock_storage(renames=False)))
    assert isinstance(again, RemoteStorage)
    assert again.uri == "mock:///bucket/ck"


def test_a_relative_path_means_the_same_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = CheckpointStorage.open("ck")
    storage.write_atomic("x", b"1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert storage.read("x").to_pybytes() == b"1"


def test_a_file_is_not_taken_for_a_directory_that_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "checkpoint"):
        with pytest.raises(CheckpointError, match="is a file, or lies within one"):
            CheckpointStorage.open(str(place)).list("")


def test_a_file_uri_is_local(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(f"file://{tmp_path}/ck")
    assert isinstance(storage, LocalStorage)
    assert storage.uri == f"{tmp_path}/ck"


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"Cannot open ftp://host/x: .*s3://"):
        CheckpointStorage.open("ftp://host/x")


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("ext4", True),
        ("xfs", True),
        ("overlay", True),
        ("nfs4", False),
        ("cifs", False),
        ("fuse.sshfs", False),
        ("autofs", False),
        ("not yet known", False),
    ],
)
def test_files_stay_mapped_on_disks_of_this_machine_alone(
    tmp_path: Path, kind: str, own: bool
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    about = Path(f"/proc/self/fdinfo/{descriptor}").read_text().split()
    os.close(descriptor)
    mount = int(about[about.index("mnt_id:") + 1])
    other = "ext4" if kind == "nfs4" else "nfs4"
    lines = [
        f"{mount}1 1 0:50 / {tmp_path} rw shared:9 - {other} server:/x rw",
        f"{mount} 1 0:51 /a /mnt/a\\040b rw,relatime shared:1 master:2 - {kind} source rw",
        f"{mount + 1} 1 0:52 / {tmp_path}/checkpoint rw - {other} server:/y rw",
    ]
    mounts = tmp_path / "mounts"
    mounts.write_text("\n".join(lines) + "\n")
    assert is_on_own_disk(tmp_path, mounts=mounts) is own
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_on_own_disk(tmp_path / "link", mounts=mounts) is own
    mounts.write_text(lines[0] + "\n")
    assert not is_on_own_disk(tmp_path, mounts=mounts)


def test_without_a_table_of_mounts_no_file_stays_mapped(tmp_path: Path) -> None:
    assert not is_on_own_disk(tmp_path, mounts=tmp_path / "none")
    assert not is_on_own_disk(tmp_path / "none")
    assert not CheckpointStorage.open("mock:///a").maps


def test_a_mapped_file_outlives_its_deletion(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    storage.write_atomic("x", b"still here")
    data = storage.read("x")
    storage.delete("x")
    assert data.to_pybytes() == b"still here"


class FailingDisk(PosixDisk):
    """Fails one kind of call."""

    def __init__(self, call: str, code: int) -> None:
        self.call, self.code = call, code

    def _fail(self, call: str) -> None:
        if call == self.call:
            raise OSError(self.code, os.strerror(self.code))

    def write(self, descriptor: int, data: memoryview) -> int:
        self._fail("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._fail("sync")
        super().sync(descriptor)

    def link(self, source: Path, target: Path) -> None:
        self._fail("link")
        super().link(source, target)

    def sync_directory(self, path: Path) -> None:
        self._fail("sync_directory")
        super().sync_directory(path)


@pytest.mark.parametrize("call", ["write", "sync", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, call: str, code: int) -> None:
    storage = LocalStorage(tmp_path, disk=FailingDisk(call, code))
    with pytest.raises(StorageFullError, match=r"no room left.*'x'.*Free some space"):
        storage.create_exclusive("x", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_disk_that_fills_up_under_an_output_says_so(tmp_path: Path, call: str) -> None:
    storage = LocalStorage(tmp_path, disk=FailingDisk(call, errno.ENOSPC))

    def write() -> None:
        with closing(storage.open_output("x")) as output:
            output.write(b"1")

    with pytest.raises(StorageFullError, match="no room left"):
        write()


@pytest.mark.parametrize("call", ["write", "sync", "sync_directory"])
def test_any_other_failure_names_the_file(tmp_path: Path, call: str) -> None:
    storage = LocalStorage(tmp_path, disk=FailingDisk(call, errno.EIO))
    with pytest.raises(CheckpointError, match=r"failed while writing 'x'.*Input/output error"):
        storage.create_exclusive("x", b"1")


class ShortWrites(PosixDisk):
    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:3])


def test_short_writes_are_continued(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, disk=ShortWrites())
    storage.write_atomic("x", b"0123456789")
    assert storage.read("x").to_pybytes() == b"0123456789"


class Recorded(PosixDisk):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "calls":
            self.calls.append(name)
        return super().__getattribute__(name)


def test_a_file_is_durable_before_it_has_its_name_and_its_name_before_the_call_returns(
    tmp_path: Path,
) -> None:
    disk = Recorded()
    LocalStorage(tmp_path, disk=disk).create_exclusive("x", b"1")
    assert disk.calls == ["create", "write", "sync", "close", "link", "unlink", "sync_directory"]


def test_what_is_written_is_for_its_owner_unless_asked_otherwise(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        for access, modes in (("owner", (0o700, 0o600)), ("umask", (0o755, 0o644))):
            root = tmp_path / access
            storage = CheckpointStorage.open(root, access=access)  # type: ignore[arg-type]
            storage.create_exclusive("runs/1", b"1")
            with closing(storage.open_output("blocks/1.blk")) as output:
                output.write(b"1")
            found = {path: path.stat().st_mode & 0o777 for path in root.rglob("*")}
            assert found[root / "runs"] == found[root / "blocks"] == modes[0]
            assert found[root / "runs/1"] == found[root / "blocks/1.blk"] == modes[1]
            assert root.stat().st_mode & 0o777 == modes[0]
    finally:
        os.umask(old)


def test_a_symbolic_link_is_no_file_of_a_checkpoint(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path / "ck")
    storage.write_atomic("x", b"1")
    (tmp_path / "secret").write_bytes(b"not ours")
    (tmp_path / "ck" / "y").symlink_to(tmp_path / "secret")
    assert list(storage.list("")) == ["x"]
    with pytest.raises(CorruptCheckpointError, match="not a plain file"):
        storage.read("y")
