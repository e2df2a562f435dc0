"""Operators with several named states, in one lane: who has something to do, and what is written.

As with a single state, timers and expiries are found by a scan of one column each, in epochs in
which something may be due; everything else is looked up by the operator, where it is touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.engine.lane.settling import Held
from godwit.engine.lane.timers import group_with
from godwit.operators.states.cells import Expired
from godwit.operators.windows.moments import Due
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.records import StateId
    from godwit.columns.groups import Groups
    from godwit.engine.lane.files import LaneFiles
    from godwit.engine.lane.rows import LaneRows
    from godwit.operators.states.operator import ProcessOfStates, Ran
    from godwit.operators.windows.moments import OperatorTime
    from godwit.store.local_state import LocalState

__all__ = ["Processed", "run_states"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Processed:
    """What an epoch made of the keys of a lane.

    Attributes
    ----------
    groups
        The keys.
    ran
        Their output, and what they cost; ``None`` if there was nothing to do.
    cpu_ms
        CPU time in all.
    next_due
        When something is due next, as far as was looked for.
    """

    groups: Groups
    ran: Ran | None
    cpu_ms: float
    next_due: Due


def run_states(
    operator: ProcessOfStates,
    rows: LaneRows,
    *,
    told: OperatorTime,
    states: Mapping[StateId, LocalState],
    here: npt.NDArray[np.int64],
    files: LaneFiles,
) -> Processed:
    """Process rows, and what is due without any, and write what changed.

    Parameters
    ----------
    operator, rows
        The operator, and rows that have arrived for it.
    told
        The epoch's moments.
    states
        State → what the lane holds of it as of the last epoch.
    here
        The lane's key groups.
    files
        Gets what changed.
    """
    cpu = time.process_time()
    held = {state.state: local for state, local in states.items()}
    found = {
        due: held[due.state].scan(here, EntryRange(column=due.column, end=due.until + 1))
        for due in (operator.due_columns(told) if told.due else ())
    }
    groups, keys, of_found = group_with(rows, list(found.values()))
    ran = None
    if groups.count:
        ran = operator.run(
            groups,
            keys,
            rows.columns,
            held={name: Held(local, here) for name, local in held.items()},
            expired={
                due.state: Expired(entries=entries, groups=of)
                for (due, entries), of in zip(found.items(), of_found, strict=True)
                if due.state in operator.stored
            },
            told=told,
        )
        for state in states:
            if state.state in ran.changed:
                files.changes(state, *ran.changed[state.state])
    earliest = Due()
    for due in operator.due_columns(told):
        if told.due:
            local = held[due.state]
            earliest |= due.due_of(local.least(here, due.column, after=due.until))
        if ran is not None:
            earliest |= operator.earliest(due, ran)
    return Processed(
        groups=groups,
        ran=ran,
        cpu_ms=(time.process_time() - cpu) * 1e3,
        next_due=earliest,
    )
