"""`godwit what-if` plays a stream from its journal, and its error bars hold against true runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.controls import control_of

from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model import events
from godwit_lab.simulator import (
    CostModel,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    UpstreamFeed,
    controlled_by,
)

if TYPE_CHECKING:
    from pathlib import Path

    from godwit_lab.simulator import Delays

COSTS = CostModel(fixed_ms=150, source_row_ms=0.02, row_ms=0.05, key_ms=0.0, key_group_ms=0.05)
WARM_S, LAST_S = 20, 70


def stream(executors: int, factor: float = 1.0, trigger_s: float = 1.0) -> Scenario:
    """Two components one after the other; lanes of four executors are busy for two fifths."""
    return Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=2),) * executors),
        components=(
            SimulatedComponent(name="sums", key_groups=64, row_ms=0.8, key_bytes=2000),
            SimulatedComponent(
                name="joined",
                key_groups=64,
                row_ms=0.4,
                feeds=(UpstreamFeed(upstream="sums", selectivity=0.5),),
            ),
        ),
        rate=Rate(rows_per_s=3000 * factor, noise=0.4, noise_s=3.0),
        keys=Keys(number=2000, zipf=0.4),
        duration_s=LAST_S,
        trigger_s=trigger_s,
        costs=COSTS,
    )


def balanced() -> Any:
    return controlled_by(control_of(planner="flux", period="5 seconds"))


def true_delays(scenario: Scenario) -> Delays:
    """Delays of a run that truly is so, once it is balanced."""
    history = Simulation(scenario, seed=11, control=balanced()).run()
    return history.between(WARM_S, LAST_S).delays()


def journal(path: Path, scenario: Scenario) -> str:
    """Write the checkpoint of a simulated run, with its journal."""
    writer = JournalWriter(write_checkpoint(path, name="flights", epochs=1), "run")
    Simulation(scenario, seed=7, control=balanced(), note=writer.add).run()
    writer.flush()
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return journal(tmp_path_factory.mktemp("what-if") / "ck", stream(4))


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["what-if", *arguments, "--planner", "flux", "--json", "--last", "40s"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize(
    ("executors", "factor", "trigger_s"),
    [(3, 1.0, 1.0), (8, 3.0, 1.0), (6, 1.0, 3.0)],
)
def test_the_error_bar_covers_a_run_that_truly_is_so(
    checkpoint: str,
    capsys: pytest.CaptureFixture[str],
    executors: int,
    factor: float,
    trigger_s: float,
) -> None:
    told = asked(
        capsys, checkpoint, "--executors", f"{executors}", "--rate", f"{factor}x",
        "--trigger", f"{trigger_s}",
    )  # fmt: skip
    (answer,) = told["answers"]
    truth = true_delays(stream(executors, factor, trigger_s))
    for name, quantile in (("median", 0.5), ("tail", 0.99)):
        estimate = answer[name]
        assert estimate["low_s"] <= truth.quantile_s(quantile) <= estimate["high_s"], name
        assert estimate["high_s"] < 2.2 * estimate["low_s"], (
            "a bar that covers everything says nothing"
        )


def test_the_stream_as_it_was_is_played_as_it_was_measured(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = asked(capsys, checkpoint, "--executors", "4")
    (answer,), measured = told["answers"], told["measured"]
    assert measured["executors"] == 4
    assert measured["ratePerS"] == pytest.approx(3000, rel=0.05)
    assert answer["median"]["seconds"] == pytest.approx(measured["latencyMs"]["p50"] / 1e3, rel=0.1)
    assert answer["utilisation"] == pytest.approx(0.4, abs=0.08)
    assert told["accuracy"]["replayed"] < 0.15


def test_fewer_executors_take_longer_key_groups_move_and_the_fewest_that_suffice_are_named(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--executors", "2,4,10", "--rate", "2x", "--latency", "2s", "--quantile", "0.95"]
    told = asked(capsys, checkpoint, *arguments)
    two, four, ten = told["answers"]
    assert [a["targeted"]["seconds"] for a in (ten, four, two)] == sorted(
        a["targeted"]["seconds"] for a in (two, four, ten)
    )
    assert (two["note"], two["met"]) == ("falls behind", "no")
    assert ten["met"] in ("yes", "likely")
    assert told["fewest"] == min(
        a["executors"] for a in (four, ten) if a["met"] in ("yes", "likely")
    )
    # Executors that come or go move key groups, and as many as there are do not.
    assert min(two["moves"], ten["moves"]) >= 48
    assert four["moves"] < 16
    assert two["moved_bytes"] > 0


def test_judged_decisions_widen_the_error_bar(
    tmp_path: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    doubted = tmp_path / "ck"
    shutil.copytree(checkpoint, doubted)
    writer = JournalWriter(CheckpointStorage.open(doubted), "another-run")
    for miss in (0.7, -0.7, 0.7):
        event = events.DecisionJudged(
            epoch=1, at_s=1.0, before=2, wanted=4, verdict="helped", expected=1.0,
            measured=float(np.exp(miss)), target=1.0, arrival_per_s=1.0, reason="",
        )  # fmt: skip
        writer.add("event", event.to_dict())
    writer.flush()
    told = asked(capsys, str(doubted), "--executors", "5")
    assert told["accuracy"]["source"].startswith("3 decisions")
    tail = told["answers"][0]["tail"]
    assert tail["high_s"] / tail["low_s"] == pytest.approx(np.exp(2 * 1.5 * 0.7), rel=0.1)


def test_equal_questions_have_equal_answers_and_the_table_says_what_it_rests_on(
    checkpoint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "what-if.png"
    told = []
    for _ in range(2):
        arguments = ["--executors", "4", "--latency", "1800ms", "--last", "20s"]
        assert main(["what-if", checkpoint, *arguments, "--plot", str(picture)]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert "4 (today)" in told[0]
    assert "The fewest that meet the target" in told[0]
    assert "Error bars" in told[0]
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "fast"], "not a positive number"),
        (["--rate=-2x"], "not a positive number"),
        (["--rate", "nan"], "not a positive number"),
        (["--executors", "8..4"], "4..8"),
        (["--executors", "0..4"], "from 1 to"),
        (["--executors", "four"], "from 1 to"),
        (["--executors", "1..900"], "too many"),
        (["--planner", "fluxx"], "Did you mean 'flux'?"),
        (["--latency", "soon"], "--latency is 'soon'"),
        (["--latency=-1s"], "--latency"),
        (["--quantile", "1"], "below 1"),
        (["--cores", "1.5"], "from 1 to"),
        (["--trigger", "often"], "--trigger"),
        (["--last", "1.5s"], "less than a period"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    checkpoint: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["what-if", checkpoint, *arguments]) == 2
    assert said in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    assert main(["what-if", str(path)]) == 2
    return capsys.readouterr().err


def test_a_journal_that_does_not_suffice_is_refused_with_what_to_do(
    tmp_path: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert "not a checkpoint of Godwit" in refused(capsys, nothing)

    write_checkpoint(tmp_path / "bare", name="flights", epochs=1)
    assert "no journal" in refused(capsys, tmp_path / "bare")

    journal(tmp_path / "few", replace(stream(4), duration_s=8))
    assert "too short" in refused(capsys, tmp_path / "few")

    journal(tmp_path / "brief", replace(stream(4), duration_s=7, trigger_s=0.2))
    assert "less than a period" in refused(capsys, tmp_path / "brief")


def test_a_journal_of_another_version_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = JournalWriter(write_checkpoint(tmp_path / "ck", name="flights", epochs=1), "run")

    def older(kind: str, values: Any) -> None:
        writer.add(kind, {"version": 0} if kind == "stream" else values)

    Simulation(stream(4), seed=7, note=older).run()
    writer.flush()
    assert "another version" in refused(capsys, tmp_path / "ck")
