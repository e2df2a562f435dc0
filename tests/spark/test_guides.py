"""Every Python block of the guides and the README runs, and what it builds gives results."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.guides import FLIGHTS, PAGES, PREPARED, blocks_of, prepare_inputs, text_of

import godwit as gw
from godwit.plan.nodes import SourceNode, branches_of
from godwit.spark.batch_rows import quick_local_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

NOT_RUN = {
    "components": 3,
    "demo": 1,
    "metrics": 1,
    "running": 2,
    "scaling": 2,
    "sinks": 2,
    "sources": 2,
}


def run_to_its_end(flow: gw.Flow, namespace: dict[str, Any]) -> dict[str, gw.sinks.MemorySink]:
    """Send every stream of a page to a sink that keeps it, and run the flow over all input."""
    kept = {}
    for name, value in namespace.items():
        if not isinstance(value, gw.types.Stream) or value.flow is not flow:
            continue
        if not any(isinstance(branch.feed, SourceNode) for branch in branches_of(value.node)):
            kept[name] = gw.sinks.memory()
            flow.sink(f"kept_{name}", value, kept[name])
    flow.start(
        checkpoint=f"end-{flow.name}",
        trigger={"availableNow": True},
        close_at_end=True,
        name="to its end",
    ).awaitTermination()
    return kept


@contextmanager
def spark_in(directory: Path, spark: SparkSession) -> Iterator[None]:
    """Let Spark take relative paths from a directory, as if it had been started there."""
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(directory.as_uri()))
    try:
        # Spark's default for checkpoints of its own queries takes them from the JVM's directory.
        with quick_local_logs(spark, directory.as_uri()):
            yield
    finally:
        files.setWorkingDirectory(before)


# run by tests/unit/test_testing_guide.py and tests/unit/sources/test_guide.py
WITHOUT_SPARK = (
    *("async", "batches", "broadcast", "changes", "feedback", "sources", "stateful-processors"),
    *("testing", "typed-rows"),
)


@pytest.mark.spark
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page) and page not in WITHOUT_SPARK]
)
def test_every_block_of_a_page_runs_and_its_streams_have_rows(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spark_in(tmp_path, spark):
        run_page(page, spark, tmp_path, monkeypatch)


def run_page(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_inputs(tmp_path)
    # A query without a trigger runs until someone stops it, which a page's reader does by hand.
    monkeypatch.setattr(
        gw.types.Query,
        "awaitTermination",
        lambda query, *_: (query.processAllAvailable(), query.stop()),
    )
    # What the README begins with is pasted into an empty file.
    given = {} if page == "README" else {"gw": gw, "spark": spark}
    namespace: dict[str, Any] = {"__name__": "__main__", **given}
    namespace |= PREPARED[page](spark) if page in PREPARED else {}
    queries: list[gw.types.Query] = []
    for block in blocks_of(page):
        # A later block may give the name of a query to another one.
        queries += [value for value in namespace.values() if isinstance(value, gw.types.Query)]
        if not block.reason:
            exec(compile(block.code, PAGES[page].name, "exec"), namespace)  # the page's own code
    queries += [value for value in namespace.values() if isinstance(value, gw.types.Query)]
    for query in queries:
        query.stop()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # A flow that the page itself started has written its targets, which belong to that query.
    for value in [] if queries or page in PREPARED else list(namespace.values()):
        if isinstance(value, gw.Flow) and value.operators:
            for name, sink in run_to_its_end(value, namespace).items():
                assert sink.table().num_rows, f"nothing came out of {name!r}"


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    reasons = {page: [b.reason for b in blocks_of(page) if b.reason] for page in PAGES}
    assert {page: len(found) for page, found in reasons.items() if found} == NOT_RUN


@pytest.mark.spark
def test_the_error_that_the_guide_shows_is_the_one_there_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = gw.Flow("delays")
    (tmp_path / "in").mkdir()
    rows = spark.readStream.schema(FLIGHTS).parquet(str(tmp_path / "in"))
    wrong = flow.source("flights", rows).key_by("tailnumber").compute(total=gw.sum("arr_delay"))
    flow.sink("out", wrong, gw.sinks.noop())
    with pytest.raises(gw.errors.InvalidFlowError) as caught:
        flow.explain()
    assert " ".join(str(caught.value).split()) in " ".join(text_of("flows").split())
