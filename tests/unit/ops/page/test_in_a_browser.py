"""The page in a real browser: what is on it, that it can be used, and that no text is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.chromium import Browser, Tab, chromium
from tests.support.journal_story import FLOW, epoch, story, write
from tests.unit.ops.page.test_live_page import HOSTILE, hostile, served

from godwit.ops.page.live_page import PageFeed, report_page
from godwit.ops.page.view import report_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs Chromium: apt-get install chromium, or GODWIT_CHROMIUM=path"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = chromium()
    assert command is not None
    with Browser(command, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointStorage:
    return write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), story())


def drawn(tab: Tab, number: int) -> None:
    tab.wait_for(f"document.documentElement.dataset.epoch === '{number}'")


def report(storage: CheckpointStorage, path: Path, flow: str = "delays") -> str:
    feed = PageFeed(storage, flow=flow)
    published = feed.look()
    values = report_of(published.state, flow=feed.flow, life=published.life)
    path.write_text(report_page(values), encoding="utf-8")
    return path.as_uri()


def test_a_run_is_shown_changes_as_it_goes_on_and_can_be_scrubbed_by_keys(
    browser: Browser, checkpoint: CheckpointStorage
) -> None:
    with served(checkpoint) as port, browser.tab(f"http://127.0.0.1:{port}/") as tab:
        drawn(tab, 5)
        assert tab.text("#flow") == "delays"
        assert tab.text("#state") == "stopped"
        headline = tab.text("#headline")
        assert "500 ms" in headline
        assert "750 ms" in headline
        graph = tab.run("document.querySelector('#graph').textContent")
        for said in ("flights", "by_plane", "totals", "4,200 behind", "1,000 rows", "977 KiB"):
            assert said in graph.replace("976.6", "977")
        decisions = tab.text("#decisions")
        assert "50 % → 10 %" in decisions.replace("10.0", "10")
        assert "12 %" in decisions
        assert "helped" in decisions
        why = tab.run("document.querySelector('#decisions').textContent")
        assert "a load distance of 10% instead of 50%" in why
        moves = tab.text("#moves")
        assert "100 ms" in moves  # predicted
        assert "200 ms" in moves  # what came
        assert "late" in tab.text("#left")
        assert '["N14228"]' in tab.text("#hot")
        assert "40 %" in tab.text("#hot")
        assert tab.run("document.querySelectorAll('#latency .flag').length") == 2
        assert "8 key groups, loads of the last 2 epochs" in tab.text("#cell")

        write(checkpoint, [epoch(6, rows=12_000)])
        drawn(tab, 6)
        assert "12.0 k rows" in tab.run("document.querySelector('#graph').textContent")

        tab.run("document.querySelector('#slider').focus()")
        for _ in range(3):
            tab.press("ArrowLeft")
        tab.wait_for("document.querySelector('#moment').textContent.startsWith('epoch 3 ')")
        tab.wait_for("document.querySelector('#moves').innerText.includes('2, 2 in flight')")
        assert "No decision" not in tab.text("#decisions")
        assert "12 %" not in tab.text("#decisions")  # which nobody knew then
        assert "Every row that was read was processed" in tab.text("#left")
        assert tab.run("document.querySelector('#live').getAttribute('aria-pressed')") == "false"
        tab.run("document.querySelector('#live').click()")
        tab.wait_for("document.querySelector('#moment').textContent.startsWith('epoch 6 ')")

        tab.run("document.querySelector('#heat').focus()")
        tab.press("ArrowRight")
        assert "a, lane 1" in tab.text("#cell")  # of one key group, as lane 0
        assert not tab.complaints


def lagging(storage: CheckpointStorage) -> None:
    """Write an epoch of two sources, both of which are behind."""
    graph = {**FLOW["flow"], "sources": ["flights", "weather"]}
    weather = {"from": ["source", "weather"], "to": ["operator", "by_plane"], "exchange": True}
    graph["edges"] = [*graph["edges"], weather]
    sources = [
        {"name": name, "description": name, "behind": behind}
        for name, behind in (("flights", 1837), ("weather", 182))
    ]
    write(storage, [{"flow": graph}, {"sources": {"sources": sources}}, epoch(6)])


def test_the_backlog_is_one_figure_wherever_it_stands(
    browser: Browser, checkpoint: CheckpointStorage, tmp_path: Path
) -> None:
    lagging(checkpoint)
    with browser.tab(report(checkpoint, tmp_path / "run.html")) as tab:
        drawn(tab, 6)
        edges = tab.run("[...document.querySelectorAll('#graph .backlog')].map(e => e.textContent)")
        assert sorted(edges) == ["1,837 behind", "182 behind"]
        assert "2,019 rows" in " ".join(tab.text("#headline").split())
        tab.run("document.querySelector('#slider').focus()")
        tab.press("ArrowLeft")
        tab.wait_for("document.querySelector('#moment').textContent.startsWith('epoch 5 ')")
        assert "4,200 behind" in tab.run("document.querySelector('#graph').textContent")
        assert "4,200 rows" in " ".join(tab.text("#headline").split())


def test_executors_of_a_run_that_has_ended_are_gone_on_the_page_and_in_the_report(
    browser: Browser, checkpoint: CheckpointStorage, tmp_path: Path
) -> None:
    with served(checkpoint) as port:
        for url in (f"http://127.0.0.1:{port}/", report(checkpoint, tmp_path / "run.html")):
            with browser.tab(url) as tab:
                drawn(tab, 5)
                assert tab.text("#state") == "stopped"
                assert "gone" in tab.text("#executors")
                assert "works" not in tab.text("#executors")
                tab.run("document.querySelector('#slider').focus()")
                tab.press("Home")
                tab.wait_for("document.querySelector('#executors').innerText.includes('works')")


def test_a_report_shows_the_same_without_a_server(
    browser: Browser, checkpoint: CheckpointStorage, tmp_path: Path
) -> None:
    with browser.tab(report(checkpoint, tmp_path / "run.html")) as tab:
        drawn(tab, 5)
        assert "by_plane" in tab.run("document.querySelector('#graph').textContent")
        assert "helped" in tab.text("#decisions")
        tab.run("document.querySelector('#slider').focus()")
        tab.press("Home")
        tab.wait_for("document.querySelector('#moment').textContent.startsWith('epoch 0 ')")
        assert "Nothing has moved" in tab.text("#moves")
        assert not tab.complaints


def test_text_of_a_journal_is_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    storage = write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), hostile())
    with served(storage, flow=HOSTILE) as port:
        for url in (f"http://127.0.0.1:{port}/", report(storage, tmp_path / "r.html", HOSTILE)):
            with browser.tab(url) as tab:
                drawn(tab, 5)
                assert tab.text("#flow") == HOSTILE
                assert HOSTILE in tab.run("document.querySelector('#graph').textContent")
                assert HOSTILE in tab.run("document.querySelector('#hot').textContent")
                assert tab.run("document.title") == f"{HOSTILE} · Godwit"
                assert tab.run("document.querySelectorAll('img').length") == 0
                assert not tab.complaints


def test_what_is_not_there_is_said_in_words(browser: Browser, tmp_path: Path) -> None:
    storage = write_checkpoint(tmp_path / "ck", name="delays", epochs=1)
    with served(storage) as port, browser.tab(f"http://127.0.0.1:{port}/") as tab:
        tab.wait_for("document.querySelector('#latency').innerText.includes('No row')")
        for place, said in {
            "#graph": "after the first epoch",
            "#decisions": "gw.Control",
            "#moves": "Nothing has moved",
            "#hot": "No key had more",
            "#watermarks": "event time",
            "#left": "Every row that was read was processed",
            "#backlog": "No source says",
        }.items():
            assert said in tab.text(place)
        assert not tab.complaints


def test_a_small_screen_has_no_line_wider_than_itself(
    browser: Browser, checkpoint: CheckpointStorage
) -> None:
    with served(checkpoint) as port:
        url = f"http://127.0.0.1:{port}/"
        with browser.tab(url, width=360, height=740) as tab:
            drawn(tab, 5)
            assert tab.run("document.documentElement.scrollWidth") <= 360
            assert not tab.complaints


def test_every_figure_has_a_name_for_those_who_do_not_see_it(
    browser: Browser, checkpoint: CheckpointStorage
) -> None:
    with served(checkpoint) as port, browser.tab(f"http://127.0.0.1:{port}/") as tab:
        drawn(tab, 5)
        nameless = tab.run(
            "[...document.querySelectorAll('[role=img]')]"
            ".filter((e) => !e.getAttribute('aria-label')).length"
        )
        assert nameless == 0
        inputs = tab.run(
            "[...document.querySelectorAll('input,select')].every((e) => e.labels.length > 0)"
        )
        assert inputs


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_and_loads_are_told_apart_by_lightness_alone(
    browser: Browser, checkpoint: CheckpointStorage, *, dark: bool
) -> None:
    names = ["paper", "card", "ink", "quiet", "accent", "alarm", "alarm-soft", "low", "high"]
    with (
        served(checkpoint) as port,
        browser.tab(f"http://127.0.0.1:{port}/", dark=dark) as tab,
    ):
        drawn(tab, 5)
        script = f"""(() => {{ const s = getComputedStyle(document.documentElement);
            return {json.dumps(names)}.map((n) => s.getPropertyValue('--' + n).trim()); }})()"""
        colours = dict(zip(names, tab.run(script), strict=True))
    for text, ground in (
        *(("ink", "paper"), ("ink", "card"), ("quiet", "paper"), ("quiet", "card")),
        *(("accent", "card"), ("alarm", "card"), ("alarm", "alarm-soft")),
    ):
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert _contrast(colours["low"], colours["high"]) >= 7  # no hue is needed to tell them apart
