"""Panes or states per window: windows that overlap go the way that takes less CPU time.

After every period of the longest window both ways are priced at what lanes measured
(`godwit.engine.sharing`), and the other one is proposed if it is cheaper by enough
(`godwit.planning.windows`).

Source: paper 3 §5.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.adapt.policy import Hysteresis, Proposal
from godwit.planning.windows import is_duplicated_cheaper

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.adapt.policy import FlowEpoch
    from godwit.engine.sharing import PaneMeter

__all__ = ["ChooseWindowState", "SharePanes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseWindowState:
    """The change that lets windows share panes, or gives them states of their own."""

    operator: str
    duplicated: bool


class SharePanes:
    """Prices both ways of every operator that may go either."""

    def __init__(self, meters: Mapping[str, PaneMeter]) -> None:  # operator → what its windows cost
        self._meters = meters
        self._hysteresis = Hysteresis()
        self._standing: dict[str, Proposal] = {}

    def observe(self, epoch: FlowEpoch) -> None:  # noqa: ARG002  the meters are told by the engine
        """See `godwit.adapt.policy.AdaptationPolicy`: evaluates after every period."""
        for name, meter in self._meters.items():
            if not meter.is_over:
                continue
            self._standing.pop(name, None)
            counts, costs, before = meter.counts, meter.costs, meter.duplicated
            meter.begin()
            duplicated = is_duplicated_cheaper(counts, costs, duplicated=before)
            change = ChooseWindowState(operator=name, duplicated=duplicated)
            if not self._hysteresis.confirms(name, change if duplicated != before else None):
                continue
            ms = {
                "shared_ms": counts.shared_ms(costs),
                "duplicated_ms": counts.duplicated_ms(costs),
            }
            self._standing[name] = Proposal(
                subject=f"windows of {name}",
                change=change,
                reason=f"{ms['shared_ms']:.1f} ms of CPU with shared panes and "
                f"{ms['duplicated_ms']:.1f} ms without",
                gain=abs(ms["shared_ms"] - ms["duplicated_ms"]),
                numbers=ms,
            )

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """See `godwit.adapt.policy.AdaptationPolicy`."""
        yield from tuple(self._standing.values())

    def answered(self, proposal: Proposal) -> None:
        """See `godwit.adapt.policy.AdaptationPolicy`."""
        self._standing.pop(proposal.change.operator, None)
        self._hysteresis.forget(proposal.change.operator)
