"""An epoch sends no more requests to an object store than the guide says, and counts each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.counting_proxy import counted_store
from tests.support.object_store import s3_store

import godwit as gw
from godwit.engine.loop import EpochLoop, Stopwatch
from godwit.local.run import LocalRun

if TYPE_CHECKING:
    from godwit.migration.outcome import EpochOutcome

pytest.importorskip("obstore")

LANES = 4
EPOCHS = 5


def requests_of_epochs(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[tuple[str, str]]], list[Counter[str]]]:
    """Run a flow; return the requests that the store got in each epoch, and those counted."""
    counted: list[Counter[str]] = []
    got: list[list[tuple[str, str]]] = []

    def delivered(
        _run: LocalRun, outcome: EpochOutcome, watch: Stopwatch, _latencies: object
    ) -> None:
        counted.append(Counter(watch.requests.taken()) + Counter(outcome.lane_requests))

    def at_step(_loop: EpochLoop[Any], step: str, _epoch: int) -> None:
        if step == "planned":
            proxy.taken()
        elif step == "delivered":
            got.append([r for r in proxy.taken() if "/leases/" not in r[1]])

    monkeypatch.setattr(LocalRun, "delivered", delivered)
    monkeypatch.setattr(EpochLoop, "at_step", at_step)
    flow = gw.Flow("visits")
    visits = flow.source("visits", gw.testing.stream("page long, n long"))
    flow.sink("n", visits.key_by("page").compute(name="n", n=gw.sum("n")), gw.sinks.noop())
    table = pa.table({"page": range(rows), "n": range(rows)})
    with s3_store() as uri, counted_store(uri) as (through, proxy):
        executors = {"a": LANES // 2, "b": LANES // 2}
        gw.testing.run(flow, {"visits": [table] * EPOCHS}, checkpoint=through, executors=executors)
    return got, counted


@pytest.mark.parametrize(("rows", "most"), [(1_000, 6), (40_000, 4 * LANES)])
def test_an_epoch_sends_few_requests_and_counts_them(
    rows: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, counted = requests_of_epochs(rows, monkeypatch)
    assert len(got) == len(counted) == EPOCHS
    # The first epoch also reads what the start has written.
    for requests in got[1:]:
        snapshots = sum("-snapshots-" in path for _, path in requests)
        assert len(requests) - snapshots <= most, requests
    assert [Counter(kind for kind, _ in requests) for requests in got] == counted
