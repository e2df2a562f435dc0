"""Words of the field in documents, docstrings, comments and messages, and names that say the value.

`words.json` has for every room how many of the words and names of the tables below are left in it.
The numbers may only go down, to 0. `python -m tests.unit.test_words` writes the numbers of today,
unless there are more words than before. A file that moves to another room takes its words along.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("words.json")
PHRASES = re.compile(
    r"\bnobody\b|\bwhoever\b|\banew\b|(?<!\bthere )\bis no\b(?! longer\b)|\bso many\b"
    r"|\bwhat (?:is|was|comes)\b|\bconductors?\b|\bin place of\b|\bsomebody\b"
    r"|\bfor good\b(?! reason)|\blies? in\b|\bin a map before[,.]"
    r"|\bsome megabytes\b|\bif wanted\b(?! is\b)",
    re.IGNORECASE,
)
NAMES = frozenset(["of", "at", "told", "found", "held", "kept", "made", "one", "there"])
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "docs",
    "lab/docs",
)
SOURCES = ("src/godwit", "lab/src/godwit_lab")


def documents() -> Iterator[tuple[str, str]]:
    """Yield room and text of every document, without code in lines and links."""
    for name in DOCUMENTS:
        path = ROOT / name
        for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            # Without what scripts write, and copies for the site.
            if page.parent.name != "lab" and page.name != "gallery.md":
                text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", page.read_text())
                yield str(page.relative_to(ROOT).parent), text


def modules() -> Iterator[tuple[str, Path]]:
    """Yield room and path of every module of the distributions."""
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*.py")):
            room = path.relative_to(ROOT / name).parts[:-1][:2]
            yield "/".join((name, *room)), path


def texts(nodes: list[ast.AST], source: str) -> Iterator[str]:
    """Yield the docstrings, comments and other texts of a module."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())
    yield " ".join(re.findall(r"(?:^|  )# ?(.*)$", source, re.MULTILINE))


def bound_names(nodes: list[ast.AST]) -> Iterator[str | None]:
    """Yield the names that a module binds: variables, fields and parameters."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            yield node.name


@cache
def counted() -> dict[str, dict[str, int]]:
    """Return kind → room → number of words or names that are left."""
    phrases: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for room, text in documents():
        phrases[room] += len(PHRASES.findall(text))
    for room, path in modules():
        source = path.read_text()
        nodes = list(ast.walk(ast.parse(source)))
        phrases[room] += sum(len(PHRASES.findall(text)) for text in texts(nodes, source))
        names[room] += sum(name in NAMES for name in bound_names(nodes))
    kinds = {"phrases": phrases, "names": names}
    return {
        kind: {room: number for room, number in sorted(rooms.items()) if number}
        for kind, rooms in kinds.items()
    }


@pytest.mark.parametrize("kind", ["phrases", "names"])
def test_no_room_has_more_words_that_a_reader_has_to_translate(kind: str) -> None:
    now, allowed = counted()[kind], json.loads(ALLOWED.read_text())[kind]
    above = {
        room: f"{number}, allowed {allowed.get(room, 0)}"
        for room, number in now.items()
        if number > allowed.get(room, 0)
    }
    # Words that came with a file from another room are missing there.
    moved = sum(now.values()) <= sum(allowed.values())
    assert not above or moved, f"use the field's word in: {above}"


def test_the_product_binds_no_name_that_does_not_say_the_value() -> None:
    """Field ``at`` of one event is stored in journals, so it keeps its name."""
    product = {room: n for room, n in counted()["names"].items() if room.startswith("src/")}
    assert product == {"src/godwit/model": 1}


def test_phrases_and_names_are_found_where_they_stand() -> None:
    source = (
        '"""What is so many."""\n\n\ndef read(of):  # nobody\n    for at in of:\n'
        '        raise ValueError(f"there is no {at}, it is no longer")\n'
    )
    nodes = list(ast.walk(ast.parse(source)))
    assert PHRASES.findall(" ".join(texts(nodes, source))) == ["What is", "so many", "nobody"]
    assert NAMES.intersection(bound_names(nodes)) == {"at", "of"}


def write() -> None:
    """Write the numbers of today, unless there are more words than before."""
    now = counted()
    if ALLOWED.exists() and "--first" not in sys.argv:
        before = json.loads(ALLOWED.read_text())
        for kind, rooms in now.items():
            if sum(rooms.values()) > sum(before[kind].values()):
                sys.exit(f"{kind}: {sum(rooms.values())}, and {sum(before[kind].values())} before")
    ALLOWED.write_text(json.dumps(now, indent=2) + "\n")


if __name__ == "__main__":
    write()
