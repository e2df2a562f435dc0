"""The site as a reader meets it in a browser: search, constructors, lines of code."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from tests.support.chromium import Browser, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs Chromium: apt-get install chromium, or GODWIT_CHROMIUM=path"
)

ROOT = Path(__file__).parents[2]
SITE = ROOT / "artifacts" / "site"
_CUT = """[...document.querySelectorAll("pre, dt.sig")]
    .filter(block => block.scrollWidth > block.clientWidth + 1).map(block => block.innerText)"""
_RESULTS = """[...document.querySelectorAll("#search-results li a:first-child")]
    .map(link => link.getAttribute("href").split("?")[0].split("#")[0])"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    # `./run docs` builds it too. A build of changed pages alone loses other pages' index entries.
    index = SITE / "searchindex.js"
    pages = (
        path
        for room in ("docs", "lab/docs", "src/godwit")
        for path in (ROOT / room).rglob("*.[mp][dy]")
    )
    newest = max(path.stat().st_mtime for path in pages)
    if not index.exists() or index.stat().st_mtime < newest:
        arguments = ("--quiet", "--fresh-env", "--jobs", "2", str(ROOT / "docs"), str(SITE))
        subprocess.run([sys.executable, "-m", "sphinx", *arguments], check=True, cwd=ROOT)
    command = chromium()
    assert command is not None
    with Browser(command, tmp_path_factory.mktemp("profile")) as running:
        yield running


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(browser: Browser) -> Iterator[str]:
    """Address of the built site: a browser lets no page of a file read another."""
    del browser
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def search(browser: Browser, site: str, words: str) -> list[str]:
    """Return the pages that a search lists, the best one first."""
    with browser.tab(f"{site}/search.html?q={words.replace(' ', '+')}") as tab:
        tab.wait_for("document.querySelector('#search-results p.search-summary').innerText")
        # Results come one after another.
        tab.wait_for("""(() => {
            const [number] = document.querySelector("p.search-summary").innerText.match(/[0-9]+/);
            return document.querySelectorAll("#search-results li").length >= Number(number);
        })()""")
        pages: list[str] = tab.run(_RESULTS)
        return pages


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("slack", "guide/windows.html"),
        ("watermark", "guide/windows.html"),
        ("key group", "glossary.html"),
    ],
)
def test_search_finds_where_a_term_is_explained(
    browser: Browser, site: str, words: str, first: str
) -> None:
    assert search(browser, site, words)[0] == first


@pytest.mark.parametrize("words", ["slack", "latency", "session", "migration", "timer"])
def test_search_lists_design_pages_after_guides_and_reference(
    browser: Browser, site: str, words: str
) -> None:
    pages = [*dict.fromkeys(search(browser, site, words))]  # by where each stands first
    design = [number for number, page in enumerate(pages) if page.startswith("design/")]
    others = [n for n, page in enumerate(pages) if page.startswith(("guide/", "reference/"))]
    assert design
    assert max(others) < min(design)


def test_no_line_of_code_is_cut_off(browser: Browser) -> None:
    guides = (SITE / "guide" / f"{name}.html" for name in ("joins", "kafka", "sinks", "windows"))
    for page in (*sorted((SITE / "reference").glob("*.html")), *guides):
        with browser.tab(page.as_uri(), width=1400) as tab:
            tab.wait_for("document.readyState === 'complete'")
            assert tab.run(_CUT) == [], page.name


def test_what_godwit_makes_shows_no_constructor(browser: Browser) -> None:
    with browser.tab((SITE / "reference/queries.html").as_uri()) as tab:
        tab.wait_for("document.readyState === 'complete'")
        shown = "document.getElementById('godwit.{}').innerText"
        assert "(" not in tab.run(shown.format("types.Query"))
        assert "(" in tab.run(shown.format("Lanes"))
