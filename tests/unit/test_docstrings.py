"""Public names, methods and properties have examples, and each example does as it says.

Examples that need a running query are in `tests/spark/test_examples_of_queries.py`, those that
need a cluster in `tests/programs/test_local_cluster.py`.
"""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from tests.support.public_api import (
    CALLED_BY_AN_EPOCH,
    OBJECTS,
    OF_A_QUERY,
    example_of,
    lines_of,
    members_of,
    mistakes_of,
    needs_example,
)

# Their methods are of something that runs.
QUERIES = {"godwit.types.Query", "godwit.types.Migration", "godwit.testing.LocalCluster"}
HERE = {name: value for name, value in OBJECTS.items() if name not in OF_A_QUERY}


@pytest.fixture(scope="module")
def lines_before() -> Any:
    """The lines that the reference asks to run before its examples."""
    return lines_of("index.md")


@pytest.mark.parametrize("name", HERE)
def test_every_example_does_as_it_says(
    name: str, lines_before: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = example_of(name, HERE[name])
    if own is None:
        assert not needs_example(HERE[name])
    else:
        assert any(not e.options.get(doctest.SKIP) for e in own.examples), "none of them runs"
    members = {} if name in QUERIES else members_of(name)
    members.pop("godwit.Flow.start", None)
    for called, value in {name: HERE[name], **members}.items():
        example = example_of(called, value)
        if example is not None:
            namespace: dict[str, Any] = {}
            exec(lines_before, namespace)  # the page's own code
            assert not (said := mistakes_of(example, namespace)), said


@pytest.mark.parametrize("name", [name for name in OBJECTS if members_of(name)])
def test_every_method_and_property_has_an_example(name: str) -> None:
    members = members_of(name)
    lacking = {called for called, value in members.items() if example_of(called, value) is None}
    assert lacking <= CALLED_BY_AN_EPOCH


def test_a_wrong_example_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert "Expected:\n    3\nGot:\n    2" in mistakes_of(wrong, {})
