"""Large payloads for lanes of the sender's own executor go by files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.engine.lane.wire import split_by_level
from godwit.spark.stages import local_parcels
from godwit.spark.stages.local_parcels import (
    STORED,
    open_stored,
    remove_earlier,
    store_local,
)

if TYPE_CHECKING:
    from godwit.engine.lane.messages import Place

HERE, THERE = "1", "2"
LARGE = bytes([0, 3]) + b"r" * local_parcels._MIN_BYTES
SMALL = bytes([0, 3]) + b"few"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """As much of an instruction as the sender looks at."""

    local_dir: str
    epoch: int = 7
    run_id: str = "abcdef012345-0123456789ab"
    places: tuple[Place, ...] = tuple((name, 0) for name in (HERE, THERE))


@pytest.fixture(autouse=True)
def _on_the_first_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_parcels, "current_executor", lambda _expected: HERE)


def sent(instruction: Instruction, *blobs: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    return list(store_local(blobs, cast("Any", instruction)))


def test_only_large_payloads_for_this_executor_are_files(tmp_path: Path) -> None:
    told = Instruction(local_dir=str(tmp_path))
    (_, stored), *others = sent(told, (0, LARGE), (0, SMALL), (1, LARGE))
    assert others == [(0, SMALL), (1, LARGE)]
    assert stored[0] == STORED
    assert len(stored) < 1000
    assert split_by_level(3, [stored]) == ([stored], [])
    assert split_by_level(2, [stored]) == ([], [stored])
    payloads = open_stored([stored, SMALL])
    assert payloads is not None
    assert [bytes(payload) for payload in payloads] == [LARGE, SMALL]


def test_an_epoch_without_large_payloads_removes_files_too(tmp_path: Path) -> None:
    ((_, old),) = sent(Instruction(local_dir=str(tmp_path), epoch=6), (0, LARGE))
    remove_earlier(cast("Any", Instruction(local_dir=str(tmp_path), epoch=6)))
    assert open_stored([old]) == [LARGE]
    remove_earlier(cast("Any", Instruction(local_dir=str(tmp_path), epoch=7)))
    assert open_stored([old]) is None
    remove_earlier(cast("Any", Instruction(local_dir=str(tmp_path / "none"))))


def test_executors_of_local_mode_share_a_disk(tmp_path: Path) -> None:
    places = tuple((f"local-{i}", 0) for i in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_parcels, "current_executor", lambda expected: expected)
        told = Instruction(local_dir=str(tmp_path), places=places)
        assert [blob[0] for _, blob in sent(told, (0, LARGE), (1, LARGE))] == [STORED, STORED]


def test_files_of_earlier_epochs_are_removed_and_those_of_this_one_stay(tmp_path: Path) -> None:
    ((_, old),) = sent(Instruction(local_dir=str(tmp_path), epoch=6), (0, LARGE))
    mapped = open_stored([old])
    ((_, first),) = sent(Instruction(local_dir=str(tmp_path)), (0, LARGE))
    ((_, again),) = sent(Instruction(local_dir=str(tmp_path)), (0, LARGE))
    assert first != again
    assert open_stored([old]) is None
    assert open_stored([first, again]) == [LARGE, LARGE]
    assert mapped == [LARGE]  # whoever reads it continues


def test_mapped_payloads_hold_no_descriptors(tmp_path: Path) -> None:
    blobs = sent(Instruction(local_dir=str(tmp_path)), *[(0, LARGE)] * 20)
    mapped = open_stored([stored for _, stored in blobs])
    assert mapped == [LARGE] * 20
    paths = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    assert not [path for path in paths if path.startswith(str(tmp_path.resolve()))]


def test_payloads_are_sent_where_there_is_no_room_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "no directory").write_text("")
    told = Instruction(local_dir=str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_parcels, "_directory", lambda *_: tmp_path / "no directory")
        assert sent(told, (0, LARGE)) == [(0, LARGE)]
