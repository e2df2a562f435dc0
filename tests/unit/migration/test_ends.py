"""Ends are remembered for a while, and not for ever."""

from __future__ import annotations

from godwit.migration.regrouping import MAX_ENDS, forget_oldest


def test_the_oldest_are_forgotten_first() -> None:
    ends: dict[str, int] = {}
    for n in range(MAX_ENDS + 5):
        ends[str(n)] = n
        forget_oldest(ends)
    assert len(ends) == MAX_ENDS
    assert next(iter(ends)) == "5"
    assert ends[str(MAX_ENDS + 4)] == MAX_ENDS + 4
