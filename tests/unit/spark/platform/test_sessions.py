"""Local rows become DataFrames whatever the session's settings are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

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
