"""`godwit reproduce`: the catalogue, two cheap figures, their switches, and the page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from godwit.cli.main import main
from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce import catalogue, command, running

if TYPE_CHECKING:
    from pathlib import Path

    from godwit_lab.cli.reproduce.catalogue import Entry
    from godwit_lab.cli.reproduce.running import Result

# What the five papers show: each has a script, or a reason.
PROMISED = {
    "paper1": [*(f"figure{n}" for n in range(11, 18)), "table3"],
    "paper2": [f"figure{n}" for n in range(2, 15)],
    "paper3": [f"figure{n}" for n in (7, *range(9, 17))],
    "paper4": [*(f"figure{n}" for n in range(2, 7)), "table1", "table2"],
    "paper5": [*(f"figure{n}" for n in (*range(6, 17), 18, 19, 20)), "table2", "table3"],
}
CHEAP = ("paper1/table3", "paper3/figure7")
# One figure of each paper that is quick to run without its mechanism.
SWITCHES = ("paper1/table3", "paper2/figure6", "paper3/figure7", "paper4/figure4", "paper5/table2")


# Figures whose numbers do not depend on the machine, a few seconds each.
STEADY = ("paper1/phases", "paper3/figure14", "paper3/figure15", "paper4/figure4", "paper5/table2")


def test_every_figure_of_the_papers_is_listed_with_a_script_or_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = {entry.name: entry for entry in catalogue.entries()}
    promised = {f"{paper}/{name}" for paper, names in PROMISED.items() for name in names}
    assert promised <= set(entries)
    assert main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out
    for name, entry in entries.items():
        assert name in told
        assert entry.reason or entry.load().claim


@pytest.mark.parametrize(
    "entry", [e for e in catalogue.entries() if not e.reason], ids=lambda entry: entry.name
)
def test_a_figure_declares_what_a_reader_needs(entry: Entry) -> None:
    figure = entry.load()
    assert figure.title
    assert figure.claim.endswith(".")
    assert figure.workload.endswith(".")
    assert not figure.reason or figure.reason.endswith(".")
    assert figure.charts
    assert all(chart.y_label for chart in figure.charts)


def test_figures_have_short_names_and_papers_stand_for_all_of_theirs() -> None:
    assert [entry.name for entry in catalogue.choose(["1/12"])] == ["paper1/figure12"]
    assert [entry.name for entry in catalogue.choose(["4/table1", "1/table3"])] == [
        "paper1/table3",
        "paper4/table1",
    ]
    assert {entry.paper for entry in catalogue.choose(["2"])} == {"paper2"}
    assert catalogue.choose([]) == catalogue.entries()
    names = [entry.name for entry in catalogue.choose(["5"])]
    assert names.index("paper5/figure9") < names.index("paper5/figure10")
    assert names.index("paper5/figure10") < names.index("paper5/table2")


def test_an_unknown_figure_is_answered_by_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "paper1/figure21"]) == 2
    assert re.search("no figure 'paper1/figure21'.*Nearest: paper1/fig", capsys.readouterr().err)
    with pytest.raises(GodwitError, match="There is no figure 'paper9'"):
        catalogue.choose(["paper9"])


def test_a_figure_that_cannot_be_redrawn_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "5/11"]) == 2
    assert "cannot be redrawn: its longer part is the time" in capsys.readouterr().err


def test_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "1/table3", "--data", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["reproduce", "1/table3", "--seed", "-1"]) == 2
    assert "is negative" in capsys.readouterr().err
    assert main(["reproduce", "1/13", "--off"]) == 2
    assert "no mechanism" in capsys.readouterr().err


def test_cheap_figures_agree_once_and_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["reproduce", *CHEAP, "--quick", "--out", str(tmp_path)]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert told.count("verdict: agrees") == len(CHEAP)
    assert re.search(r"partials \* +≤ 86 +86 +86 +1 +yes", told)
    assert "2 agrees" in told
    assert main(asked) == 0
    assert capsys.readouterr().out.count("there already") == len(CHEAP)
    assert main([*asked, "--again"]) == 0
    assert "there already" not in capsys.readouterr().out


@pytest.mark.parametrize("figure", SWITCHES)
def test_without_its_mechanism_a_figure_of_each_paper_does_not_agree(
    figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", figure, "--quick", "--off", "--out", str(tmp_path)]) == 1
    assert "verdict: does not agree" in capsys.readouterr().out
    assert not (tmp_path / figure).exists()


@pytest.mark.campaign
@pytest.mark.parametrize("figure", STEADY)
def test_a_figure_agrees_and_two_runs_of_it_are_equal(figure: str, tmp_path: Path) -> None:
    drawn = []
    for out in (tmp_path / "a", tmp_path / "b"):
        assert main(["reproduce", figure, "--quick", "--out", str(out)]) == 0
        drawn.append((out / figure / "data.csv").read_bytes())
    assert drawn[0] == drawn[1]


def test_a_stopped_run_keeps_what_is_whole_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running.reproduce

    def stop_at_second(entry: Entry, *arguments: object) -> Result:
        if entry.name == CHEAP[1]:
            raise KeyboardInterrupt
        return run(entry, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "reproduce", stop_at_second)
    asked = ["reproduce", *CHEAP, "--quick", "--out", str(tmp_path)]
    assert main(asked) == 130
    assert "Stopped. 1 of 2 figures are whole" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(asked) == 0
    assert capsys.readouterr().out.count("there already") == 1


def test_one_that_cannot_be_run_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running.reproduce

    def without_solver(entry: Entry, *arguments: object) -> Result:
        if entry.name == CHEAP[0]:
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        return run(entry, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "reproduce", without_solver)
    assert main(["reproduce", *CHEAP, "--quick", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "1 could not be run" in told.out
    assert "No module named 'scipy'" in told.err
    # Alone, it names the package to install.
    assert main(["reproduce", CHEAP[0], "--quick", "--out", str(tmp_path)]) == 2
    assert "pip install 'scipy'" in capsys.readouterr().err


def test_the_gallery_has_every_figure_with_its_verdict_or_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    asked = ["reproduce", CHEAP[1], "--quick", "--out", str(tmp_path / "out")]
    assert main([*asked, "--gallery", str(docs)]) == 0
    assert "Gallery: " in capsys.readouterr().out
    text = (docs / "gallery.md").read_text()
    for entry in catalogue.entries():
        assert f"### {entry.name}\n" in text
        assert not entry.reason or entry.reason in text
    section = text.partition("### paper3/figure7\n")[2].partition("###")[0]
    assert "**Agrees.**" in section
    assert "![" in section
    assert (docs / "gallery" / "paper3-figure7.svg").exists()
    assert "86 ≤ 86 * (partials; paper 86)" in section
    assert "**Not run** for this page" in text
    asked = ["reproduce", CHEAP[0], "--quick", "--out", str(tmp_path / "other")]
    assert main([*asked, "--gallery", str(docs)]) == 0
    both = (docs / "gallery.md").read_text()
    assert section in both  # a figure that was not run again stays as it was
    assert "2 figures and tables: 2 agree" in both


@pytest.mark.parametrize("content", [b"garbage", b""])
def test_tweets_that_are_no_parquet_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "tweets.parquet").write_bytes(content)
    given = ["reproduce", "4/4", "--quick", "--data", str(tmp_path), "--out", str(tmp_path / "o")]
    assert main(given) == 2
    assert "is not a Parquet file with a column of text" in capsys.readouterr().err


def test_a_gallery_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = ["reproduce", "1/table3", "--out", str(tmp_path / "o")]
    assert main([*given, "--gallery", str(tmp_path / "file")]) == 2
    assert "The gallery cannot be written" in capsys.readouterr().err
