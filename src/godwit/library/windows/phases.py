"""Two-phase windows in a plan: one operator computes partials, another one consolidates them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from godwit.library.windows.compute import WindowedCompute
from godwit.library.windows.two_phase import ComputePart, ConsolidatePart, second_slots
from godwit.model.errors import InvalidFlowError
from godwit.plan.compiled import CompiledFlow, Component, UpstreamInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from godwit.operators.operator import KeyedOperator

_CONSOLIDATES: Final = "_windows"
"""Suffix of the name of a windowed aggregate's consolidate part."""
_WHERE: Final = {False: "", True: ", with its partials or separate from them, by measured cost"}


def _check_free_names(
    flow: CompiledFlow, whole: WindowedCompute, parts: Iterable[KeyedOperator]
) -> None:
    """Raise if another operator of the flow has the name of a phase (`parts`) of `whole`."""
    names = {operator.name for operator in flow.operators} - {whole.name}
    for part in parts:
        if part.name in names:
            raise InvalidFlowError(
                f"Operator {part.name!r} of flow {flow.name!r} has the name of a phase of "
                f"{whole.name!r}, whose windows run in two phases.",
                remedy="Give one of the two another name.",
                flow=flow.name,
                operator=part.name,
            )


def split_windows(
    flow: CompiledFlow, apart: Collection[str], measured: Collection[str] = ()
) -> CompiledFlow:
    """Return the flow with windowed aggregates replaced by the operators of two-phase windows.

    `apart`: operators whose phases are two components. `measured`: operators whose phases begin in
    one component, and may be separated by measured costs. Refuses another operator that has the
    name of a part.
    """
    if not (apart or measured):
        return flow
    parts = {name: f"{name}{_CONSOLIDATES}" for name in (*apart, *measured)}
    components: list[Component] = []
    inputs = [
        replace(feed, upstream=parts[feed.upstream])
        if isinstance(feed, UpstreamInput) and feed.upstream in parts
        else feed
        for feed in flow.inputs
    ]
    for component in flow.components:
        (whole,) = component.operators
        if whole.name not in parts:
            components.append(component)
            continue
        assert isinstance(whole, WindowedCompute), "only such operators have two parts"
        slots = [ComputePart(whole, slot) for slot in range(2)]
        together = whole.name in measured
        consolidate = ConsolidatePart(parts[whole.name], whole, measured=together)
        phases = (*slots, consolidate)
        _check_free_names(flow, whole, phases)
        components += (
            [Component(name=whole.name, operators=phases, level=1)]
            if together
            else [Component(name=part.name, operators=(part,), level=1) for part in phases]
        )
        fed = [index for index, feed in enumerate(inputs) if feed.operator == whole.name]
        for index in fed:
            inputs[index] = replace(inputs[index], others=(slots[1].name,))
        inputs[fed[-1] + 1 : fed[-1] + 1] = [
            UpstreamInput(
                operator=consolidate.name,
                upstream=part.name,
                maps=(),
                keys=tuple(whole.keys.names),
                schema=consolidate.arriving,
                number=part.slot,
            )
            for part in slots
        ]
    actions = {
        name: does
        for whole, action in flow.actions.items()
        for name, does in (
            [(whole, action)]
            if whole not in parts
            else [
                (whole, f"{action}, partial"),
                (second_slots(whole), f"{action}, partial, of key groups that have migrated"),
                (parts[whole], f"consolidate {whole}{_WHERE[whole in measured]}"),
            ]
        )
    }
    formerly = {
        f"{new}{part}": f"{old}{part}"
        for new, old in flow.formerly.items()
        if new in parts
        for part in (second_slots(""), _CONSOLIDATES)
    }
    parted = replace(
        flow,
        components=tuple(components),
        inputs=tuple(inputs),
        outputs=tuple(
            replace(output, operator=parts.get(output.operator, output.operator))
            if output.is_result
            else output
            for output in flow.outputs
        ),
        feedbacks=tuple(
            replace(edge, operator=parts.get(edge.operator, edge.operator))
            for edge in flow.feedbacks
        ),
        actions=actions,
        formerly={**flow.formerly, **formerly},
    )
    return parted.with_plan(parted.physical_plan)
