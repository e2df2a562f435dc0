"""One destination for a path however it is written, and whoever's credentials it has."""

from __future__ import annotations

import pytest

from godwit.sinks.file_systems import destination_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://KEY:old@bucket/out", "s3://OTHER:new/er@bucket/out"),
        ("s3://KEY:old@bucket/out", "s3://bucket/out"),
        ("s3://***@bucket/out?region=eu&secret_key=***", "s3a://bucket/out/"),
        ("s3n://bucket/out", "s3://bucket/out?access_key=x&secret_key=y&region=eu"),
        ("gcs://bucket/out", "gs://anonymous@bucket/out"),
        ("abfs://:old@account/container/out", "abfs://:new@account/container/out"),
        (
            "abfss://c:old@account.dfs.core.windows.net/out",
            "abfs://c@account.dfs.core.windows.net/out",
        ),
        ("abfs://:old@account/container/out", "abfs://account/container/out"),
        ("hdfs://me@name:8020/out", "hdfs://you@name:8020/out"),
        ("file:///tmp/out", "/tmp/out"),
    ],
)
def test_one_place_is_one_destination(one: str, other: str) -> None:
    assert destination_of(one) == destination_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/out", "s3://bucket/other"),
        ("s3://bucket/out", "gs://bucket/out"),
        (
            "s3://bucket/out?endpoint_override=one:9000",
            "s3://bucket/out?endpoint_override=two:9000",
        ),
        ("abfss://c1@a.dfs.core.windows.net/out", "abfss://c2@a.dfs.core.windows.net/out"),
        ("hdfs://one/out", "hdfs://two/out"),
    ],
)
def test_two_places_are_two_destinations(one: str, other: str) -> None:
    assert destination_of(one) != destination_of(other)


def test_a_destination_names_no_credentials() -> None:
    for uri in (
        "s3://KEY:se/cr@et@bucket/out?session_token=secret",
        "abfss://c:se/cret==@account.dfs.core.windows.net/out",
        "abfs://:se@cret@account/container/out",
    ):
        shown = destination_of(uri)
        assert not any(part in shown for part in ("KEY", "se/c", "@et", "secret", "cret", "se@"))
