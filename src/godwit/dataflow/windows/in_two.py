"""A windowed aggregate as two operators: one computes partials, one consolidates them.

::

    rows ──▶ compute part ──partials of windows that are over──▶ consolidate part ──▶ windows
             state: panes                                        state: none

The compute part is a `WindowedCompute` that hands its partials on where that would merge them; the
consolidate part merges what it is handed as that would.  So both together do what the one does,
whichever components they are in: in one, rows stay in the lane; in two, there is an exchange
between them, and the compute part, whose state can be made of parts, is a flexible component.

Invariant: all partials of a window arrive in the epoch that closes it, so the consolidate part
keeps nothing from one epoch to the next.

Source: compute and consolidate, Madsen et al. (Enorm) §4.2, Figure 5; split and combine, §5.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.dataflow.compiled import CompiledFlow, Component, UpstreamInput
from godwit.dataflow.groups import group_rows
from godwit.dataflow.naming import check_unique
from godwit.dataflow.settling import Settled, SettlingOperator
from godwit.dataflow.windows.closing import of_closing_windows
from godwit.dataflow.windows.compute import WindowedCompute
from godwit.dataflow.windows.description import windows_of
from godwit.dataflow.windows.grid import BEGINNING
from godwit.dataflow.windows.moments import Arrivals, RowTime
from godwit.dataflow.windows.operator import PANE, Arranged, Closed, Entries

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.dataflow.settling import HeldEntries
    from godwit.dataflow.windows.moments import OperatorTime

__all__ = ["ComputePart", "ConsolidatePart", "in_two"]

_CONSOLIDATES: Final = "_windows"
"""Put behind the name of a windowed aggregate: its consolidate part."""


class ComputePart(WindowedCompute):
    """The half that keeps panes, and emits those that windows which are over are made of.

    Parameters
    ----------
    whole
        The windowed aggregate. The part has its name, and hence its state.
    """

    emits = "partial states of windows that are over"

    def __init__(self, whole: WindowedCompute) -> None:
        vars(self).update(vars(whole))  # its aggregates are bound, and stay so
        self.output = pa.schema([*self.schema.keys, *self.schema.values])

    def close(self, held: Entries, changed: Entries | None, told: OperatorTime) -> Closed:
        """Give the partials of windows that are over in this epoch and were not before."""
        entries = held if changed is None else _newest(held.then(changed), len(self.keys))
        which = of_closing_windows(self, entries, told)
        if len(which) < len(entries.hashes):
            entries = entries.take(which)
        columns = [*entries.keys.columns, *entries.values.columns]
        return Closed(output=pa.RecordBatch.from_arrays(columns, schema=self.output))


class ConsolidatePart(SettlingOperator):
    """The half that merges partials by key into windows.

    Parameters
    ----------
    name
        Its name.
    whole
        The windowed aggregate.

    Attributes
    ----------
    compute
        Name of the half that its partials come from.
    """

    emits = "windows that are over"

    def __init__(self, name: str, whole: WindowedCompute) -> None:
        self.name, self.whole, self.compute = name, whole, whole.name
        self.schema, self.inputs, self.output = whole.schema, whole.schema.values, whole.output
        self.arriving = pa.schema([*whole.schema.keys, *whole.schema.values])
        self.time, self.grid, self.update = RowTime(column=PANE), whole.grid, False

    @property
    def kind(self) -> str:
        """What makes one."""
        return "windowed consolidate"

    @property
    def means(self) -> list[dict[str, Any]]:
        """Nothing is kept, so nothing has to mean the same."""
        return windows_of(self.grid)

    def arrange(self, rows: pa.RecordBatch, told: OperatorTime, given: int = 0) -> Arranged:  # noqa: ARG002
        """Leave partials as they are: they tell their entry, and were judged as rows."""
        return Arranged(rows=rows, left_out=None, found=Arrivals())

    def gone_before(self, closed: int) -> int:  # noqa: ARG002
        """Nothing is there that could go."""
        return BEGINNING

    def settle(self, arrived: Entries, held: HeldEntries, told: OperatorTime) -> Settled | None:
        """Merge partials into the windows that are over."""
        if not len(arrived.hashes):
            return None
        own = arrived.keys.select(self.keys.names)
        closed = self.whole.close(arrived, None, told)
        none = pa.array([], pa.int64())
        return Settled.of(
            group_rows(arrived.hashes, own, held.num_key_groups),
            key=np.empty(0, np.int64),
            keys=arrived.keys.take(none),
            values=arrived.values.take(none),
            output=closed.output,
            closed=closed,
        )


def _newest(entries: Entries, num_hashed: int) -> Entries:
    """Of an entry that is there twice, the later one."""
    groups = group_rows(entries.hashes, entries.keys, 1, num_hashed)
    if groups.count == len(entries.hashes):
        return entries
    return entries.take(groups.order[groups.starts[1:] - 1])


def in_two(flow: CompiledFlow, apart: Collection[str]) -> CompiledFlow:
    """Make two operators, of two components, of some windowed aggregates of a flow.

    Parameters
    ----------
    flow
        The flow.
    apart
        Names of the aggregates.

    Raises
    ------
    InvalidFlowError
        If the user has given another operator the name of a part.
    """
    if not apart:
        return flow
    names = {operator.name for operator in flow.operators}
    parts = {name: f"{name}{_CONSOLIDATES}" for name in apart}
    components: list[Component] = []
    inputs = [
        replace(given, upstream=parts[given.upstream])
        if isinstance(given, UpstreamInput) and given.upstream in parts
        else given
        for given in flow.inputs
    ]
    for component in flow.components:
        (whole,) = component.operators
        if whole.name not in parts:
            components.append(component)
            continue
        assert isinstance(whole, WindowedCompute), "only such operators have two parts"
        check_unique("operator", parts[whole.name], names, flow.name)
        compute, consolidate = ComputePart(whole), ConsolidatePart(parts[whole.name], whole)
        components += [
            Component(name=part.name, operators=(part,), level=1) for part in (compute, consolidate)
        ]
        last = max(at for at, given in enumerate(inputs) if given.operator == whole.name)
        inputs.insert(
            last + 1,
            UpstreamInput(
                operator=consolidate.name,
                upstream=compute.name,
                maps=(),
                keys=tuple(whole.keys.names),
                schema=consolidate.arriving,
            ),
        )
    actions = {
        name: does
        for whole, action in flow.actions.items()
        for name, does in (
            [(whole, action)]
            if whole not in parts
            else [(whole, f"{action}, partial"), (parts[whole], f"consolidate {whole}")]
        )
    }
    made = replace(
        flow,
        components=tuple(components),
        inputs=tuple(inputs),
        outputs=tuple(
            replace(output, operator=parts.get(output.operator, output.operator))
            if not output.left_out
            else output
            for output in flow.outputs
        ),
        actions=actions,
    )
    return made.under(made.physical_plan)
