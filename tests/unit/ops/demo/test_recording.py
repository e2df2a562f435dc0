from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from godwit.cli.console import BLOCKS
from godwit.model import events
from godwit.ops.demo.recording import LivePage, PlainLines, Recording
from godwit.ops.plots import epoch_figure, label_rows

if TYPE_CHECKING:
    from pathlib import Path


def progress(epoch: int, **places: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "numInputRows": 100,
        "processedRowsPerSecond": 200.0,
        "durationMs": {"epoch": 500.0 + epoch},
        "waitingKeyGroups": 3,
        "keyGroups": {"a": places, "b": places},
    }


def status(*executors: str) -> dict[str, Any]:
    return {"executors": list(executors), "keyGroupsInFlight": 4, "keyGroupsSuspended": 5}


@pytest.fixture
def recording() -> Recording:
    made = Recording(started_s=1000.0, rows_in_all=400)
    made.add_epoch(progress(0, e0=8, e1=0), status("e0", "e1"), 1001.0)
    made.add_epoch(progress(1, e0=4, e1=4), status("e0", "e1"), 1002.0)
    made.mark("executor e0 killed", 1002.5)
    made.add_epoch(progress(2, e1=8), status("e1", "e10"), 1004.0)
    made.log.append(events.ExecutorLost(epoch=1, at_s=1002.5, executor="e0"))
    return made


def test_an_epoch_counts_the_key_groups_of_all_operators_and_idle_executors(
    recording: Recording,
) -> None:
    assert [dict(e.key_groups) for e in recording.epochs] == [
        {"e0": 16, "e1": 0},
        {"e0": 8, "e1": 8},
        {"e1": 16, "e10": 0},
    ]
    assert recording.executors == ["e0", "e1", "e10"]
    assert recording.rows == 300
    last = recording.epochs[-1]
    assert (last.at_s, last.waiting, last.in_flight, last.suspended) == (4.0, 3, 4, 5)


def test_the_median_leaves_the_first_epoch_out(recording: Recording) -> None:
    assert recording.median_ms() == 502.0


def test_a_recording_is_plain_json(recording: Recording) -> None:
    values = json.loads(json.dumps(recording.to_dict()))
    assert values["marks"] == [{"at_s": 2.5, "label": "executor e0 killed"}]
    assert [e["epoch"] for e in values["epochs"]] == [0, 1, 2]
    assert events.event_from_dict(values["events"][0]) == recording.log[0]


def test_the_picture_shows_epoch_times_marks_and_every_key_group(
    recording: Recording, tmp_path: Path
) -> None:
    above, below = epoch_figure(recording).axes
    line, *marks = above.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [1.0, 2.0, 4.0]
    assert np.asarray(line.get_ydata()).tolist() == [0.5, 0.501, 0.502]
    assert [np.asarray(mark.get_xdata()).tolist() for mark in marks] == [[2.5, 2.5]]
    assert [text.get_text() for text in above.texts] == ["executor e0 killed"]
    outlines = [np.asarray(path.vertices) for path in below.collections[-1].get_paths()]
    assert max(outline[:, 1].max() for outline in outlines) == 16
    epoch_figure(recording).savefig(tmp_path / "epochs.png")
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def test_epochs_that_start_up_do_not_flatten_the_picture() -> None:
    made = Recording(started_s=0.0, rows_in_all=800)
    for epoch, duration_ms in enumerate([22_000.0, 6_000.0, 500.0, 600.0, 900.0, 500.0]):
        figures = progress(epoch, e0=8) | {"durationMs": {"epoch": duration_ms}}
        made.add_epoch(figures, status("e0"), 22.0 + epoch)
    above, _ = epoch_figure(made).axes
    assert 0.9 < above.get_ylim()[1] < 1.2
    assert "off the scale: the first epochs (22.0 s, 6.0 s)" in above.get_title()


def test_labels_that_would_cover_one_another_stand_in_rows_of_their_own() -> None:
    marks = [(0.1, "migration started"), (0.12, "migration finished"), (0.13, "executor 2 killed")]
    assert label_rows(marks) == [(0, False), (1, False), (2, False)]
    apart = [(0.1, "migration started"), (0.5, "recovered"), (0.97, "recovered")]
    assert label_rows(apart) == [(0, False), (0, False), (0, True)]
    assert label_rows([(0.9, "migration finished"), (0.99, "recovered")]) == [(0, True), (1, True)]


def test_plain_lines_tell_every_epoch_and_the_events_that_matter(recording: Recording) -> None:
    console = Console(file=io.StringIO(), width=80)
    with PlainLines(console) as lines:
        lines.say("it begins [here]")
        lines.epoch(recording.epochs[1], recording)
        lines.event(recording.log[0], recording)
        lines.event(events.FilesCollected(epoch=1, at_s=0.0, files=3), recording)
    assert isinstance(console.file, io.StringIO)
    told = [line[10:] for line in console.file.getvalue().splitlines()]
    assert told == [
        "it begins [here]",
        (
            "epoch   1   75%     501 ms      200 rows/s  key groups e0:8 e1:8  in flight 4, "
            "waiting 3, suspended 5"
        ),
        "executor e0 lost",
    ]


def test_the_live_page_shows_where_the_key_groups_are_and_who_is_dead(
    recording: Recording,
) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with LivePage(console) as page:
        page.say("it begins")
        page.epoch(recording.epochs[-1], recording)
        page.event(recording.log[0], recording)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for part in (
        "300 of 400 rows",
        "200 rows/s",
        "16 key groups",
        "dead",
        "idle",
        "in flight 4, waiting 3, suspended 5",
        "it begins",
        "executor e0 lost",
    ):
        assert part in shown


def test_a_sparkline_is_scaled_to_its_largest_value_and_keeps_the_last() -> None:
    assert BLOCKS.sparkline([9.0, 0.0, 1.0, 2.0], 3) == "▁▅█"
    assert BLOCKS.sparkline([], 3) == ""
    assert BLOCKS.sparkline([0.0], 3) == "▁"
