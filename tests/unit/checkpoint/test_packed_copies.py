"""Facts about copies on their way between executors: what arrives is what was held, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.key_tables import COUNTS, NUM_KEY_GROUPS, change, group_of, held, state_in

from godwit.checkpoint import hydration
from godwit.checkpoint.hydration import pack_copies, unpack_copies
from godwit.model.errors import MigrationError
from godwit.store.columns import StateSchema
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from pathlib import Path

HOMES = np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 2
ALL = np.arange(NUM_KEY_GROUPS)
STATE = {key: (at, at / 2) for at, key in enumerate("abcdefghij")}
CHANGED = {"b": (50, 0.5)}
OF_B = group_of("b")


def source(root: Path) -> LocalState:
    """Hold key groups in two tables, one of them at a later version."""
    state = state_in(root)
    change(state, 4, STATE, homes=HOMES)
    change(state, 6, CHANGED)
    return state


def packed(root: Path, state: str = "sum") -> list[bytes]:
    return list(pack_copies(source(root), ALL, run_id="run", state=state))


def taken(
    root: Path, packs: list[bytes], schema: StateSchema = COUNTS, asked: np.ndarray = ALL
) -> LocalState:
    state = state_in(root)
    state.refresh(asked)
    for copies in unpack_copies(packs, asked, run_id="run", state="sum", schema=schema):
        state.replace(copies, HOMES)
    return state


def test_what_arrives_is_what_was_held_each_key_group_at_its_version(tmp_path: Path) -> None:
    state = taken(tmp_path / "there", packed(tmp_path / "here"))
    assert held(state) == STATE | CHANGED
    assert state.versions.tolist() == [
        6 if g == OF_B else 4 if g in map(group_of, STATE) else -1 for g in ALL.tolist()
    ]


def test_much_state_goes_in_several_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydration, "_PACK_BYTES", 1)
    packs = packed(tmp_path / "here")
    assert len(packs) == 1 + len({*map(group_of, STATE)})
    assert held(taken(tmp_path / "there", packs)) == STATE | CHANGED


def test_what_is_newer_already_stays(tmp_path: Path) -> None:
    change(state_in(tmp_path / "there"), 9, {"b": (7, 7.0)}, homes=HOMES)
    assert held(taken(tmp_path / "there", packed(tmp_path / "here")))["b"] == (7, 7.0)


def test_a_change_that_comes_in_between_is_in_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, lane = source(tmp_path / "here"), state_in(tmp_path / "here")
    refresh = LocalState.refresh

    def and_then_a_lane_goes_on(self: LocalState, *arguments: Any) -> Any:
        found = refresh(self, *arguments)
        if self is state:
            change(lane, 8, {"b": (80, 8.0)})
        return found

    monkeypatch.setattr(LocalState, "refresh", and_then_a_lane_goes_on)
    there = taken(tmp_path / "there", list(pack_copies(state, ALL, run_id="run", state="sum")))
    assert there.versions[OF_B] == 8
    assert held(there)["b"] == (80, 8.0)


def test_a_key_group_whose_writer_was_killed_is_not_sent(tmp_path: Path) -> None:
    state = source(tmp_path / "here")
    state._open_table(int(HOMES[OF_B]))._image.marks[OF_B] = 1
    packs = list(pack_copies(state, ALL, run_id="run", state="sum"))
    rest = {key: value for key, value in STATE.items() if group_of(key) != OF_B}
    assert held(taken(tmp_path / "there", packs)) == rest


def test_a_pack_that_is_damaged_or_missing_is_refused(tmp_path: Path) -> None:
    packs = packed(tmp_path / "here")
    for at in (10, 70, len(packs[0]) // 2, len(packs[0]) - 1):
        damaged = bytearray(packs[0])
        damaged[at] ^= 1
        with pytest.raises(MigrationError, match="the received data is damaged"):
            taken(tmp_path / f"damaged{at}", [bytes(damaged), *packs[1:]])
    for missing in range(len(packs)):
        with pytest.raises(MigrationError, match="some of the data is missing"):
            taken(tmp_path / f"missing{missing}", packs[:missing] + packs[missing + 1 :])
    with pytest.raises(MigrationError, match="some of the data is missing"):
        taken(tmp_path / "nothing", [])


def test_copies_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="the received data is of 'count' in run 'run'"):
        taken(tmp_path / "other", packed(tmp_path / "here", state="count"))
    with pytest.raises(MigrationError, match="were not requested"):
        taken(tmp_path / "more", packed(tmp_path / "here again"), asked=ALL[ALL != OF_B])
    other = StateSchema(COUNTS.values, COUNTS.keys)
    with pytest.raises(MigrationError, match="the received data is damaged"):
        taken(tmp_path / "schema", packed(tmp_path / "once more"), other)
