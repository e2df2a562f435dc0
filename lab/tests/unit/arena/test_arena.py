"""Matches of the arena: equal ones are equal, the oracle is best, and figures say what they say."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from godwit.model import events
from godwit.model.errors import InvalidProblemError
from godwit_lab.arena.autoscalers import AUTOSCALERS
from godwit_lab.arena.least import LeastExecutors
from godwit_lab.arena.match import (
    ORACLE,
    Figures,
    Match,
    executor_seconds,
    late_share,
    violated_share,
)
from godwit_lab.arena.patterns import PATTERNS, first_share, trace
from godwit_lab.arena.queries import QUERIES
from godwit_lab.arena.restarts import Restart
from godwit_lab.arena.table import OVERALL, compare, losses
from godwit_lab.cli.arena import add_arena_arguments
from godwit_lab.simulator.history import Delays, EpochRecord, History

if TYPE_CHECKING:
    from pathlib import Path

SHORT_S = 60.0
STEP = replace(PATTERNS["sink"], make=lambda scenario, _query: scenario)
"""Two lanes, five and two."""


@cache
def played(name: str, mechanism: str = "live") -> tuple[Figures, History]:
    """Play a short match of q1 with a step up."""
    return match(name, mechanism).play()


def match(name: str, mechanism: str = "live") -> Match:
    return Match(
        pattern=STEP,
        query=QUERIES["q1"],
        autoscaler=name,
        mechanism=mechanism,  # type: ignore[arg-type]
        duration_s=SHORT_S,
        restart=Restart(fixed_s=4.0),
    )


def record(ended_s: float, pieces: list[tuple[float, float, float]], executors: int) -> EpochRecord:
    return EpochRecord(
        epoch=0,
        began_s=ended_s - 1,
        took_s=1.0,
        rows=int(sum(count for count, *_ in pieces)),
        lag_rows=0,
        waiting_rows=0,
        executors=executors,
        load_distance=0.0,
        moved_bytes=0.0,
        moves=0,
        delays=Delays(np.array(pieces, np.float64)),
    )


def test_a_rate_that_rises_steadily_is_met_by_executors_for_the_rate_to_come() -> None:
    """Decisions for the rate of their period missed the target in 54 % of the periods."""
    rises = Match(
        pattern=PATTERNS["ramp"], query=QUERIES["q8"], autoscaler="godwit", duration_s=120.0
    )
    figures, history = rises.play_with(AUTOSCALERS["godwit"].make(rises.target_s), 1.0)
    assert figures.violated < 0.25
    reasons = [event.reason for event in history.of_kind(events.ScaledOut)]
    assert any("the forecast rate of" in reason for reason in reasons)


def test_a_model_that_is_wrong_while_key_groups_shift_all_the_time_is_corrected() -> None:
    """Ten executors stayed where eleven are needed, and nothing said why."""
    shifts = Match(pattern=PATTERNS["sources"], query=QUERIES["q1"], autoscaler="godwit", seed=1)
    _, history = shifts.play_with(AUTOSCALERS["godwit"].make(shifts.target_s), 1.0)
    began, *_ = history.of_kind(events.ModelCorrected)
    assert (began.executors, began.factor > 1.1) == (10, True)
    more = [(e.before, e.wanted) for e in history.of_kind(events.ScaledOut) if e.before == 10]
    assert more == [(10, 11)]
    assert history.between(140.0, 160.0).delays().mean_s < shifts.target_s


def test_equal_matches_give_equal_figures() -> None:
    again, _ = match("ds2").play()
    assert again == played("ds2")[0]


def test_oracle_asks_before_the_step_and_keeps_the_target() -> None:
    figures, history = played(ORACLE)
    assert figures.cost == pytest.approx(1.0)
    assert figures.violated <= min(played("ds2")[0].violated, 0.1)
    before = [epoch for epoch in history.epochs if epoch.ended_s < SHORT_S / 3]
    assert max(epoch.executors for epoch in before) > before[0].executors


def test_restart_stops_the_stream_and_reads_all_state_again() -> None:
    live, stopped = played("ds2")[0], played("ds2", "restart")
    longest = np.diff([epoch.ended_s for epoch in stopped[1].epochs]).max()
    assert stopped[0].reconfigurations >= 1
    assert longest >= 4.0
    assert stopped[0].violated > live.violated
    # 10,000 keys of 33 bytes, each time
    assert stopped[0].moved_mb >= 0.33 * stopped[0].reconfigurations
    assert sum(epoch.rows for epoch in stopped[1].epochs) > 0


def test_least_is_monotone_in_the_rate_and_meets_the_target_just_so() -> None:
    scenario = PATTERNS["constant"].scenario(QUERIES["q1"])
    least = LeastExecutors(scenario, 2.0)
    rates = [scenario.rate.rows_per_s * lanes for lanes in (1, 3, 6, 9)]
    counts = [least.fewest(rate, 0, 0.0) for rate in rates]
    assert counts == sorted(counts)
    assert all(count > lanes for count, lanes in zip(counts, (1, 3, 6, 9), strict=True))
    for rate, count in zip(rates[1:], counts[1:], strict=True):
        assert least.latency_s(float(f"{rate:.3g}"), 0, count) <= 2.0
        assert least.latency_s(float(f"{rate:.3g}"), 0, count - 1) > 2.0


def test_straggler_and_second_source_change_the_least() -> None:
    query, late_s = QUERIES["q1"], 100.0
    scenario = PATTERNS["straggler"].scenario(query)
    least, rate = LeastExecutors(scenario, 2.0), 3 * scenario.rate.rows_per_s
    assert least.fewest(rate, 0, late_s) == least.fewest(rate, 0, 0.0) + 1
    two = PATTERNS["sources"].scenario(query)
    assert {c.name for c in two.components} == {"passed", "passed_2"}
    split = LeastExecutors(two, 2.0, first_share=first_share)
    assert split.fewest(rate, 0, 0.0) == LeastExecutors(scenario, 2.0).fewest(rate, 0, 0.0)


def test_rows_of_two_sources_reach_their_own_operators() -> None:
    pattern = PATTERNS["sources"]
    scenario = pattern.scenario(QUERIES["q1"])
    assert pattern.source is not None
    source = pattern.source(scenario, 0)
    batch = source.batch(0, 0, 10_000)
    counts = {name: int(rows.sum()) for name, rows in batch.rows_of.items()}
    assert sum(counts.values()) == 10_000
    assert counts["passed"] == pytest.approx(10_000 * first_share(0.0), rel=0.1)


def test_missed_periods_and_late_rows_are_counted_by_arrival() -> None:
    history = History(
        epochs=[
            record(5.0, [(100, 0.5, 1.5)], 2),  # arrived in the first period, within the target
            record(12.0, [(100, 3.0, 5.0)], 4),  # arrived about 8 s: missed
        ]
    )
    # of the four periods two have no rows that were processed
    assert violated_share(history, 2.0, 20.0) == pytest.approx(0.75)
    # half of the second epoch's rows took more than 4 s
    assert late_share(history, 4.0) == pytest.approx(0.25)
    assert executor_seconds(history, 10.0) == pytest.approx(2 * 5 + 4 * 5)


def figures(name: str, violated: float, cost: float, reconfigurations: int) -> Figures:
    return Figures(
        pattern="steps",
        query="q1",
        autoscaler=name,
        mechanism="live",
        seed=0,
        violated=violated,
        cost=cost,
        reconfigurations=reconfigurations,
        late=0.0,
        moved_mb=0.0,
        p99_s=1.0,
        changes=3,
    )


def test_ranks_share_places_and_leave_the_oracle_out() -> None:
    rows = compare(
        [
            figures("oracle", 0.0, 1.0, 0),
            figures("godwit", 0.01, 1.2, 3),
            figures("ds2", 0.2, 1.1, 3),
            figures("hpa", 0.01, 1.5, 5),
        ]
    )
    ranks = {row.autoscaler: dict(row.rank) for row in rows if row.pattern == "steps"}
    assert ranks["oracle"] == {}
    assert ranks["godwit"] == {"violated": 1, "cost": 2, "reconfigurations": 1}
    assert ranks["hpa"] == {"violated": 1, "cost": 3, "reconfigurations": 3}
    assert losses(rows) == ["live, steps: cost (rank 2; first: ds2)"]
    assert {row.pattern for row in rows} == {"steps", OVERALL}


def test_trace_is_squeezed_into_a_match_and_scaled_to_its_peak() -> None:
    pattern = trace("trace", [1.0, 3.0] * 600, peak=6.0)
    shares = [pattern.lanes(share) for share in np.linspace(0, 0.99, 50)]
    assert max(shares) == 6.0
    refused: list[list[float]] = [[], [0.0, 0.0], [1.0, -1.0], [1.0, math.nan]]
    for rates in refused:
        with pytest.raises(InvalidProblemError, match="no rates"):
            trace("trace", rates)


def test_command_prints_a_table_and_every_match_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser()
    add_arena_arguments(parser)

    def run(*words: str) -> int:
        always = ["--pattern", "constant", "--query", "q1", "--autoscaler", "ds2"]
        args = parser.parse_args([*always, "--duration", "20", *words])
        status: int = args.run(args)
        return status

    assert run("--plot", str(tmp_path / "arena.svg")) == 0
    table = capsys.readouterr()
    assert "oracle" in table.out
    assert "ds2" in table.out
    assert "2/2 live constant q1 ds2" in table.err
    assert (tmp_path / "arena.svg").stat().st_size > 1000
    assert run("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["autoscaler"] for each in printed] == ["oracle", "ds2"]
    with pytest.raises(InvalidProblemError, match="at least one seed"):
        run("--seeds", "0")
    with pytest.raises(InvalidProblemError, match="or more"):
        run("--duration", "4")
    (tmp_path / "rates").write_text("1 fast")
    for name in ("rates", "none"):
        with pytest.raises(InvalidProblemError, match="cannot be read"):
            run("--rates", str(tmp_path / name))


def test_query_costs_a_row_what_its_operators_cost() -> None:
    query = QUERIES["q5"]
    bids, hottest = query.operators
    assert query.row_ms == pytest.approx(
        bids.row_ms + (hottest.feeds or {})["bids"] * hottest.row_ms
    )
    assert replace(query, operators=query.operators[:1]).row_ms == bids.row_ms
