"""An epoch's outcome says once what its lanes reported, by component."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from godwit.engine.lane.messages import LaneReport, PassedOn
from godwit.engine.outcomes import traffic_to
from godwit.model.key_groups import KeyGroupPairs

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow


def flow() -> CompiledFlow:
    operator: Any = SimpleNamespace(name="sizes")
    component: Any = SimpleNamespace(name="by_size", operators=[operator])
    upstream: Any = SimpleNamespace(name="all", operators=[SimpleNamespace(name="totals")])
    return cast("CompiledFlow", SimpleNamespace(components=[upstream, component], num_key_groups=4))


def report(executor: str, *sent: PassedOn) -> LaneReport:
    return LaneReport(level=1, place=0, executor=executor, passed_on=list(sent))


def test_traffic_is_what_all_senders_sent_to_each_key_group() -> None:
    sent = [
        PassedOn(
            sender="totals",
            operator="sizes",
            rows=0,
            size_bytes=0,
            exchanged=True,
            sent=np.array([[0, 3], [2, 1], [10, 5]], float),
            crossed_bytes=5,
            pairs=KeyGroupPairs.counted(np.array([1, 1, 2]), np.array([0, 0, 3])),
        ),
        PassedOn(
            sender="totals",
            operator="sizes",
            rows=0,
            size_bytes=0,
            exchanged=True,
            sent=np.array([[3], [4], [20.4]]),
            crossed_bytes=20,
            pairs=KeyGroupPairs.counted(np.array([0]), np.array([3]), 4.0),
        ),
    ]
    found = traffic_to(flow(), [report("a", sent[0]), report("b", sent[1]), report("b")])
    assert list(found) == ["by_size"]
    to = found["by_size"]
    assert (to.key_groups, to.rows) == ((0, 3), (2, 5))
    assert (to.size_bytes, to.crossed_bytes) == ((10, 25), 25)
    pairs = to.pairs["all"]
    assert (pairs.source.tolist(), pairs.target.tolist()) == ([0, 1, 2], [3, 0, 3])
    assert pairs.rows.tolist() == [4.0, 2.0, 1.0]


def test_without_operators_downstream_there_is_no_traffic() -> None:
    assert traffic_to(flow(), [report("a")]) == {}
