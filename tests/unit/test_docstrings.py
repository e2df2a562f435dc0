"""Every public name has an example, and every example of a docstring does as it says."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NOT_THEIRS = {"godwit.__version__", "godwit.sources.Position"}  # text, and a name for Any


def public() -> Iterator[tuple[str, Any]]:
    """Yield the names that users import, with what they are."""
    for name in dir(gw):
        value = getattr(gw, name)
        if inspect.ismodule(value):
            names = getattr(value, "__all__", ("json", "raw", "text", "avro", "protobuf"))
            yield from ((f"godwit.{name}.{n}", getattr(value, n)) for n in names)
        else:
            yield f"godwit.{name}", value


OBJECTS = {name: value for name, value in public() if name not in NOT_THEIRS}


def examples_of(name: str) -> list[doctest.DocTest]:
    """Return the examples of an object and of its methods."""
    found = doctest.DocTestFinder(recurse=True).find(OBJECTS[name], name, module=False)
    return [one for one in found if one.examples]


@pytest.fixture(scope="module")
def lines_before() -> Any:
    """The lines that the reference asks to run before its examples."""
    page = (ROOT / "docs/reference/index.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return compile(block, "docs/reference/index.md", "exec")


@pytest.mark.parametrize("name", OBJECTS)
def test_every_example_does_as_it_says(
    name: str, lines_before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tests = examples_of(name)
    ran = [e for test in tests for e in test.examples if not e.options.get(doctest.SKIP)]
    assert ran, f"{name} has no example that runs"
    said: list[str] = []
    for test in tests:
        namespace: dict[str, Any] = {}
        exec(lines_before, namespace)  # the page's own code
        test.globs = namespace
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert said == [], "".join(said)


def test_a_wrong_example_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(wrong, out=said.append)
    assert "Expected:\n    3\nGot:\n    2" in "".join(said)
