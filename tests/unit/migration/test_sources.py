"""Sources of copies: the executors that hold one, and past delivery rates."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.migration import CopiesFrom
from godwit.migration.copies import Copies
from godwit.migration.messages import PeerCopies, StartWarming
from godwit.migration.sources import Delivery, Sources
from godwit.model.assignment import Assignment

MB = 2**20
ORDER = StartWarming(component="sum", executor="c", key_groups=(0, 1, 2, 3), attempt="r/1")
OWNERS = Assignment(
    version=1,
    executors=("a", "b", "c"),
    lanes=(1, 1, 1),
    executor_of=np.array([0, 0, 1, 1], np.int32),
    lane_of=np.zeros(4, np.int32),
)
FROM_BOTH = (
    PeerCopies(executor="a", key_groups=(0, 1)),
    PeerCopies(executor="b", key_groups=(2, 3)),
)


def held(**more: dict[int, int]) -> Copies:
    copies = Copies()
    copies.record_reach("sum", "a", {0: 7, 1: 7})
    copies.record_reach("sum", "b", {2: 7, 3: 7})
    for executor, epochs in more.items():
        copies.record_reach("sum", executor, epochs)
    return copies


def choose(sources: Sources, copies: Copies | None = None, size: int = MB) -> StartWarming:
    return sources.choose(
        ORDER,
        copies=held() if copies is None else copies,
        assignment=OWNERS,
        state_bytes=dict.fromkeys(range(4), size),
    )


def deliver(sources: Sources, source: str | None, seconds: float, failure: str = "") -> None:
    delivery = Delivery(
        source=source, key_groups=(0, 1, 2, 3), duration_ms=1e3 * seconds, failure=failure
    )
    sources.record([delivery], dict.fromkeys(range(4), MB))


def test_owners_send_and_where_the_owner_has_none_whoever_is_furthest() -> None:
    sources = Sources(CopiesFrom.PEERS)
    assert choose(sources).peers == FROM_BOTH
    copies = held(b={0: 9, 2: 7, 3: 7})
    assert choose(sources, copies).peers == FROM_BOTH
    copies.forget_copies("sum", "a", [0, 1])
    copies.record_reach("sum", "d", {0: 3, 1: 3})
    assert choose(sources, copies).peers == (
        PeerCopies(executor="b", key_groups=(0, 2, 3)),
        PeerCopies(executor="d", key_groups=(1,)),
    )


def test_a_copy_that_has_only_fallen_behind_is_brought_forward_from_the_checkpoint() -> None:
    order = choose(Sources(CopiesFrom.PEERS), held(c={0: 5, 2: 5}))
    assert order.peers == (
        PeerCopies(executor="a", key_groups=(1,)),
        PeerCopies(executor="b", key_groups=(3,)),
    )


def test_where_nobody_holds_a_copy_there_is_nothing_to_choose() -> None:
    assert choose(Sources(CopiesFrom.PEERS), Copies()) == ORDER


def test_the_checkpoint_is_read_where_that_was_decided_and_where_there_is_little() -> None:
    assert choose(Sources(CopiesFrom.CHECKPOINT)) == ORDER
    sources = Sources()
    deliver(sources, None, 1.0)
    assert choose(sources, size=1000) == ORDER


def test_each_way_is_measured_once_and_then_the_quicker_one_is_taken() -> None:
    sources = Sources()
    order = choose(sources)
    assert (order.peers, order.why) == ((), "measured first")
    deliver(sources, None, 2.0)
    order = choose(sources)
    assert order.peers == FROM_BOTH
    assert order.why == "to be measured, the checkpoint gives 2.0 MiB/s"
    deliver(sources, "a", 1.0)
    order = choose(sources)
    assert order.peers == FROM_BOTH
    assert order.why == "peers give 4.0 MiB/s, the checkpoint 2.0 MiB/s"
    deliver(sources, "a", 9.0)
    order = choose(sources)
    assert not order.peers
    assert order.why == "peers give 717.9 KiB/s, the checkpoint 2.0 MiB/s"


def test_a_failure_counts_as_time_in_which_nothing_came() -> None:
    sources = Sources()
    deliver(sources, None, 2.0)
    deliver(sources, "a", 1.0)
    deliver(sources, "a", 3.0, failure="no room")
    assert not choose(sources).peers


def test_the_slower_way_is_tried_again_in_the_end_and_may_have_become_the_quicker() -> None:
    sources = Sources()
    deliver(sources, None, 1.0)
    deliver(sources, "a", 4.0)
    chosen = [bool(choose(sources).peers) for _ in range(17)]
    assert chosen == [False] * 16 + [True]
    deliver(sources, "a", 0.1)
    deliver(sources, "a", 0.1)
    assert choose(sources).peers


@pytest.mark.parametrize("size", [0, 1000])
def test_what_is_small_measures_nothing(size: int) -> None:
    sources = Sources()
    sources.record(
        [Delivery(source=None, key_groups=(0,), duration_ms=1.0)], dict.fromkeys(range(4), size)
    )
    assert choose(sources).why == "measured first"


def test_what_would_be_chosen_can_be_asked_and_changes_nothing() -> None:
    sources = Sources()
    deliver(sources, None, 1.0)
    deliver(sources, "a", 4.0)
    for _ in range(40):
        routes = sources.foresee(
            "sum",
            dict.fromkeys(range(4), "c"),
            copies=held(),
            assignment=OWNERS,
            state_bytes=dict.fromkeys(range(4), MB),
        )
        assert [(r.source, r.key_groups, r.bytes_per_s) for r in routes] == [
            (None, (0, 1, 2, 3), 4.0 * MB)
        ]
    chosen = [bool(choose(sources).peers) for _ in range(17)]
    assert chosen == [False] * 16 + [True]


def test_each_destination_s_copies_are_foreseen_with_who_sends_them_and_what_is_there() -> None:
    routes = Sources(CopiesFrom.PEERS).foresee(
        "sum",
        {0: "c", 2: "c", 3: "a", 1: "d"},
        copies=held(c={2: 5}),
        assignment=OWNERS,
        state_bytes={0: 10, 1: 20, 2: 30, 3: 40},
    )
    told = {(r.destination, r.source): (r.key_groups, r.size_bytes, r.why) for r in routes}
    assert told == {
        ("a", "b"): ((3,), 40, "by setting"),
        ("c", "a"): ((0,), 10, "by setting"),
        ("c", "c"): ((2,), 0, ""),
        ("d", "a"): ((1,), 20, "by setting"),
    }
