"""Deciding whether windows are consolidated where they are computed, or apart, by what that costs.

Problem: in two components (*split*) key groups of windows migrate without their state, and all that
windows are made of crosses an exchange; in one (*combined*) it is the other way about.  Which costs
less depends on how often key groups migrate, and that is known only while the stream runs.

After every period, by default the longest window, the two forms are priced at what was measured
(`godwit.planning.components.splitting`), and the cheaper one is wanted whose migrations take no
longer than the user allows.  Of several aggregates the most beneficial change comes first.

Invariants: what a user has put together or apart is left alone; a change stands only when several
periods in a row agree, so that a steady stream is decided upon once; results do not depend on the
form, and a change of it holds for the same windows in all lanes, since it happens between two
epochs.  One of the deciders of `godwit.adapt.deciding`.

Source: Madsen et al. (Enorm) §5.1.1 and §5.1.2; modification punctuations, §6.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from godwit.adapt.deciding import Verdict, Wanted, insist_on_epochs
from godwit.adapt.form_meter import FormMeter, Metered
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import listing
from godwit.model.time_lengths import Duration, microseconds
from godwit.operators.windows.in_two import ConsolidatePart
from godwit.plan.grouping import rows_stay
from godwit.plan.regrouping import regrouped
from godwit.planning.components.splitting import choose_form, most_beneficial

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from godwit.adapt.deciding import EpochSeen
    from godwit.adapt.form_meter import ExchangeCosts
    from godwit.checkpoint.physical_plan import PhysicalPlan
    from godwit.plan.compiled import CompiledFlow
    from godwit.planning.components.splitting import Choice, Form

__all__ = ["SplitOrCombine", "Splitting", "form_of", "in_form", "splitting_of"]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How it is decided where windows with ``consolidate="measured"`` are consolidated.

    Attributes
    ----------
    max_latency
        How long the migrations of one period may take, all together, such as ``"500
        milliseconds"``; ``None``: as long as they like, and CPU time alone decides.
    period
        Event time that a decision looks back on; ``None``: the longest window of each aggregate. A
        shorter one may see no window close, or more than there are on average.
    epochs
        Epochs with input that it looks back on at least.
    confirm
        Decisions in a row that must agree before anything happens.
    payback_epochs
        Epochs within which the CPU time that is saved must come to that of moving the state that
        has to come together for it.

    Raises
    ------
    InvalidFlowError
        If a setting makes no sense.
    """

    max_latency: Duration | None = None
    period: Duration | None = None
    epochs: int = 16
    confirm: int = 2
    payback_epochs: int = 500

    def __post_init__(self) -> None:
        for name, least in (("max_latency", 0), ("period", 1)):
            value = getattr(self, name)
            if value is not None:
                microseconds(value, f"The setting {name} of gw.Splitting", least=least)
        insist_on_epochs(self)

    @property
    def max_latency_ms(self) -> float:
        """The bound in milliseconds; infinite if there is none."""
        if self.max_latency is None:
            return math.inf
        return microseconds(self.max_latency, "The bound", least=0) / 1e3

    @property
    def period_us(self) -> int | None:
        """The period in microseconds of event time."""
        return None if self.period is None else microseconds(self.period, "The period", least=1)


def splitting_of(flow: CompiledFlow, given: Splitting | None) -> Splitting | None:
    """Give the settings by which a flow's windows are split and combined; ``None``: none are.

    Raises `InvalidFlowError` if settings were given and there is nothing to decide.
    """
    if _measured(flow):
        return given or Splitting()
    if given is None:
        return None
    roles = [operator.two_phase for operator in flow.operators]
    apart = [role.first for role in roles if role is not None and role.slot == 0]
    beside = f" ({listing(apart)}: consolidate='apart', which is left so)" if apart else ""
    raise InvalidFlowError(
        f"The option splitting of start has nothing to decide: flow {flow.name!r} has no windows "
        f"with consolidate='measured'{beside}.",
        remedy='Say which, as in window(gw.hopping("6 hours", every="1 hour"), '
        'consolidate="measured"), or leave splitting= out.',
        flow=flow.name,
    )


def form_of(flow: CompiledFlow, part: ConsolidatePart) -> Form | None:
    """Say in which form windows are consolidated; ``None``: in none that is decided upon here.

    Operators that rows stay in a lane with, behind the consolidate part, may be beside it.
    """
    homes = [flow.component_of(name) for name in (*part.slots, part.name)]
    held, streams = {part.name}, rows_stay(flow)
    there = {operator.name for operator in homes[2].operators}
    while grown := {s.operator for s in streams if s.upstream in held} & there - held:
        held |= grown
    if homes[0] is homes[1] is homes[2]:
        return "combined" if there == held | set(part.slots) else None
    alone = all(len(home.operators) == 1 for home in homes[:2])
    return "split" if alone and there == held else None


def in_form(flow: CompiledFlow, part: ConsolidatePart, form: Form) -> dict[str, tuple[str, ...]]:
    """Give the components that make a form: component → operators."""
    first, second = part.slots
    beside = tuple(
        operator.name
        for operator in flow.component_of(part.name).operators
        if operator.name not in part.slots
    )
    if form == "combined":
        return {first: (first, second, *beside)}
    return {first: (first,), second: (second,), "+".join(beside): beside}


