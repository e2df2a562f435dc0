"""Facts about the local store: where tables are, and that processes share them."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.unit.state.key_tables import BLOBS, COUNTS, contents, put

from godwit.state.local_store import LocalStore

ROOT = Path(__file__).parents[3]
START = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.unit.state.key_tables import *
from godwit.state.local_store import LocalStore
"""


def run(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start another Python process with this project on its path."""
    command = [sys.executable, "-c", START + script, str(ROOT), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out


def test_nothing_is_written_before_there_is_state(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    assert store.table("op", 3, COUNTS).version == -1
    assert store.versions("op") == {}
    assert store.disk_bytes() == store.disk_bytes("op") == 0
    store.drop("op", 3)
    assert not (tmp_path / "run").exists()


def test_a_table_is_opened_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = store.table("op", 3, COUNTS)
    put(table, 0, {"a": (1, 1.0)})
    assert store.table("op", 3, COUNTS) is table
    assert store.table("op", 4, COUNTS) is not table


def test_operators_and_key_groups_have_their_own_tables(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for epoch, (operator, key_group) in enumerate([("a", 0), ("a", 1), ("b", 0)]):
        put(store.table(operator, key_group, COUNTS), epoch, {operator: (key_group, 0.0)})
    again = LocalStore(tmp_path)
    assert (again.versions("a"), again.versions("b"), again.versions("c")) == (
        {0: 0, 1: 1},
        {0: 2},
        {},
    )
    assert contents(again.table("a", 1, COUNTS)) == {"a": (1, 0.0)}


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "ü %", "x" * 500, "x" * 499 + "y"])
def test_any_name_of_an_operator_has_a_directory_of_its_own(tmp_path: Path, name: str) -> None:
    root = tmp_path / "run"
    store = LocalStore(root)
    put(store.table(name, 0, COUNTS), 0, {"a": (1, 1.0)})
    put(store.table("x" * 501, 0, COUNTS), 7, {"b": (1, 1.0)})
    assert contents(LocalStore(root).table(name, 0, COUNTS)) == {"a": (1, 1.0)}
    assert len(list(root.iterdir())) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_dropped_table_is_gone_and_frees_its_space(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store.table("op", 3, COUNTS), 0, {"a": (1, 1.0)})
    assert store.disk_bytes("op") == store.disk_bytes() > 0
    store.drop("op", 3)
    assert store.disk_bytes("op") == 0
    assert store.versions("op") == {}
    assert store.table("op", 3, COUNTS).version == -1


def test_a_store_whose_directory_vanished_starts_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    put(store.table("op", 3, COUNTS), 0, {"a": (1, 1.0)})
    shutil.rmtree(tmp_path / "run")
    assert store.versions("op") == {}
    table = store.table("op", 3, COUNTS)
    assert table.version == -1
    put(table, 1, {"b": (2, 2.0)})
    assert LocalStore(tmp_path / "run").versions("op") == {3: 1}
    assert len(list((tmp_path / "run").glob("*/locks"))) == 1


def test_dirty_and_foreign_files_have_no_version(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for key_group in (1, 2, 3):
        put(store.table("op", key_group, COUNTS), 5, {"a": (1, 1.0)})
    store.table("op", 1, COUNTS)._image.dirty = True
    next(tmp_path.glob("*/000002.table")).write_bytes(b"x" * 100)
    assert store.versions("op") == {3: 5}


def test_a_new_schema_starts_a_new_table(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store.table("op", 1, COUNTS), 0, {"a": (1, 1.0)})
    table = store.table("op", 1, BLOBS)
    assert table.version == -1
    put(table, 1, {1: (b"x",)})
    assert contents(LocalStore(tmp_path).table("op", 1, BLOBS)) == {1: (b"x",)}


def test_open_tables_are_as_many_as_descriptors_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 10))
    store = LocalStore(tmp_path)
    for key_group in range(100):
        put(store.table("op", key_group, COUNTS), 0, {"a": (key_group, 0.0)})
    descriptors = len([p for p in Path("/proc/self/fd").iterdir() if _is_under(p, tmp_path)])
    assert descriptors <= 64 + 1
    assert contents(store.table("op", 0, COUNTS)) == {"a": (0, 0.0)}


def _is_under(descriptor: Path, root: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith(str(root))
    except FileNotFoundError:
        return False


def test_no_limit_on_descriptors_is_no_limit_on_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinite, infinite))
    store = LocalStore(tmp_path)
    tables = [store.table("op", key_group, COUNTS) for key_group in range(100)]
    assert store.table("op", 0, COUNTS) is tables[0]


def test_what_one_process_applies_another_finds(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = store.table("op", 1, COUNTS)
    put(table, 0, {"a": (1, 1.0)})
    script = """
table = LocalStore(sys.argv[2]).table("op", 1, COUNTS)
assert contents(table) == {"a": (1, 1.0)}
put(table, 1, {"a": (2, 2.0)})
put(table, 2, {f"k{i}": (i, 0.0) for i in range(1000)})
print(table.version)
"""
    assert finish(run(script, tmp_path)).split() == ["2"]
    assert store.table("op", 1, COUNTS).version == 2
    assert contents(table) == {"a": (2, 2.0)} | {f"k{i}": (i, 0.0) for i in range(1000)}


def test_a_process_killed_while_writing_leaves_a_table_that_is_discarded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store.table("op", 1, COUNTS), 0, {"a": (1, 1.0)})
    put(store.table("op", 2, COUNTS), 0, {"a": (1, 1.0)})
    script = """
import os, signal
from godwit.state.index import HashIndex
HashIndex.insert = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
put(LocalStore(sys.argv[2]).table("op", 1, COUNTS), 1, {"b": (2, 2.0)})
"""
    process = run(script, tmp_path)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert store.versions("op") == {2: 0}
    table = store.table("op", 1, COUNTS)  # its lock died with the process
    assert table.version == -1
    put(table, 1, {"b": (2, 2.0)})
    assert store.versions("op") == {1: 1, 2: 0}


def test_two_attempts_at_one_epoch_write_one_after_the_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = store.table("op", 1, COUNTS)
    put(table, 0, {"a": (1, 1.0)})
    script = """
from godwit.state.image import TableImage
write = TableImage.write
def slow(image, *arguments):
    print("writing", flush=True)
    sys.stdin.readline()
    write(image, *arguments)
TableImage.write = slow
put(LocalStore(sys.argv[2]).table("op", 1, COUNTS), 1, {"a": (2, 2.0), "b": (3, 3.0)})
"""
    zombie = run(script, tmp_path)
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "writing\n"
    assert table._image.dirty
    done = threading.Event()

    def attempt() -> None:
        put(table, 1, {"a": (2, 2.0), "b": (3, 3.0)})
        done.set()

    thread = threading.Thread(target=attempt)
    thread.start()
    assert not done.wait(0.2)
    zombie.stdin.write("\n")
    finish(zombie)
    thread.join(timeout=30)
    assert done.is_set()
    assert (table.version, contents(table)) == (1, {"a": (2, 2.0), "b": (3, 3.0)})


def test_readers_survive_a_process_that_grows_the_table_under_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = store.table("op", 1, BLOBS)
    put(table, 0, {i: (b"x" * i,) for i in range(30)})
    script = """
table = LocalStore(sys.argv[2]).table("op", 1, BLOBS)
for epoch in range(1, 40):
    put(table, epoch, {i: (bytes([epoch]) * (i % 50),) for i in range(30 + epoch * 5)})
"""
    process = run(script, tmp_path)
    seen = 0
    while process.poll() is None:
        table.refresh()
        hashes, keys, _ = table.scan()
        table.read(table.find(hashes, keys))
        seen += 1
    finish(process)
    assert seen > 0
    assert store.table("op", 1, BLOBS).version == 39
    assert contents(table) == {i: (bytes([39]) * (i % 50),) for i in range(30 + 39 * 5)}
