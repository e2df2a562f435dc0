"""Facts about starts from records of assignments that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import godwit as gw
from godwit.checkpoint.framing import encode_record, load_record
from godwit.checkpoint.records import CommitRecord, commit_path
from godwit.checkpoint.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path


def counted() -> gw.Flow:
    flow = gw.Flow("counted", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k string"))
    flow.sink("n", rows.key_by("k").compute(name="n", n=gw.count()), gw.sinks.noop())
    return flow


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lane_of", [0, 0, 0, "A"]),
        ("lane_of", [0, 0, 0, 10**12]),
        ("lane_of", [0, 0, 0]),
        ("lane_of", {"starts": [0], "values": [{}]}),
        ("executor_of", [0, 0, 0, float("nan")]),
        ("executor_of", [0, 0, 0, {"a": 1}]),
        ("executors", 5),
        ("executors", [[]]),
        ("lanes", ["1"]),
        ("lanes", [-1]),
        ("version", "first"),
        ("version", 2**64 - 1),
        ("num_key_groups", "many"),
    ],
)
def test_a_start_says_that_a_recorded_assignment_is_none(
    tmp_path: Path, field: str, value: Any
) -> None:
    with gw.testing.cluster(counted(), checkpoint=tmp_path) as run:
        run.epoch({"rows": [{"k": "a"}]})
    path = commit_path(0)
    record = load_record(CheckpointStorage.open(tmp_path), path, CommitRecord)
    values = record.assignments["n"]
    if field == "num_key_groups":  # it counts where intervals are recorded
        values = {**values, "lane_of": {"starts": [0], "values": [0]}}
    changed = {"n": {**values, field: value}}
    damaged = msgspec.structs.replace(record, assignments=changed)
    (tmp_path / path).write_bytes(encode_record(damaged))
    with pytest.raises(
        gw.errors.CorruptCheckpointError, match="an invalid assignment of component 'n'"
    ):
        gw.testing.cluster(counted(), checkpoint=tmp_path)
