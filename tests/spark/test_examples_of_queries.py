"""The examples of a query's methods do as they say, one after the other on one query."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.public_api import OBJECTS, OF_A_QUERY, example_of, lines_of, mistakes_of
from tests.support.public_api import members_of as members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# They need a cluster that gives executors, or find a migration that has not ended.
NOT_HERE = (
    *("scale", "Scaling", "Scaling.done", "Scaling.stage", "Scaling.wait", "Scaling.cancel"),
    *("Migration.cancel", "PendingRegrouping.cancel"),
)
# A key must have been divided to be gathered; an executor that is drained takes nothing any more,
# and a query that has stopped does nothing.
LAST = ("QueryHotKeys.gather", "Query.drain", "Query.stop")


def examples() -> Iterator[doctest.DocTest]:
    """Yield the examples of all that belongs to a query, those that end something last."""
    found = {"Flow.start": example_of("Flow.start", OBJECTS["godwit.Flow"].start)}
    for name in ("godwit.types.Query", "godwit.types.Migration", *OF_A_QUERY):
        own = {name: OBJECTS[name]} if name in OF_A_QUERY else {}
        for called, value in (own | members(name)).items():
            short = called.removeprefix(name.rpartition(".")[0]).lstrip(".")
            found[short] = example_of(called, value)
    for name in sorted(found, key=lambda name: LAST.index(name) if name in LAST else -1):
        example = found[name]
        assert example is not None, name
        yield example


def test_examples_of_a_query_do_as_they_say(
    spark: SparkSession, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(lines_of("queries.md"), namespace)  # the page's own code
    query = namespace["query"]
    try:
        ran = 0
        for example in examples():
            skipped = [one for one in example.examples if one.options.get(doctest.SKIP)]
            assert not skipped or example.name.endswith(NOT_HERE), example.name
            ran += len(example.examples) - len(skipped)
            assert not (said := mistakes_of(example, namespace)), said
        assert ran > 50
    finally:
        query.stop()
