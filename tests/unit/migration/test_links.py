"""Peer transfers begin when their links are free, on the busiest link first."""

from __future__ import annotations

from godwit.migration.messages import PeerCopies, StartWarming
from godwit.migration.sources import PeerLinks


def order(executor: str, attempt: str = "", **peers: tuple[int, ...]) -> StartWarming:
    return StartWarming(
        component="sum",
        executor=executor,
        key_groups=tuple(sorted(g for held in peers.values() for g in held)),
        attempt=attempt or executor,
        peers=tuple(PeerCopies(executor=name, key_groups=held) for name, held in peers.items()),
    )


SIZES = dict.fromkeys(range(100), 10)
OVER = PeerCopies(executor="", key_groups=())


def test_nobody_sends_two_and_every_key_group_is_sent_once() -> None:
    links = PeerLinks()
    to_c, to_d = order("c", a=(0, 1), b=(2,)), order("d", a=(3,), b=(4, 5))
    for each in (to_c, to_d):
        links.add(each, SIZES)
    first, second = links.begin(to_c), links.begin(to_d)
    assert first is not None
    assert second is not None
    assert {first.executor, second.executor} == {"a", "b"}
    sent = [*first.key_groups, *second.key_groups]
    for _ in range(4):
        for each in (to_c, to_d):
            links.ended(each)
            begun = links.begin(each)
            sent += begun.key_groups if begun is not None else ()
    assert sorted(sent) == [0, 1, 2, 3, 4, 5]
    links.ended(to_c)
    assert links.begin(to_c) == OVER


def test_a_receiver_waits_while_all_that_could_send_are_sending() -> None:
    links = PeerLinks()
    to_b, to_c = order("b", a=(0,)), order("c", a=(1,))
    for each in (to_b, to_c):
        links.add(each, SIZES)
    assert links.begin(to_b) == PeerCopies(executor="a", key_groups=(0,))
    assert links.begin(to_c) is None
    links.ended(to_b)
    assert links.begin(to_c) == PeerCopies(executor="a", key_groups=(1,))


def test_the_busiest_link_is_never_left_for_another() -> None:
    links = PeerLinks()
    to_c, to_d = order("c", a=(0,), b=(1,)), order("d", a=(2, 3, 4, 5))
    for each in (to_c, to_d):
        links.add(each, SIZES)
    assert links.begin(to_c) == PeerCopies(executor="b", key_groups=(1,))
    begun = links.begin(to_d)
    assert begun is not None
    assert begun.executor == "a"


def test_what_is_left_of_an_order_that_ended_is_forgotten() -> None:
    links = PeerLinks()
    to_b, to_c = order("b", a=(0, 1)), order("c", a=(2,))
    for each in (to_b, to_c):
        links.add(each, SIZES)
    assert links.begin(to_b) is not None
    links.forget(to_b)
    assert links.begin(to_b) == OVER
    assert links.begin(to_c) == PeerCopies(executor="a", key_groups=(2,))


def test_an_order_without_peers_has_nothing_to_wait_for() -> None:
    assert PeerLinks().begin(order("b")) == OVER
