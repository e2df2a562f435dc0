"""Facts about windows of a key's last rows, in lanes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.restarted import Restarted
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from godwit.api.streams import Stream


class Model:
    """Lists of rows."""

    def __init__(self, length: int, every: int) -> None:
        self._length, self._every = length, every
        self._rows: dict[str, list[int]] = {}

    def epoch(self, rows: Iterable[tuple[str, int, int]]) -> list[tuple[Any, ...]]:
        found = []
        for key, _, value in rows:
            seen = self._rows.setdefault(key, [])
            seen.append(value)
            number, rest = divmod(len(seen) - self._length, self._every)
            if number >= 0 and not rest:
                last = seen[-self._length :]
                found.append((key, number, len(last), sum(last), last[0], last[-1]))
        return sorted(found, key=repr)


def run_of(root: Path, length: int, every: int | None, **options: Any) -> WindowedRun:
    return WindowedRun(
        lambda keyed: keyed.window(gw.rows(length, every=every)).compute(
            n=gw.count(), total=gw.sum("v"), first=gw.first("v"), last=gw.last("v")
        ),
        root,
        **options,
    )


def drawn(rng: random.Random, most: int, number: int) -> list[tuple[str, int, int]]:
    return [(rng.choice("abcde"), number, rng.randrange(100)) for _ in range(rng.randrange(most))]


@pytest.mark.parametrize(("length", "every"), [(1, 1), (3, 3), (4, 2), (5, 1), (40, 10)])
@pytest.mark.parametrize("most", [8, 120])
def test_windows_are_the_last_rows_of_each_key_however_rows_fall_into_epochs(
    tmp_path: Path, length: int, every: int, most: int
) -> None:
    rng = random.Random(f"{length} {every} {most}")
    run = run_of(tmp_path, length, every, executors={"a": 2, "b": 1})
    model = Model(length, every)
    for number in range(8):
        rows = drawn(rng, most, number)
        assert run.epoch(rows) == model.epoch(rows)
        if rng.random() < 0.3:
            executor = rng.choice("ab")
            run.run.lose(executor)


def test_rows_that_wait_while_their_key_groups_move_count_in_order(tmp_path: Path) -> None:
    rng = random.Random(5)
    run = run_of(tmp_path, 6, 2, executors={"a": 2, "b": 1})
    model = Model(6, 2)
    came: list[Any] = []
    owed: list[Any] = []
    for number in range(20):
        run.run.suspended = frozenset(rng.sample(range(16), rng.choice([0, 4, 8])))
        rows = drawn(rng, 20, number)
        came += run.epoch(rows)
        owed += model.epoch(rows)
    run.run.suspended = frozenset()
    came += run.epoch([])
    assert sorted(came, key=repr) == sorted(owed, key=repr)
    assert not run.run.waiting()


def test_nothing_comes_out_before_the_first_full_window(tmp_path: Path) -> None:
    run = run_of(tmp_path, 4, 2)
    assert run.epoch([("a", 0, 1), ("a", 0, 2), ("a", 0, 3)]) == []
    assert run.epoch([("a", 0, 4)]) == [("a", 0, 4, 10, 1, 4)]
    assert run.epoch([("a", 0, 5)]) == []
    assert run.epoch([("a", 0, 6)]) == [("a", 1, 4, 18, 3, 6)]


def test_an_epoch_that_fills_no_pane_writes_one_entry_a_key(tmp_path: Path) -> None:
    run = run_of(tmp_path, 40, 10)
    run.epoch([("a", 0, number) for number in range(45)])
    run.epoch([("a", 0, 1)])
    (segment,) = run.record.segments
    assert (segment.state, segment.row_ends) == ("state", (1,))
    assert len(run.run.held(state="panes")) == 3


def windows(length: int, every: int, **more: Any) -> Callable[[Stream], Stream]:
    return lambda rows: (
        rows.key_by("k")
        .window(gw.rows(length, every=every), name="last")
        .compute(total=gw.sum("v"), **more)
    )


def test_a_new_run_goes_on_and_a_new_aggregate_begins_with_the_rows_that_come(
    tmp_path: Path,
) -> None:
    run = Restarted(tmp_path, windows(4, 2))
    assert run.epoch(rows=[("a", 0, 1), ("a", 0, 2), ("a", 0, 3)]) == []
    run = Restarted(tmp_path, windows(4, 2, n=gw.count()))
    assert run.epoch(rows=[("a", 0, 4), ("a", 0, 5)]) == [("a", 0, 10, 1)]
    run = Restarted(tmp_path, windows(4, 2))
    assert run.epoch(rows=[("a", 0, 6)]) == [("a", 1, 18)]


@pytest.mark.parametrize(("length", "every"), [(6, 2), (4, 1), (4, 4)])
def test_windows_of_other_rows_are_refused(tmp_path: Path, length: int, every: int) -> None:
    Restarted(tmp_path, windows(4, 2)).epoch(rows=[("a", 0, 1)])
    with pytest.raises(CheckpointMismatchError, match="rows"):
        Restarted(tmp_path, windows(length, every))
