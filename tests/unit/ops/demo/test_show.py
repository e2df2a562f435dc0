from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from godwit.model import events
from godwit.ops.console import BLOCKS
from godwit.ops.demo.show import Show
from godwit.ops.plots import epoch_figure, label_rows

if TYPE_CHECKING:
    from pathlib import Path


def progress(epoch: int, at_s: int, executors: dict[str, int], **more: Any) -> dict[str, Any]:
    """Make an epoch that takes half a second, and ends at `at_s` after the show began."""
    return {
        "epoch": epoch,
        "timestamp": f"1970-01-01T00:16:{39 + at_s}.500Z",
        "numInputRows": 100,
        "durationMs": {"epoch": 500.0 + epoch},
        "waitingKeyGroups": 3,
        "inFlightKeyGroups": 4,
        "suspendedKeyGroups": 5,
        "executors": {name: {"lanes": 1} for name in executors},
        "keyGroups": {"a": executors, "b": executors},
        **more,
    }


def filled(show: Show) -> Show:
    """Let a show see three epochs, and the loss of an executor."""
    show.started_s, show.rows_in_all = 1000.0, 400
    show.add_epoch(progress(0, 1, {"e0": 8, "e1": 0}))
    show.add_epoch(progress(1, 2, {"e0": 4, "e1": 4}))
    show.mark("executor e0 killed", 1002.5)
    show.add_event(events.ExecutorLost(epoch=1, at_s=1002.5, executor="e0"))
    show.add_event(events.FilesCollected(epoch=1, at_s=1002.5, files=3))
    show.add_epoch(progress(2, 4, {"e1": 8, "e10": 0}))
    return show


@pytest.fixture
def show() -> Show:
    return filled(Show(Console(file=io.StringIO(), width=160)))


def test_an_epoch_counts_the_key_groups_of_all_operators_and_idle_executors(show: Show) -> None:
    assert [epoch["key_groups"] for epoch in show.epochs()] == [
        {"e0": 16, "e1": 0},
        {"e0": 8, "e1": 8},
        {"e1": 16, "e10": 0},
    ]
    assert show.rows == 300
    last = show.epochs()[-1]
    assert last["at_s"] == pytest.approx(4.002)
    assert (last["waiting"], last["in_flight"], last["suspended"]) == (3, 4, 5)


def test_the_median_leaves_the_first_epoch_out(show: Show) -> None:
    assert show.median_ms() == 501.5


def test_all_that_was_measured_is_plain_json(show: Show) -> None:
    values = json.loads(json.dumps(show.to_dict()))
    assert values["marks"] == [{"at_s": 2.5, "label": "executor e0 killed"}]
    assert [e["epoch"] for e in values["epochs"]] == [0, 1, 2]
    assert events.event_from_dict(values["events"][0]) == show.events[0]


def test_the_picture_shows_epoch_times_marks_and_every_key_group(
    show: Show, tmp_path: Path
) -> None:
    above, below = epoch_figure(show.epochs(), show.marks).axes
    line, *marks = above.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == pytest.approx([1.0, 2.001, 4.002])
    assert np.asarray(line.get_ydata()).tolist() == [0.5, 0.501, 0.502]
    assert [np.asarray(mark.get_xdata()).tolist() for mark in marks] == [[2.5, 2.5]]
    assert [text.get_text() for text in above.texts] == ["executor e0 killed"]
    outlines = [np.asarray(path.vertices) for path in below.collections[-1].get_paths()]
    assert max(outline[:, 1].max() for outline in outlines) == 16
    epoch_figure(show.epochs(), show.marks).savefig(tmp_path / "epochs.png")
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def test_epochs_that_start_up_do_not_flatten_the_picture(show: Show) -> None:
    for epoch, duration_ms in enumerate([22_000.0, 6_000.0, 500.0, 600.0, 900.0, 500.0], 3):
        show.add_epoch(progress(epoch, 10 + epoch, {"e1": 8}, durationMs={"epoch": duration_ms}))
    above, _ = epoch_figure(show.epochs()[3:], []).axes
    assert 0.9 < above.get_ylim()[1] < 1.2
    assert "off the scale: the first epochs (22.0 s, 6.0 s)" in above.get_title()


def test_labels_that_would_cover_one_another_stand_in_rows_of_their_own() -> None:
    marks = [(0.1, "migration started"), (0.12, "migration finished"), (0.13, "executor 2 killed")]
    assert label_rows(marks) == [(0, False), (1, False), (2, False)]
    apart = [(0.1, "migration started"), (0.5, "recovered"), (0.97, "recovered")]
    assert label_rows(apart) == [(0, False), (0, False), (0, True)]
    assert label_rows([(0.9, "migration finished"), (0.99, "recovered")]) == [(0, True), (1, True)]


def test_plain_lines_tell_every_epoch_and_the_events_that_matter() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Show(console) as show:
        show.say("it begins [here]")
        filled(show)
    assert isinstance(console.file, io.StringIO)
    told = [line[10:] for line in console.file.getvalue().splitlines()]
    assert told[0] == "it begins [here]"
    assert told[2:5] == [
        "the first epoch is done",
        (
            "epoch   1   50%     501 ms      200 rows/s  key groups e0:8 e1:8  in flight 4, "
            "waiting 3, suspended 5"
        ),
        "executor e0 lost",
    ]
    assert len(told) == 6


def test_the_live_page_is_that_of_top_with_the_rows_and_the_lines_of_the_demo() -> None:
    console = Console(
        file=io.StringIO(), width=160, height=40, force_terminal=True, color_system=None
    )
    with Show(console, plain=False) as show:
        filled(show).say("it begins")
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for part in (
        "300 of 400 rows",
        "epoch 2",
        "16 key groups",
        "4 in flight, 0 still to move, 3 waiting, 5 suspended",
        "it begins",
        "executor e0 lost",
    ):
        assert part in shown


def test_a_sparkline_is_scaled_to_its_largest_value_and_keeps_the_last() -> None:
    assert BLOCKS.sparkline([9.0, 0.0, 1.0, 2.0], 3) == "▁▅█"
    assert BLOCKS.sparkline([], 3) == ""
    assert BLOCKS.sparkline([0.0], 3) == "▁"
