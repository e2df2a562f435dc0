"""Graph of a compiled flow as plain values, for the journal and for drawings.

Nodes have users' names: the parts of a two-phase window are one operator.  Figures of epochs have
the engine's names, so every node says which of those it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from godwit.plan.compiled import SourceInput
from godwit.plan.explain import UserNames

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow, Output

_MAX_NODES: Final = 500  # of each kind; the graph of a larger flow is cut short
_MAX_TEXT: Final = 200


def graph_of(flow: CompiledFlow) -> dict[str, Any]:
    """Return sources, operators, sinks and the edges between them, as plain values.

    ``name``, ``keyGroups`` (of every operator), ``sources``, ``operators`` (``name``, ``parts``:
    the engine's operators that it is made of, ``components``: those that hold them, ``does``,
    ``keys``), ``sinks`` (``name``, ``takes``), ``edges`` (``from`` and ``to`` are kind and name,
    ``exchange``: rows are sent to other lanes).
    """
    names = UserNames(flow.operators)
    component_of = {o.name: c.name for c in flow.components for o in c.operators}
    operators: dict[str, dict[str, Any]] = {}
    for operator in flow.operators[:_MAX_NODES]:
        node = operators.setdefault(
            names[operator.name],
            {
                "name": names[operator.name],
                "parts": [],
                "components": [],
                "does": flow.actions[operator.name][:_MAX_TEXT],
                "keys": list(operator.keys.names)[:16],
            },
        )
        node["parts"].append(operator.name)
        if component_of[operator.name] not in node["components"]:
            node["components"].append(component_of[operator.name])
    edges: dict[tuple[tuple[str, str], tuple[str, str]], bool] = {}
    for feed in flow.inputs:
        to = names[feed.operator]
        if isinstance(feed, SourceInput):
            edges[("source", feed.source), ("operator", to)] = True
        elif names[feed.upstream] != to:
            apart = component_of[feed.upstream] != component_of[feed.operator]
            edges[("operator", names[feed.upstream]), ("operator", to)] = apart
    for output in flow.outputs[:_MAX_NODES]:
        edges[("operator", names[output.operator]), ("sink", output.name)] = False
    return {
        "name": flow.name,
        "keyGroups": flow.num_key_groups,
        "sources": list(flow.sources[:_MAX_NODES]),
        "operators": list(operators.values()),
        "sinks": [{"name": o.name, "takes": _rows_of_sink(o)} for o in flow.outputs[:_MAX_NODES]],
        "edges": [
            {"from": list(start), "to": list(end), "exchange": exchange}
            for (start, end), exchange in edges.items()
        ],
    }


def _rows_of_sink(output: Output) -> str:
    """Return which rows a sink gets: ``results``, ``left out``, ``rejected`` or ``unreadable``."""
    if output.rejects_of is not None:
        return "rejected"
    if output.unreadable_of:
        return "unreadable"
    return "left out" if output.left_out else "results"
