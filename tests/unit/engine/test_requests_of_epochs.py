"""An epoch sends no more requests to an object store than the guide says, and counts each."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.counting_proxy import counted_store
from tests.support.object_store import s3_store

import godwit as gw
from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.commit_log import CommitLog
from godwit.engine import instructions
from godwit.engine.loop import EpochLoop, Stopwatch
from godwit.local import LocalRun

if TYPE_CHECKING:
    from godwit.migration.outcome import EpochOutcome

pytest.importorskip("obstore")

LANES = 4
EPOCHS = 5


def requests_of_epochs(
    rows: int, monkeypatch: pytest.MonkeyPatch, epochs: int = EPOCHS
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
        gw.testing.run(flow, {"visits": [table] * epochs}, checkpoint=through, executors=executors)
    return got, counted


def test_a_small_epoch_sends_few_requests_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    got, counted = requests_of_epochs(1_000, monkeypatch)
    assert len(got) == len(counted) == EPOCHS
    # The first epoch also reads what the start has written.
    for requests in got[1:]:
        assert len(requests) <= 6, requests
    assert [Counter(kind for kind, _ in requests) for requests in got] == counted


def test_a_large_epoch_sends_few_requests_also_with_snapshots_or_a_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = partial(choose_snapshots, min_changelog_bytes=1)
    monkeypatch.setattr(instructions, "choose_snapshots", chosen)
    interval = property(lambda _log: 4, lambda _log, _value: None)
    monkeypatch.setattr(CommitLog, "manifest_interval", interval, raising=False)
    got, counted = requests_of_epochs(40_000, monkeypatch, epochs=10)
    with_snapshots, manifests = set(), 0
    for requests in got[1:]:
        assert len(requests) <= 4 * LANES, requests
        files = {path for _, path in requests if "-snapshots-" in path}
        with_snapshots |= {path.split("-")[3] for path in files}
        manifest = any("/manifests/" in path for _, path in requests)
        assert not (files and manifest)
        manifests += manifest
    assert with_snapshots == {str(lane) for lane in range(LANES)}
    assert manifests == 2
    assert [Counter(kind for kind, _ in requests) for requests in got] == counted
