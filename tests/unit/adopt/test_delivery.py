"""Functions of ``foreachBatch`` are called once for a batch, also over restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from godwit.adopt.delivery import DeliveredResult
from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import UserFunctionError
from godwit.sinks.sink import SinkContext

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.sinks.sink import EpochOutput


def _output(epoch: int, digest: str = "a") -> EpochOutput:
    """The output of an epoch, whose rows are its number."""
    point = HistoryPoint(query_id="q", history="h", epoch=epoch, digest=digest)
    output: Any = SimpleNamespace(epoch=epoch, point=point, dataframe=lambda: epoch)
    return cast("EpochOutput", output)


def _start(function: Any, checkpoint: Path) -> DeliveredResult:
    """Return the open sink of a new run."""
    sink = DeliveredResult(function, None, checkpoint=str(checkpoint))
    context = SinkContext(
        name="output",
        writer="output",
        flow="adopted",
        query_id="q",
        schema=pa.schema([]),
        keys=(),
        unique_keys=(),
        mapped=False,
        complete=False,
        views=cast("Any", None),
    )
    sink.open(context)
    return sink


def test_a_restart_calls_the_function_again_only_for_a_batch_that_it_did_not_finish(
    tmp_path: Path,
) -> None:
    calls: list[int] = []

    def note(rows: Any, batch: int) -> None:
        """Remember the call; fail for the first one of batch 2."""
        calls.append(batch)
        if calls.count(2) == 1 and batch == 2:
            raise ValueError

    first = _start(note, tmp_path)
    first.deliver(_output(1))
    second = _start(note, tmp_path)
    second.deliver(_output(1))
    with pytest.raises(UserFunctionError):
        second.deliver(_output(2))
    third = _start(note, tmp_path)
    third.deliver(_output(2))
    third.deliver(_output(2, digest="of a backup's other history"))
    assert calls == [1, 2, 2, 2]
