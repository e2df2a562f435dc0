from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.oracles.evolving import Program, Runtime

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

TWO = Program(operators={"a": ("total",), "b": ("rows",)})


def run(directory: Path, program: Program, *rows: tuple[str, int]) -> Runtime:
    runtime = Runtime(program, CheckpointStorage.open(directory / "ck"), directory / "local")
    if rows:
        runtime.epoch(rows, frozenset())
    return runtime


def test_renamed_state_is_found_under_the_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, TWO, ("x", 1))
    assert main(["checkpoint", "rename", str(tmp_path / "ck"), "a", "c"]) == 0
    assert "from the next epoch on, the state of a is that of c" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", str(tmp_path / "ck")]) == 0
    assert "a is renamed to c" in capsys.readouterr().out
    after = run(tmp_path, Program(operators={"c": ("total",), "b": ("rows",)}), ("x", 10))
    assert after.results()["c"] == {"x": {"total": 11}}
    assert after.changes.added == ()


def test_dropped_state_is_gone_and_its_files_are_collected(tmp_path: Path) -> None:
    run(tmp_path, TWO, ("x", 1))
    only = Program(operators={"a": ("total",)})
    run(tmp_path, only, ("x", 10))
    assert main(["checkpoint", "drop", str(tmp_path / "ck"), "b"]) == 0
    after = run(tmp_path, only, ("x", 100))
    assert [state.operator for state in after.log.chains.states] == ["a"]
    again = run(tmp_path, TWO, ("x", 1000))
    assert again.changes.added == ("b",)
    assert again.results() == {"a": {"x": {"total": 1111}}, "b": {"x": {"rows": 1}}}


def test_an_edit_counts_from_the_next_epoch_and_not_before(tmp_path: Path) -> None:
    run(tmp_path, TWO, ("x", 1))
    assert main(["checkpoint", "rename", str(tmp_path / "ck"), "a", "c"]) == 0
    # A start that commits nothing changes nothing; the next one takes up the edit anyway.
    renamed = Program(operators={"c": ("total",), "b": ("rows",)})
    run(tmp_path, renamed)
    assert run(tmp_path, renamed, ("x", 10)).results()["c"] == {"x": {"total": 11}}
    # It was taken up once: under its old name, an operator is a new one.
    with pytest.raises(CheckpointMismatchError, match="formerly='c'"):
        run(tmp_path, TWO)
    assert run(tmp_path, replace(TWO, starts_empty=True), ("x", 5)).changes.added == ("a",)


def test_the_state_of_one_key_is_forgotten_and_that_of_others_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(operators={"a": (), "b": ("total", "rows")})
    run(tmp_path, program, ("x", 1), ("y", 2), ("z", 3))
    run(tmp_path, program, ("x", 1), ("y", 2))
    before = len(CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "ck")).retained_epochs)
    for operator in ("a", "b"):
        drop = ["checkpoint", "drop", str(tmp_path / "ck"), operator, "--key", "('x',)"]
        assert main(drop) == 0
        assert f"{operator}/state has no state of key ('x',) any more" in capsys.readouterr().out
        assert main(drop) == 2  # it is gone
        assert "has no state of key ('x',)" in capsys.readouterr().err
    assert main(["checkpoint", "verify", str(tmp_path / "ck")]) == 0
    log = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "ck"))
    assert len(log.retained_epochs) == before + 2
    assert log.latest is not None
    assert log.latest.batch is None
    after = run(tmp_path, program, ("x", 10), ("y", 0))
    assert after.results()["b"]["x"] == {"total": 10, "rows": 1}
    assert after.results()["b"]["y"] == {"total": 4, "rows": 3}
    assert after.results()["b"]["z"] == {"total": 3, "rows": 1}
    assert after.results()["a"]["x"] != after.results()["a"]["y"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rename", "no", "c"), "no operator 'no'"),
        (("rename", "a", "b"), "already has an operator 'b'"),
        (("drop", "no"), "Its operators are a, b"),
        (("drop", "a"), "Use --reset"),
        (("drop", "no", "--key", "('x',)"), "Its operators are a, b"),
        (("drop", "a", "--key", "('z',)"), "has no state of key ('z',)"),
    ],
)
def test_what_cannot_be_done_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    run(tmp_path, TWO, ("x", 1))
    action, *rest = arguments
    assert main(["checkpoint", action, str(tmp_path / "ck"), *rest]) == 2
    assert message in capsys.readouterr().err


