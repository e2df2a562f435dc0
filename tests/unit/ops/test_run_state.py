"""The reducer of the page: entries of a journal in, what the page shows out."""

from __future__ import annotations

import json
import random
from functools import reduce
from typing import Any

import pytest
from tests.support.journal_story import FLOW, HERE, epoch, event, load, placement, story

from godwit.model import events
from godwit.ops.entries import EventLine
from godwit.ops.liveness import QueryLife
from godwit.ops.metrics import Metrics
from godwit.ops.page.view import Series, frame_at, heat_section, now_of, report_of, sections_of
from godwit.ops.run_state import MAX_POINTS, RunState, reduced
from godwit.ops.top import figures_of


def after(entries: list[dict[str, Any]]) -> RunState:
    return reduce(reduced, entries, RunState())


def shown(state: RunState) -> dict[str, Any]:
    sections = sections_of(state, flow="delays", life=QueryLife("running", ""))
    values: dict[str, Any] = json.loads(json.dumps(sections, allow_nan=False))
    return values


def test_every_epoch_is_a_point_with_its_figures_and_the_frame_to_go_back_to() -> None:
    state = after(story())
    assert [point.epoch for point in state.points] == [0, 1, 2, 3, 4, 5]
    last = state.points[-1]
    assert (last.rows_in, last.p50_ms, last.p99_ms, last.written_bytes) == (1000, 500, 750, 5120)
    assert (last.backlog, last.state_bytes, last.executors) == (4200, 1_000_005, 2)
    assert [p.frame.in_flight for p in state.points] == [0, 0, 0, 2, 0, 0]
    assert frame_at(state, 3).in_flight == 2
    assert frame_at(state, 10**9).epoch == 5


def test_a_decision_has_what_it_expected_and_what_came() -> None:
    rebalancing, scaling = after(story()).decisions
    assert (rebalancing.figure, rebalancing.before) == ("load distance", 0.5)
    assert (rebalancing.expected, rebalancing.measured) == (0.1, 0.12)
    assert (rebalancing.verdict, rebalancing.judged) == ("helped", 4)
    assert scaling.line.startswith("scaling out, 1 more executor for 3: too slow")
    assert (scaling.expected, scaling.measured, scaling.verdict) == (0.4, 0.45, "helped")


def test_a_judgement_whose_decision_is_out_of_sight_stands_alone() -> None:
    (judged,) = after(story()[-2:-1]).decisions
    assert (judged.kind, judged.verdict, judged.expected) == ("DecisionJudged", "helped", 0.4)


def test_a_migration_has_the_pause_that_was_predicted_and_the_one_that_came() -> None:
    (move,) = after(story()).movements
    assert (move.id, move.strategy, move.moves, move.moved) == ("m1", "live", 2, 2)
    assert (move.began_epoch, move.ended_epoch, move.ended) == (2, 4, "finished")
    assert move.predicted_s == pytest.approx(2.0 * 0.05)  # of 2 s that the controller told
    assert move.pause_s == pytest.approx(0.2)  # the epoch at the switch took 450 instead of 250 ms


def test_the_pause_is_of_the_epoch_at_the_switch_though_its_figures_come_later() -> None:
    moved: dict[str, Any] = {"migration": "m1", "component": "by_plane"}
    groups: dict[str, Any] = {"component": "by_plane", "key_groups": (2, 3)}
    how: dict[str, Any] = {"strategy": "live", "moves": 2, "state_bytes": 2048}
    state = after(
        [
            *(epoch(number) for number in range(3)),
            event(events.MigrationStarted, epoch=2, **how, **moved),
            # As a live migration begins: nothing has moved yet.
            event(events.AssignmentSwitched, epoch=2, version=1, component="by_plane"),
            epoch(3, took_ms=300.0),
            event(events.AssignmentSwitched, epoch=3, version=2, **groups),
            event(events.MigrationFinished, epoch=4, moved=2, **moved),
            epoch(4, took_ms=450.0),
            epoch(5, took_ms=900.0),
        ]
    )
    assert state.movements[0].pause_s == pytest.approx(0.2)