class SplitOrCombine:
    """Prices both forms of every aggregate after each period, and says which should change."""

    def __init__(
        self,
        flow: CompiledFlow,
        settings: Splitting,
        exchange: ExchangeCosts,  # what an exchange costs where the flow runs
        # operators that a user has named; what is put together or apart by hand is added to them
        left_alone: Iterable[str] = (),
    ) -> None:
        self._settings, self._left_alone = settings, set(left_alone)
        self._parts = {part.compute: part for part in _measured(flow)}
        self._meters = {
            name: FormMeter(part, exchange, period_us=settings.period_us, epochs=settings.epochs)
            for name, part in self._parts.items()
        }
        self._agreed: dict[str, tuple[Form, int]] = {}
        self._choices: dict[str, Choice] = {}
        self._wishes: dict[str, Wanted] = {}
        self._standing: dict[tuple[str, PhysicalPlan], tuple[Form | None, int]] = {}

    def leave_alone(self, operators: Collection[str]) -> None:
        """See `Decider.leave_alone`."""
        self._left_alone.update(operators)
        for name, part in self._parts.items():
            if self._left_alone & {part.name, *part.slots}:
                self._forget(name)

    def settled(self, wanted: Wanted) -> None:
        """See `Decider.settled`: it is wanted no more, whatever comes of it."""
        for name in [name for name, wish in self._wishes.items() if wish.reason == wanted.reason]:
            self._forget(name)

    def observe(self, seen: EpochSeen) -> Verdict:
        """See `Decider.observe`: what is wanted is said until it is settled, or overtaken."""
        told = []
        for name, part in self._parts.items():
            form, levels_more = self._stands(seen.flow, part)
            if form is None or self._left_alone & {part.name, *part.slots}:
                self._forget(name)
                continue
            if name in self._choices and self._choices[name].form == form:
                self._forget(name)
            metered = self._meters[name].take(seen, form, levels_more)
            if metered is not None:
                choice = choose_form(metered.costs, form, self._settings.max_latency_ms)
                told.append((events.FormsCompared, self._told(name, form, metered, choice)))
                self._confirm(name, seen.flow, metered, choice)
        wanted, first = None, most_beneficial(self._choices)
        if first is not None:
            # What is beside the consolidate part may have changed since it was decided.
            made = in_form(seen.flow, self._parts[first], self._choices[first].form)
            wanted = replace(self._wishes[first], components=made)
        return Verdict(wanted=wanted, told=tuple(told))

    def _stands(self, flow: CompiledFlow, part: ConsolidatePart) -> tuple[Form | None, int]:
        """Give the form under a plan, and the levels that epochs have only if split."""
        at = (part.name, flow.physical_plan)  # of which there are few in a run
        if at not in self._standing:
            form = form_of(flow, part)
            self._standing[at] = form, 0 if form is None else _levels_more(flow, part)
        return self._standing[at]

    def _forget(self, name: str) -> None:
        self._choices.pop(name, None)
        self._wishes.pop(name, None)
        self._agreed.pop(name, None)

    def _confirm(self, name: str, flow: CompiledFlow, metered: Metered, choice: Choice) -> None:
        """Want a change once decisions in a row agree upon it."""
        before, times = self._agreed.get(name, (choice.form, 0))
        self._forget(name)
        if not choice.changes:
            return
        times = times + 1 if before == choice.form else 1
        self._agreed[name] = choice.form, times
        if times < self._settings.confirm:
            return
        part, worth_bytes = self._parts[name], math.inf
        if choice.form == "combined":  # parting moves nothing
            saved_ms = choice.saved_ms / metered.epochs
            worth_bytes = self._settings.payback_epochs * saved_ms / metered.byte_ms
        self._choices[name] = replace(
            choice,
            saved_ms=choice.saved_ms / metered.epochs,
            relieved_ms=choice.relieved_ms / metered.epochs,
        )
        self._wishes[name] = Wanted(
            components=in_form(flow, part, choice.form),
            reason=_reason(name, metered, choice, self._settings.max_latency_ms),
            worth_bytes=worth_bytes,
        )

    def _told(self, name: str, form: Form, metered: Metered, choice: Choice) -> dict[str, Any]:
        """Values of the event that says what came out."""
        costs, bound_ms = metered.costs, self._settings.max_latency_ms
        return {
            "operator": name,
            "form": form,
            "cheaper": choice.form,
            "epochs": metered.epochs,
            "split_ms": costs.split_ms,
            "combined_ms": costs.combined_ms,
            "split_latency_ms": costs.split_latency_ms,
            "combined_latency_ms": costs.combined_latency_ms,
            "max_latency_ms": None if math.isinf(bound_ms) else bound_ms,
            "within": choice.within,
            "numbers": metered.numbers,
        }


def _measured(flow: CompiledFlow) -> tuple[ConsolidatePart, ...]:
    parts = (o for o in flow.operators if isinstance(o, ConsolidatePart))
    return tuple(part for part in parts if part.measured)


def _levels_more(flow: CompiledFlow, part: ConsolidatePart) -> int:
    """Levels that an epoch has only if the windows are split."""
    split, combined = (
        flow.under(regrouped(flow, in_form(flow, part, form))) for form in ("split", "combined")
    )
    return split.levels - combined.levels


def _reason(name: str, metered: Metered, choice: Choice, max_latency_ms: float) -> str:
    costs = metered.costs
    cpu = f"{costs.split_ms:.1f} ms of CPU split and {costs.combined_ms:.1f} ms combined"
    moved = f"{costs.migrations:.0f} key groups migrated"
    reason = f"{name} takes {cpu} over {metered.epochs} epochs in which {moved}"
    if not math.isinf(max_latency_ms):
        kept = "" if choice.within else ", which neither keeps to"
        reason += (
            f"; migrations take {costs.split_latency_ms:.0f} ms split and "
            f"{costs.combined_latency_ms:.0f} ms combined, of {max_latency_ms:.0f} ms allowed{kept}"
        )
    return reason
