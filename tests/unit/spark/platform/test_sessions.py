"""Local rows become DataFrames whatever the session's settings are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from godwit.spark.platform.pyspark_versions import arrow_schema_of, spark_schema_of
from godwit.spark.platform.sessions import dataframe_of


def test_local_rows_become_a_dataframe_also_where_arrow_batches_have_no_limit() -> None:
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "-1"}
    (limit,) = settings

    class Session:
        """As PySpark's: it fails where a batch of Arrow has no limit."""

        conf = SimpleNamespace(get=settings.get, set=settings.__setitem__)

        def createDataFrame(self, rows: Any, schema: Any) -> Any:  # noqa: N802  Spark's name
            return rows.to_batches(max_chunksize=int(settings[limit])), schema

    session: Any = Session()
    rows = pa.table({"n": [1, 2, 3]})
    frame: Any = dataframe_of(session, rows)
    assert pa.Table.from_batches(frame[0]) == rows
    assert settings == {limit: "-1"}
    settings[limit] = "2"
    frame = dataframe_of(session, rows)
    assert [batch.num_rows for batch in frame[0]] == [2, 1]
    assert settings == {limit: "2"}


def test_rows_with_a_null_struct_become_a_dataframe_if_its_fields_are_never_null() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    structs = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32())], fields=list(inner), mask=pa.array([False, True])
    )
    lists = pa.ListArray.from_arrays([0, 1, 2], structs, type=pa.list_(inner))
    maps = pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], structs)
    rows = pa.table({"struct": structs, "list": lists, "map": maps, "n": [1, 2]})

    class Session:
        """As PySpark's: it converts rows to the schema of the DataFrame."""

        conf = SimpleNamespace(get=lambda _: "10")

        def createDataFrame(self, rows: Any, schema: Any) -> Any:  # noqa: N802  Spark's name
            wanted = arrow_schema_of(schema or spark_schema_of(rows.schema), zone="UTC")
            return rows.cast(wanted)

    session: Any = Session()
    with pytest.raises(pa.ArrowInvalid):
        session.createDataFrame(rows, None)
    for schema in (None, spark_schema_of(rows.schema)):
        frame: Any = dataframe_of(session, rows, schema)
        assert frame.to_pylist() == rows.to_pylist()
