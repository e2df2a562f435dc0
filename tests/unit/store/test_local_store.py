"""Facts about the local store: where tables are, what they hold, and that processes share them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.key_tables import (
    BLOBS,
    NUM_KEY_GROUPS,
    change,
    group_of,
    held,
    look_up_in,
    state_in,
)

from godwit.model.errors import EpochFailedError
from godwit.store import local_store
from godwit.store.image import TableImage
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from godwit.store.table import StateTable

ROOT = Path(__file__).parents[3]
ALL = np.arange(NUM_KEY_GROUPS)
START = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.support.key_tables import *
"""


def run(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start another Python process with this project on its path."""
    command = [sys.executable, "-c", START + script, str(ROOT), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*.table"))


def test_nothing_is_written_before_there_is_state(tmp_path: Path) -> None:
    state = state_in(tmp_path / "run")
    assert (state.refresh(ALL) == -1).all()
    assert look_up_in(state, ["a"]) == [None]
    state.drop(ALL)
    assert not (tmp_path / "run").exists()


def test_one_call_changes_many_key_groups(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    expected = {f"k{i}": (i, i / 2) for i in range(500)}
    change(state, 3, expected)
    again = state_in(tmp_path)
    assert (again.refresh(ALL) == 3).all()
    assert held(again) == expected
    assert look_up_in(again, ["k7", "absent", "k499"]) == [(7, 3.5), None, (499, 249.5)]
    change(again, 5, {"k7": (8, 8.0)}, removed=["k8"])
    del expected["k8"]
    assert held(state_in(tmp_path)) == expected | {"k7": (8, 8.0)}
    assert sorted(set(again.refresh(ALL).tolist())) == [3, 5]


def test_many_keys_come_into_a_second_table_where_the_first_one_has_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_MANY_KEYS", 99)
    state, homes = state_in(tmp_path), np.zeros(NUM_KEY_GROUPS, np.int32)
    change(state, 3, {f"k{i}": (i, 0.0) for i in range(99)})
    assert state.spare_homes(homes).tolist() == homes.tolist()
    change(state, 4, {"k99": (99, 0.0)})
    (spare,) = set(state.spare_homes(homes).tolist())
    assert spare > 0
    # The second one is not left for a third.
    assert set(state.spare_homes(np.full_like(homes, spare)).tolist()) == {spare}


def test_keys_that_were_looked_up_are_not_searched_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    search = TableImage.search

    def counting(image: TableImage, keys: Any, count: int) -> Any:
        searched.append(count)
        return search(image, keys, count)

    state, other = state_in(tmp_path), state_in(tmp_path)
    first = {f"k{i}": (i, 0.0) for i in range(300)}
    change(state, 1, first)
    changed = {f"k{i}": (i, 1.0) for i in range(200, 400) if group_of(f"k{i}")}
    another = next(key for key in map(str, range(100)) if not group_of(key))
    for epoch, disturbed in ((2, False), (3, True)):
        look_up_in(state, sorted(changed, key=group_of))
        if disturbed:  # by a process that adds rows in between, of key groups of its own
            change(other, epoch, {another: (7, 7.0)})
        monkeypatch.setattr(TableImage, "search", counting)
        change(state, epoch, changed)
        monkeypatch.setattr(TableImage, "search", search)
        assert bool(searched) is disturbed
    assert held(state) == {**first, **changed, another: (7, 7.0)}


def test_key_groups_of_several_tables_are_found_by_one_call(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    expected = {f"k{i}": (i, i / 2) for i in range(200)}
    change(state, 0, expected, homes=ALL.astype(np.int32) % 3)
    assert len(list(tmp_path.rglob("*.table"))) == 3
    again = state_in(tmp_path)
    again.refresh(ALL)
    assert held(again) == expected
    asked = ["k3", "x", *expected, "y"]
    assert look_up_in(again, asked) == [expected.get(key) for key in asked]
    change(again, 1, dict.fromkeys(expected, (0, 0.0)), homes=np.full(NUM_KEY_GROUPS, 7, np.int32))
    assert len(list(tmp_path.rglob("*.table"))) == 3  # they stay where they are
    assert held(state_in(tmp_path)) == dict.fromkeys(expected, (0, 0.0))
    assert again.state_bytes(ALL).sum() == sum(len(key) + 16 for key in expected)


def test_tables_of_other_lanes_are_opened_only_for_what_is_not_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    table = LocalState._open_table

    def noted(state: LocalState, number: int) -> StateTable:
        opened.append(number)
        return table(state, number)

    monkeypatch.setattr(LocalState, "_open_table", noted)
    writer = state_in(tmp_path)
    change(writer, 0, {f"k{i}": (i, 0.0) for i in range(200)}, homes=ALL.astype(np.int32) % 3)
    mine = ALL[ALL % 3 == 1]
    state, enough = state_in(tmp_path), np.zeros(len(mine), np.int64)
    opened.clear()
    assert (state.refresh(mine, enough) == 0).all()
    assert set(opened) == {0, 1, 2}  # nothing was known
    opened.clear()
    assert (state.refresh(mine, enough) == 0).all()
    assert opened == [1]
    opened.clear()
    assert (state.refresh(mine, enough + 1) == 0).all()  # a newer copy might be elsewhere
    assert set(opened) == {0, 1, 2}
    other = state_in(tmp_path)
    other.refresh(ALL)
    other.drop(mine)
    assert (state.refresh(mine, enough) == -1).all()
    change(writer, 2, {f"k{i}": (i, 2.0) for i in range(200)}, homes=np.zeros_like(ALL, np.int32))
    assert (state.refresh(mine, enough) == 2).all()  # it came back in another table


def test_of_two_copies_the_newer_counts(tmp_path: Path) -> None:
    state, other = state_in(tmp_path), state_in(tmp_path)
    other.refresh(ALL)
    change(state, 0, {"a": (1, 1.0)})
    zombie = state_in(tmp_path)
    zombie._table_of[:] = -1  # it looked before the other one wrote
    zombie.versions[:] = -1
    zombie.refresh = lambda *_: zombie.versions  # type: ignore[method-assign]
    change(zombie, 0, {"a": (1, 1.0)}, homes=np.full(NUM_KEY_GROUPS, 1, np.int32), look=False)
    assert len(list(tmp_path.rglob("*.table"))) == 2
    change(state, 1, {"a": (2, 2.0)})
    assert held(state_in(tmp_path)) == {"a": (2, 2.0)}
    state.drop(ALL)
    assert list(tmp_path.rglob("*.table")) == []


def test_a_file_of_somebody_else_is_no_table(tmp_path: Path) -> None:
    change(state_in(tmp_path), 0, {"a": (1, 1.0)})
    (directory,) = tmp_path.iterdir()
    (directory / "of someone else.table").write_bytes(b"x")
    assert held(state_in(tmp_path)) == {"a": (1, 1.0)}


def test_a_key_group_is_dropped_alone(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    expected = {f"k{i}": (i, 0.0) for i in range(300)}
    change(state, 0, expected)
    groups = {key: g for g in ALL.tolist() for key in held(state, [g])}
    size = disk_bytes(tmp_path)
    state.drop(np.arange(2))
    assert held(state) == {k: v for k, v in expected.items() if groups[k] >= 2}
    assert state_in(tmp_path).refresh(ALL).tolist() == [-1, -1] + [0] * (NUM_KEY_GROUPS - 2)
    state.drop(np.arange(2, NUM_KEY_GROUPS - 1))
    assert disk_bytes(tmp_path) < size
    assert held(state) == {k: v for k, v in expected.items() if groups[k] == NUM_KEY_GROUPS - 1}
    change(state, 1, {"k0": (1, 1.0)})
    state.drop(ALL)
    assert disk_bytes(tmp_path) == 0


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "ü %", "x" * 500, "x" * 499 + "y"])
def test_any_name_of_an_operator_has_a_directory_of_its_own(tmp_path: Path, name: str) -> None:
    root = tmp_path / "run"
    change(state_in(root, name), 0, {"a": (1, 1.0)})
    change(state_in(root, "x" * 501), 7, {"b": (1, 1.0)})
    assert held(state_in(root, name)) == {"a": (1, 1.0)}
    assert len(list(root.iterdir())) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_store_whose_directory_vanished_starts_over(tmp_path: Path) -> None:
    state = state_in(tmp_path / "run")
    change(state, 0, {"a": (1, 1.0)})
    shutil.rmtree(tmp_path / "run")
    assert (state.refresh(ALL) == -1).all()
    change(state, 1, {"b": (2, 2.0)})
    assert held(state_in(tmp_path / "run")) == {"b": (2, 2.0)}
    assert len(list((tmp_path / "run").glob("*/locks"))) == 1


def test_changes_of_a_key_group_that_was_dropped_meanwhile_are_refused(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    change(state, 0, {"a": (1, 1.0), "b": (1, 1.0)})
    state_in(tmp_path).drop(ALL)
    with pytest.raises(EpochFailedError, match="was at version 0 and has been dropped since"):
        change(state, 1, {"a": (2, 2.0)}, look=False)


def test_a_new_schema_starts_a_new_table(tmp_path: Path) -> None:
    change(state_in(tmp_path), 0, {"a": (1, 1.0)})
    state = state_in(tmp_path, schema=BLOBS)
    assert (state.refresh(ALL) == -1).all()
    change(state, 1, {1: (b"x",)})
    assert held(state_in(tmp_path, schema=BLOBS)) == {1: (b"x",)}


def test_descriptors_do_not_grow_with_key_groups(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    change(state_in(tmp_path), 0, {f"k{i}": (i, 0.0) for i in range(300)})
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 6


def test_what_one_process_applies_another_finds(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    change(state, 0, {"a": (1, 1.0)})
    script = """
state = state_in(sys.argv[2])
assert held(state) == {"a": (1, 1.0)}
change(state, 1, {"a": (2, 2.0)})
change(state, 2, {f"k{i}": (i, 0.0) for i in range(1000)})
"""
    finish(run(script, tmp_path))
    assert held(state) == {"a": (2, 2.0)} | {f"k{i}": (i, 0.0) for i in range(1000)}


def test_a_writer_that_is_killed_costs_only_the_key_groups_that_it_wrote(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    expected = {f"k{i}": (i, 0.0) for i in range(100)}
    change(state, 0, expected)
    lost = {key: value for g in (3, 4) for key, value in held(state, [g]).items()}
    script = """
import os, signal
from godwit.store.index import HashIndex
HashIndex.insert = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
state = state_in(sys.argv[2])
old = {key: (9, 9.0) for g in (3, 4) for key in held(state, [g])}
new = {k: (9, 9.0) for i in range(100) if group_of(k := f"new{i}") in (3, 4)}
change(state, 1, old | new)
"""
    process = run(script, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    others = np.setdiff1d(ALL, [3, 4])
    assert (state.refresh(others) == 0).all()  # without waiting for anybody
    assert state.refresh(ALL)[[3, 4]].tolist() == [-1, -1]
    assert held(state) == {k: v for k, v in expected.items() if k not in lost}
    change(state, 1, lost)
    assert held(state_in(tmp_path)) == expected


def test_two_attempts_at_one_epoch_write_one_after_the_other(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    change(state, 0, {"a": (1, 1.0)})
    script = """
from godwit.store.image import TableImage
write = TableImage.write
def slow(image, *arguments):
    print("writing", flush=True)
    sys.stdin.readline()
    write(image, *arguments)
TableImage.write = slow
change(state_in(sys.argv[2]), 1, {"a": (2, 2.0)})
"""
    zombie = run(script, tmp_path)
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "writing\n"
    done = threading.Event()

    def attempt() -> None:
        change(state, 1, {"a": (2, 2.0)})
        done.set()

    thread = threading.Thread(target=attempt)
    thread.start()
    assert not done.wait(0.2)
    zombie.stdin.write("\n")
    finish(zombie)
    thread.join(timeout=60)
    assert done.is_set()
    assert held(state) == {"a": (2, 2.0)}


def test_readers_survive_a_process_that_writes_other_key_groups_of_the_table(
    tmp_path: Path,
) -> None:
    state = state_in(tmp_path, schema=BLOBS)
    mine = np.array([2])
    change(state, 0, {i: (b"x" * (i % 50),) for i in range(300)})
    expected = held(state, [2])
    script = """
state = state_in(sys.argv[2], schema=BLOBS)
for epoch in range(1, 60):
    rows = {i: (bytes([epoch]) * (i % 50),) for i in range(300 + epoch * 5) if group_of(i) != 2}
    change(state, epoch, rows)
"""
    process = run(script, tmp_path)
    seen = 0
    while process.poll() is None:
        assert state.refresh(mine).tolist() == [0]
        assert held(state, [2], look=False) == expected
        assert look_up_in(state, list(expected), look=False) == list(expected.values())
        seen += 1
    finish(process)
    assert seen > 0
    assert sorted(set(state.refresh(ALL).tolist())) == [0, 59]
