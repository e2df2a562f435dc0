"""Everything that the documents name exists: files, anchors, public names."""

from __future__ import annotations

import re
from inspect import isclass
from pathlib import Path

import pytest
from tests.support.public_api import OBJECTS, members_of

import godwit

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md", "lab/README.md")),
    ROOT / "lab/src/godwit_lab/experiments/README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "lab"),
    *sorted((ROOT / "lab").glob("*/*.md")),
]
SOURCE = ROOT / "src" / "godwit"


def anchors(page: Path) -> set[str]:
    return {*map(slug, re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE))}


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for path, anchor in re.findall(r"(?<!\w)\[[^]]*\]\(([^)#\s]*)#?([^)]*)\)", text):
        if path.startswith("http"):
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_no_page_has_marks_of_a_conflict() -> None:
    mark = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    marked = [page for page in PAGES if mark.search(page.read_text())]
    assert not marked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    for name in re.findall(r"`((?:src/godwit/)?[\w/]+\.py)\b", page.read_text()):
        if name.partition("/")[0] in rooms:
            assert (SOURCE / name).exists(), name
        elif "/" in name:
            assert (ROOT / name).exists(), name


def test_tests_that_hold_a_row_of_the_papers_exist() -> None:
    text, file = (ROOT / "docs/papers.md").read_text(), ""
    named = re.findall(r"`((?:lab/)?tests/[\w/]+\.py)?::(test_\w+)`", text)
    assert len(named) > len(re.findall(r"^\| \d\.\d+ \|", text, re.MULTILINE)) == 44
    for path, test in named:
        file = path or file
        assert f"def {test}(" in (ROOT / file).read_text(), test


def test_pages_that_the_source_names_exist() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text()):
            assert (ROOT / name).exists(), f"{path}: {name}"


def directives() -> dict[str, str]:
    """Return name → options of what the pages of the reference describe."""
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    entries = re.findall(r"^\.\. auto\w+:: (godwit\.[\w.]+)\n((?:   :.*\n)*)", pages, re.MULTILINE)
    for block in re.findall(r"^```\{godwit-members\}\n(.*?)\n```", pages, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            name, _, options = line.removeprefix("gw.").partition(" ")
            module = getattr(godwit, name.removesuffix(".*")) if name.endswith(".*") else None
            members = [name] if module is None else [name.replace("*", m) for m in module.__all__]
            entries += [(f"godwit.{member}", options) for member in members]
    return dict(entries)


def test_every_public_name_has_its_place_in_the_reference() -> None:
    documented = {*directives()} - {"godwit.sources.Position"}
    missing = {*OBJECTS} - {"godwit.errors.GodwitError"} - documented
    assert not missing, f"add to docs/reference: {missing}"
    assert documented <= {*OBJECTS}


def test_every_method_and_property_has_its_place_in_the_reference() -> None:
    options = directives()
    shown = {OBJECTS[name] for name in options if isclass(OBJECTS.get(name))}
    for name, of in OBJECTS.items():
        members = (member.rpartition(".")[2] for member in members_of(name))
        bases = {base for member in members for base in of.__mro__ if member in vars(base)}
        elsewhere = {base for base in bases if base is not of and base not in shown}
        if name in options and any(base.__module__.startswith("godwit.") for base in elsewhere):
            assert ":inherited-members:" in options[name], name


def test_the_first_page_of_the_site_runs_as_it_is_pasted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    exec(block, {})  # the page's own code
    assert "'visits': 2" in capsys.readouterr().out
