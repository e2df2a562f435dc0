"""Operators that have something to do at moments, whether rows come or not: timers, expiries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.operators.operator import KeyedOperator

if TYPE_CHECKING:
    from godwit.operators.windows.moments import Due, OperatorTime

__all__ = ["DueOperator"]


class DueOperator(KeyedOperator):
    """An operator that is told when the earliest of its moments have come."""

    @property
    def has_moments(self) -> bool:
        """Whether it keeps any moments at all."""
        return True

    def is_due(self, due: Due, told: OperatorTime) -> bool:
        """Whether the earliest of its timers and expiries are due in an epoch."""
        return due.event <= told.until or due.clock <= told.clock
