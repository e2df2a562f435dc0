"""The builder of adopted queries: Spark's names, and mistakes that it reports at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.adopt.targets import Target
from godwit.adopt.writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable


class _Frame:
    """A stand-in for a streaming DataFrame, as far as the builder looks at one."""

    _jdf = None
    isStreaming = True  # noqa: N815  Spark's name
    sparkSession = SimpleNamespace(  # noqa: N815  Spark's name
        conf=SimpleNamespace(get=lambda _key, default=None: default),
        catalog=SimpleNamespace(currentCatalog=lambda: "spark_catalog"),
        sparkContext=SimpleNamespace(master="local[2]"),
    )


def _writer() -> Any:
    frame: Any = _Frame()
    return gw.write_stream(frame)


def test_the_writer_has_the_names_of_sparks_writer() -> None:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    theirs = {name for name in dir(DataStreamWriter) if not name.startswith("_")}
    ours = {name for name in dir(StreamWriter) if not name.startswith("_")}
    assert theirs <= ours
    assert ours - theirs == {"control", "from_spark_checkpoint", "own_sources", "settings"}


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        (lambda w: w.format("jbdc"), "The format 'jbdc' is not supported", "foreachBatch"),
        (lambda w: w.format("jdbc"), "is not supported", "'postgres'"),
        (lambda w: w.outputMode("upsert"), "The output mode 'upsert' is unknown", "'append'"),
        (lambda w: w.trigger(continuous="1 second"), "is not supported", "processingTime"),
        (lambda w: w.trigger(realTime="1 second"), "is not supported", "processingTime"),
        (lambda w: w.trigger(), "0 triggers are given", "once=True"),
        (lambda w: w.trigger(availableNow=False), "availableNow=False", "availableNow=True"),
        (lambda w: w.trigger(once=True, availableNow=True), "2 triggers", "once=True"),
        (lambda w: w.queryName(" "), "is not a string", "Give a name"),
        (lambda w: w.settings(executor=2), "no setting 'executor'", "'executors'"),
        (lambda w: w.foreach(3), "ATTRIBUTE_NOT_CALLABLE", "a function of a row"),
        (lambda w: w.clusterBy("k"), "Godwit's sinks cannot cluster a table by 'k'", "partitionBy"),
        (lambda w: w.clustersBy("k"), "has no 'clustersBy'", "clusterBy"),
        (lambda w: w.start("out/"), "no checkpointLocation", "checkpointLocation"),
        (lambda w: w.format("delta").toTable("t"), "Spark's catalog", "iceberg"),
    ],
)
def test_a_setting_that_is_not_known_is_refused_by_name(
    call: Callable[[Any], object], message: str, remedy: str
) -> None:
    with pytest.raises(gw.errors.UnsupportedQueryError) as caught:
        call(_writer())
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_a_dataframe_that_is_not_streaming_is_refused() -> None:
    frame: Any = _Frame()
    frame.isStreaming = False
    with pytest.raises(gw.errors.UnsupportedQueryError, match="not streaming"):
        gw.write_stream(frame)


def test_a_dataframe_of_spark_connect_is_refused() -> None:
    class Remote:
        isStreaming = True  # noqa: N815

    frame: Any = Remote()
    with pytest.raises(gw.errors.UnsupportedQueryError, match="Connect"):
        gw.write_stream(frame)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (
            Target(format="noop", mode="append", options={"path": "x"}),
            (),
            "does not support the option 'path'",
        ),
        (Target(format="noop", mode="append", partition_by=("k",)), (), "cannot partition by"),
        (Target(format="parquet", mode="update"), ("path",), "output mode 'update'"),
    ],
)
def test_an_option_that_a_sink_does_not_have_is_refused_by_name(
    target: Target, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(gw.errors.UnsupportedQueryError, match=message):
        target.check(options, modes=("append",))