def test_epochs_that_a_repair_took_back_are_shown_as_they_come_again() -> None:
    begun = event(events.QueryStarted, epoch=2, name="delays", resumed=True)
    state = after([*(epoch(number) for number in range(6)), begun, epoch(3, rows=7)])
    assert [(p.epoch, p.rows_in) for p in state.points][-2:] == [(2, 1000), (3, 7)]
    assert state.frame.epoch == 3


def test_rows_that_wait_for_a_copy_are_the_pause_of_a_recovery() -> None:
    groups: dict[str, Any] = {"component": "by_plane", "key_groups": (1, 2)}
    state = after([epoch(0), event(events.KeyGroupsSuspended, after_s=1.0, **groups)])
    (recovery,) = state.movements
    assert (recovery.strategy, recovery.moves, recovery.ended_s) == ("recovery", 2, None)
    state = reduced(state, event(events.KeyGroupsResumed, after_s=3.5, **groups))
    (recovery,) = state.movements
    assert (recovery.ended, recovery.pause_s, recovery.predicted_s) == ("finished", 2.5, None)
    assert not state.suspended_s


def test_the_longer_epoch_is_the_pause_of_a_recovery_on_demand() -> None:
    lost: dict[str, Any] = {"component": "by_plane", "key_groups": (1, 2), "on_demand": True}
    state = after(
        [epoch(0), epoch(1, took_ms=250.0), event(events.KeyGroupsLoaded, epoch=1, **lost)]
    )
    state = reduced(state, epoch(1, took_ms=900.0))  # its figures may come after the loss
    (recovery,) = state.movements
    assert (recovery.strategy, recovery.moves, recovery.ended_s) == ("recovery", 2, None)
    (recovery,) = reduced(state, epoch(2, took_ms=450.0)).movements
    assert (recovery.ended, recovery.moved, recovery.ended_epoch) == ("finished", 2, 2)
    assert recovery.pause_s == pytest.approx(0.2)


def test_state_that_a_start_or_a_migration_loads_is_no_recovery() -> None:
    groups: dict[str, Any] = {"component": "by_plane", "key_groups": (1, 2)}
    assert not after([epoch(0), event(events.KeyGroupsLoaded, **groups)]).movements


@pytest.mark.parametrize("epochs", [50, 1_000, 6_000])
def test_the_rate_of_rows_is_that_of_the_stream_however_many_epochs_a_point_has(
    epochs: int,
) -> None:
    state = after([epoch(number, took_ms=50.0) for number in range(epochs)])
    assert shown(state)["run"]["rowsPerS"] == pytest.approx(1000.0)


def test_rows_left_out_are_counted_by_place_and_reason() -> None:
    rows = {tuple(of[:2]): of[2] for of in shown(after(story()))["now"]["leftOut"]}
    assert rows == {
        ("by_plane", "late"): 3,
        ("by_plane", "ahead"): 1,
        ("totals", "rejected"): 2,
        ("flights", "unreadable"): 7,
    }


def test_the_heat_map_has_loads_and_places_of_key_groups_lane_by_lane() -> None:
    before = heat_section(frame_at(after(story()), 3))
    (component,) = before["components"]
    assert (component["keyGroups"], component["maxMs"], before["epochs"]) == (8, 4.0, 2)
    lanes = {(row["executor"], row["lane"]): row for row in component["rows"]}
    assert {name: (row["keyGroups"], row["loadMs"]) for name, row in lanes.items()} == {
        ("a", 0): (2, pytest.approx(5.0, rel=1e-3)),
        ("a", 1): (2, pytest.approx(1.0, rel=1e-3)),
        ("b", 0): (2, pytest.approx(1.0, rel=1e-3)),
        ("b", 1): (2, pytest.approx(1.0, rel=1e-3)),
    }
    now = heat_section(after(story()).frame)["components"][0]["rows"]
    assert {(row["executor"], row["lane"]): row["keyGroups"] for row in now} == {
        ("a", 0): 1, ("a", 1): 1, ("b", 0): 3, ("b", 1): 3,
    }  # fmt: skip


def test_another_run_that_does_not_resume_begins_from_nothing() -> None:
    begun = event(events.QueryStarted, epoch=-1, name="delays")
    state = after([*story(), begun])
    assert (state.points, state.decisions, state.frame.epoch) == ((), (), -1)
    resumed = event(events.QueryStarted, epoch=5, after_s=9.0, name="delays", resumed=True)
    state = after([*story(), resumed, epoch(6)])
    assert [point.epoch for point in state.points] == [0, 1, 2, 3, 4, 5, 6]
    assert state.flow["name"] == "delays"


