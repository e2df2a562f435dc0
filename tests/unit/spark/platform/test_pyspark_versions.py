"""What a version of PySpark does not do itself comes out as the others do it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from godwit.spark.platform import pyspark_versions
from godwit.spark.platform.pyspark_versions import (
    all_from_socket,
    arrow_schema_of,
    in_zone,
    spark_schema_of,
    spark_type_of,
)

INSTANT = st.TimestampType()
COLUMNS = st.StructType(
    [
        st.StructField("plain", st.StringType(), nullable=False),
        st.StructField("at", INSTANT),
        st.StructField("local", st.TimestampNTZType()),
        st.StructField("all", st.ArrayType(INSTANT, containsNull=False)),
        st.StructField("named", st.MapType(st.StringType(), st.ArrayType(INSTANT))),
        st.StructField("one", st.StructType([st.StructField("at", INSTANT, nullable=False)])),
    ]
)


def test_instants_within_a_type_get_the_zone_of_the_session_as_the_jvm_sends_them() -> None:
    expected = arrow_schema_of(COLUMNS, zone="Europe/Berlin")
    utc = arrow_schema_of(COLUMNS, zone="UTC")
    assert utc != expected
    moved = pa.schema([f.with_type(in_zone(f.type, "Europe/Berlin")) for f in utc])
    assert moved.equals(expected, check_metadata=False)
    large = pa.large_list(pa.timestamp("us", "UTC"))
    assert in_zone(large, "Asia/Tokyo") == pa.large_list(pa.timestamp("us", "Asia/Tokyo"))


def test_times_without_a_zone_stay_such() -> None:
    assert spark_type_of(pa.timestamp("us")) == st.TimestampNTZType()
    schema = pa.schema({"at": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC")})
    assert spark_schema_of(schema).fields[0].dataType == st.TimestampNTZType()
    assert spark_schema_of(schema).fields[1].dataType == st.TimestampType()


@pytest.mark.parametrize("as_context", [True, False])
def test_items_arrive_from_a_context_and_from_a_plain_iterator(
    as_context: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened:
        closed = False

        def __enter__(self) -> Any:
            return iter([b"a", b"b"])

        def __exit__(self, *_: object) -> None:
            Opened.closed = True

    arrived = Opened() if as_context else iter([b"a", b"b"])
    monkeypatch.setattr(pyspark_versions, "_load_from_socket", lambda *_: arrived)
    serializer: Any = None
    assert all_from_socket((1, "secret"), serializer) == [b"a", b"b"]
    assert Opened.closed is as_context