def test_a_reset_operator_starts_empty(tmp_path: Path) -> None:
    run(tmp_path, TWO, ("x", 1))
    assert main(["checkpoint", "drop", str(tmp_path / "ck"), "a", "--reset"]) == 0
    assert run(tmp_path, TWO, ("x", 7)).results()["a"] == {"x": {"total": 7}}


def test_a_checkpoint_that_a_query_holds_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, TWO, ("x", 1))
    lease = acquire_lease(CheckpointStorage.open(tmp_path / "ck"), "someone")
    try:
        assert main(["checkpoint", "drop", str(tmp_path / "ck"), "a", "--reset"]) == 2
    finally:
        lease.release()
    assert "in use by run 'someone'" in capsys.readouterr().err


def test_a_place_without_a_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    assert main(["checkpoint", "drop", str(tmp_path / "none"), "a"]) == 2
    assert not (tmp_path / "none").exists()


def test_copying_says_what_was_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, TWO, ("x", 1))
    assert main(["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "copy")]) == 0
    assert "copied as of epoch 0" in capsys.readouterr().out
    fork = Runtime(TWO, CheckpointStorage.open(tmp_path / "copy"), tmp_path / "forks-local")
    fork.epoch([("x", 2)], frozenset())
    assert fork.results()["a"] == {"x": {"total": 3}}
    assert main(["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "copy")]) == 2


def test_a_copy_takes_what_is_pending_with_it(tmp_path: Path) -> None:
    run(tmp_path, TWO, ("x", 1))
    assert main(["checkpoint", "rename", str(tmp_path / "ck"), "a", "c"]) == 0
    assert main(["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "copy")]) == 0
    renamed = Program(operators={"c": ("total",), "b": ("rows",)})
    fork = Runtime(renamed, CheckpointStorage.open(tmp_path / "copy"), tmp_path / "forks-local")
    assert fork.changes.renamed == {"a": "c"}


RENAMED = Program(operators={"c": ("total",), "b": ("rows",)})


def rename(directory: Path, old: str, new: str) -> None:
    assert main(["checkpoint", "rename", str(directory / "ck"), old, new]) == 0


def edits_in(directory: Path) -> list[Path]:
    return sorted((directory / "ck" / "edits").iterdir())


def refused_edit(directory: Path, program: Program) -> str:
    """Message of the start that refuses an edit, which `verify` finds as well."""
    with pytest.raises(CorruptCheckpointError) as refused:
        run(directory, program)
    findings = verify(CheckpointStorage.open(directory / "ck")).findings
    assert [finding.file for finding in findings] == [refused.value.context["file"]]
    assert findings[0].file.startswith("edits/")
    return str(refused.value)


def test_an_edit_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        run(directory, TWO, ("x", 1))
    rename(theirs, "a", "c")
    shutil.copytree(theirs / "ck" / "edits", ours / "ck" / "edits")
    assert "after another epoch 0" in refused_edit(ours, RENAMED)


def test_an_edit_of_a_backup_that_went_on_is_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(ours, TWO, ("x", 1))
    shutil.copytree(ours, theirs)
    run(ours, TWO, ("x", 2))
    run(theirs, TWO, ("x", 3))
    rename(theirs, "a", "c")
    shutil.copytree(theirs / "ck" / "edits", ours / "ck" / "edits")
    assert "after another epoch 1" in refused_edit(ours, RENAMED)


def test_an_edit_whose_predecessor_is_gone_is_refused(tmp_path: Path) -> None:
    run(tmp_path, TWO, ("x", 1))
    rename(tmp_path, "a", "b2")
    rename(tmp_path, "b2", "c")
    rename(tmp_path, "c", "d")
    assert verify(CheckpointStorage.open(tmp_path / "ck")).ok
    edits_in(tmp_path)[1].unlink()
    assert "or one that is gone" in refused_edit(tmp_path, RENAMED)


def test_edits_go_with_a_copy_and_beside_the_removal_of_a_key(tmp_path: Path) -> None:
    ours, copy = tmp_path / "ours", tmp_path / "copy"
    run(ours, TWO, ("x", 1), ("y", 2))
    rename(ours, "a", "b2")
    assert main(["checkpoint", "drop", str(ours / "ck"), "a", "--key", "('y',)"]) == 0
    assert main(["checkpoint", "copy", str(ours / "ck"), str(copy / "ck")]) == 0
    for directory in (ours, copy):
        rename(directory, "b2", "c")
        assert verify(CheckpointStorage.open(directory / "ck")).ok
        assert run(directory, RENAMED, ("x", 10)).results()["c"] == {"x": {"total": 11}}