def test_an_epoch_is_taken_once_and_from_its_event_where_there_are_no_other_figures() -> None:
    committed = event(events.EpochCommitted, epoch=0, rows_in=5, duration_ms=90.0)
    assert [p.rows_in for p in after([committed]).points] == [5]
    assert [p.rows_in for p in after([epoch(0), committed, epoch(0)]).points] == [1000]


@pytest.mark.parametrize("number", [10**17, 100_000])
@pytest.mark.parametrize("kind", ["progress", "event"])
def test_an_epoch_that_is_made_up_hides_no_others(number: int, kind: str) -> None:
    figures = epoch(2) if kind == "progress" else event(events.EpochCommitted, epoch=2)
    made_up = {kind: {**figures[kind], "epoch": number}}
    entries = [epoch(0), epoch(1), made_up, epoch(2), epoch(3)]
    state = after(entries)
    assert [point.epoch for point in state.points] == [0, 1, 2, 3]
    assert state.frame.epoch == 3
    assert [point.epoch for point in after(entries[2:]).points] == [2, 3]


def test_an_epoch_of_long_ago_or_without_a_number_hides_no_others() -> None:
    entries = [epoch(number) for number in range(20_000, 20_003)]
    strays: list[dict[str, Any]] = [epoch(3), epoch(-1), {"progress": {}}]
    for stray in strays:
        state = after([*entries, stray, epoch(20_003)])
        assert [point.epoch for point in state.points] == list(range(20_000, 20_004))


def test_however_many_epochs_there_are_points_are_bounded_and_sums_exact() -> None:
    many = 5 * MAX_POINTS + 3
    state = after([epoch(n, rows=n, took_ms=1000.0 if n == 77 else 10.0) for n in range(many)])
    assert len(state.points) <= MAX_POINTS
    assert sum(point.rows_in for point in state.points) == many * (many - 1) // 2
    assert sum(point.epochs for point in state.points) == many
    assert max(point.p99_ms or 0 for point in state.points) == 3000
    assert state.points[-1].epoch == many - 1
    assert all(point.epochs <= state.step for point in state.points)


def test_series_send_only_what_is_new_and_all_when_the_resolution_changed() -> None:
    state = after([epoch(n) for n in range(4)])
    series = Series(state.points, state.step)
    first = series.since(-1.0, 0, 0)
    assert first is not None
    assert (first["from"], first["columns"]["epoch"]) == (0, [0, 1, 2, 3])
    later = reduced(state, epoch(4))
    more = Series(later.points, later.step).since(*series.mark)
    assert more is not None
    assert (more["from"], more["columns"]["epoch"]) == (3, [3, 4])  # the last one may have grown
    coarse = after([epoch(n) for n in range(MAX_POINTS + 1)])
    again = Series(coarse.points, coarse.step).since(*series.mark)
    assert again is not None
    assert (again["from"], again["step"]) == (0, 2)


def test_without_a_graph_in_the_journal_it_is_drawn_from_figures() -> None:
    streams = [{"from": "by_plane", "to": "worst", "rows": 5, "sizeBytes": 9}]
    graph = shown(after([epoch(0, streams=streams)]))["graph"]
    assert [node["name"] for node in graph["operators"]] == ["by_plane", "worst"]
    assert graph["edges"][0]["to"] == ["operator", "worst"]
    assert shown(after([FLOW, epoch(0)]))["graph"]["sources"] == ["flights"]


def test_sources_without_a_name_are_those_of_the_flow_in_order() -> None:
    told = {"sources": {"sources": [{"description": "KafkaV2[x]", "behind": 5}]}}
    (source,) = shown(after([FLOW, told, epoch(0)]))["now"]["sources"]
    assert (source["name"], source["behind"]) == ("flights", 5)


def test_the_tables_of_state_are_shown_with_what_left_them_and_came_back() -> None:
    bounded = {"stateTableBytes": 70, "evictedKeyGroups": 8, "fetchedKeys": 4_000}
    ((kind, values),) = epoch(0).items()
    now = shown(after([FLOW, {kind: {**values, **bounded}}]))["now"]
    assert (now["tableBytes"], now["evicted"], now["fetched"]) == (70, 8, 4_000)


def test_the_state_of_a_report_is_what_a_page_shows() -> None:
    state = after(story())
    report = report_of(state, flow="delays", life=QueryLife("stopped", ""))
    live = sections_of(state, flow="delays", life=QueryLife("stopped", ""))
    assert {name: report[name] for name in live} == live
    assert [frame["now"]["epoch"] for frame in report["frames"]] == [0, 1, 2, 3, 4, 5]
    assert report["frames"][3]["now"] == now_of(frame_at(state, 3))
    assert report["heats"][report["frames"][3]["heat"]] == heat_section(frame_at(state, 3))
    assert len(report["heats"]) < len(report["frames"])


_ODD: list[Any] = [
    *(
        None,
        True,
        -1,
        2**70,
        1e308,
        float("nan"),
        float("inf"),
        "x" * 10_000,
        "<b>",
        "\u202e\x1b[2J",
    ),
    *([], {}, [[]], {"a": {}}, {"rows": "many"}, [1, "x", None], {"": None}, "2023-99-99T00:00"),
]


def _spoiled(value: Any, rng: random.Random) -> Any:
    """A value of which some parts are gone, or something else."""
    if rng.random() < 0.07:
        return rng.choice(_ODD)
    if isinstance(value, dict):
        return {k: _spoiled(v, rng) for k, v in value.items() if rng.random() > 0.03}
    if isinstance(value, list | tuple):
        return [_spoiled(v, rng) for v in value]
    return value


@pytest.mark.parametrize("seed", range(60))
def test_no_entry_breaks_the_page_and_all_that_is_shown_is_finite_and_short(seed: int) -> None:
    rng = random.Random(seed)
    entries = [_spoiled(entry, rng) for entry in story() * 3]
    rng.shuffle(entries)
    state = after([entry for entry in entries if isinstance(entry, dict)])
    state = reduced(state, {"of another version": {"x": 1}})
    text = json.dumps([shown(state), heat_section(state.frame)], allow_nan=False)
    text = json.dumps(json.loads(text), ensure_ascii=False)
    assert "x" * 400 not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\u001b" not in text


def test_a_placement_that_is_made_up_is_left_out() -> None:
    good = placement(0, None, HERE)
    for spoil in (
        {"lanes": [0, 2]},
        {"lanes": [2]},
        {"keyGroups": 10**9},
        {"lane_of": "!"},
        {"key_groups": good["placement"]["components"]["by_plane"]["lane_of"] + "AAAA"},
    ):
        bad = {"by_plane": {**good["placement"]["components"]["by_plane"], **spoil}}
        state = after([good, {"placement": {"components": bad}}, load(1, [1.0])])
        assert state.frame.placements["by_plane"].lane_of.tolist() == HERE.flat_lanes().tolist()


def test_the_last_word_of_a_query_is_kept() -> None:
    state = after(story())
    assert isinstance(state.last_word, EventLine)
    assert state.last_word.kind == "QueryStopped"


def test_the_backlog_of_page_top_and_metrics_is_what_the_sources_said() -> None:
    said = {
        "batchId": 1,
        "sources": [
            {"name": name, "description": name, "behind": behind, "metrics": {}}
            for name, behind in (("flights", 1837), ("weather", 182), ("silent", None))
        ],
    }
    entries = [*story(), {"sources": said}, epoch(6)]
    page = {one["name"]: one["behind"] for one in shown(after(entries))["now"]["sources"]}
    top = {one.description: one.behind for one in figures_of(after(entries[1:])).sources}
    metrics = Metrics("delays")
    metrics.add("sources", said)
    samples = [s for family in metrics.registry.collect() for s in family.samples]
    scraped = [s.value for s in samples if s.name == "godwit_source_offsets_behind"]
    assert page == top == {"flights": 1837, "weather": 182, "silent": None}
    assert scraped == [1837, 182]
    assert after(entries).points[-1].backlog == sum(scraped)
    silent = [entry for entry in story() if "sources" not in entry]
    backlogs = [point.backlog for point in after([*silent, {"sources": said}]).points]
    assert backlogs == [*[None] * (len(backlogs) - 1), sum(scraped)]
