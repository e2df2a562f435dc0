"""Other columns place the state of a query that runs.

Problem: what executors hold, assignments, instructions and statistics are all by key group, and
other columns give every entry another one.  A table finds entries by their keys alone, so it cannot
hold some of them by the former columns and some by the new ones.

So the running query does what a stop and a start do, by itself.  Between two epochs the parts of
the run are closed, the checkpoint is recovered with its state repartitioned
(`godwit.engine.repartition`), and the parts are opened over it by the code of every start.
Sources, listeners, journal, ports and the driver of the epochs stay, and wait meanwhile.

Invariants: it has the gate of epochs for itself, and the last epoch is delivered; what can be
refused is refused before anything is closed; an error afterwards fails the query, whose checkpoint
has the former columns or the new ones.
"""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from godwit.engine.repartition import check_can_repartition, checked_columns
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import MigrationError
from godwit.runtime.placement import cancel_own
from godwit.runtime.threads import DaemonPool, GateClosedError, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.engine.changes import Proposal
    from godwit.runtime.run import QueryRun

_STOPPED = "Start the flow again from its checkpoint, and repartition that query."


class Repartitioning:
    """Changes the columns that place the state of a running query, on a thread of its own."""

    def __init__(self, run: QueryRun) -> None:
        self._run = run
        self._thread = DaemonPool(1, "godwit-repartition")

    def close(self) -> None:
        """Begin no more changes."""
        self._thread.close()

    def carry_out(self, asked: Mapping[str, Any]) -> None:
        """Change the partitioning columns of operators for a user; return once epochs run again.

        `asked`: operator → columns. Raises `MigrationError` if that is not possible now, or the
        query stops first; what `checked_columns` and `check_can_repartition` raise; the query's
        error if it fails by it.
        """
        run = self._run
        if run.gate.is_own_thread:
            raise MigrationError(
                "State cannot be repartitioned from within an epoch, such as by a function of "
                "foreach: it would wait for the end of that epoch.",
                remedy="Call it from another thread.",
            )
        checked_columns(run.flow, asked)  # at once, however long the epoch takes
        try:
            self._thread.submit(self._change, asked, "asked for", by_hand=True).result()
        except (GateClosedError, CancelledError):
            raise MigrationError(
                "The query stopped before its state was repartitioned.", remedy=_STOPPED
            ) from None

    def begin_proposed(self, proposal: Proposal) -> None:
        """Begin a change that a policy has proposed; skip it if it is not possible now."""
        change = proposal.change

        def change_or_skip() -> None:
            """Make the change, or announce why it is not made."""
            try:
                self._change({change.operator: change.columns}, proposal.reason)
            except GateClosedError:
                pass
            except Exception as error:
                if self._run.gate.failure is not None:
                    raise  # the query has failed by it
                self._run.coordinator.announce(
                    events.DecisionSkipped,
                    what=proposal.subject,
                    reason=one_line(error),
                    numbers=dict(proposal.numbers),
                )

        self._thread.submit(change_or_skip)

    # -- on its own thread ------------------------------------------------------------------------

    def _change(self, asked: Mapping[str, Any], reason: str, *, by_hand: bool = False) -> None:
        """Close the run's parts between two epochs, and open them with other partitioning columns.

        `asked`: operator → columns; no-op if they are the present ones. `by_hand`: a user asked, so
        the controller's migrations are cancelled, and policies leave the operators alone.
        """
        run = self._run
        with run.gate.between_epochs():
            began_s = time.monotonic()
            columns = checked_columns(run.flow, asked)
            if not columns:
                return
            self._check_nothing_moves(by_hand=by_hand)
            for name in columns:
                check_can_repartition(run.flow.operator(name), run.log)
            whole = [name for name in columns if not run.flow.operator(name).part_of]
            before = {name: self._columns_text(name) for name in whole}
            if by_hand:
                with run.manual_change(map(ManualChange.COMPONENTS.of, columns)) as record:
                    record()
            try:
                run.loop.finish_delivery()
                run.use_this_thread()
                run.place_by(columns)
            except GateClosedError:
                run.gate.cut_short = True
                raise
            except BaseException as error:
                run.gate.fail(error)
                raise
            run.coordinator.announce(
                events.OperatorsRepartitioned,
                before=before,
                after={name: self._columns_text(name) for name in whole},
                reason=reason,
                paused_ms=round((time.monotonic() - began_s) * 1e3, 1),
            )

    def _columns_text(self, operator: str) -> str:
        """Return the columns that select an operator's key groups, separated by commas."""
        return ", ".join(self._run.flow.operator(operator).placed_by.names)

    def _check_nothing_moves(self, *, by_hand: bool) -> None:
        """Raise `MigrationError` if key groups or executors are being moved, added or removed.

        `by_hand`: cancel migrations by the controller first.
        """
        run = self._run
        if run.coordinator.closed:
            raise MigrationError("The query has stopped.", remedy=_STOPPED)
        with run.coordinator.locked() as coordinator:
            for name in coordinator.view.components if by_hand else ():
                cancel_own(coordinator, name)
            view, regrouping = coordinator.view, coordinator.regrouping
        moving = [
            run.names[name]
            for name, c in view.components.items()
            # Key groups whose state is being loaded are loaded again afterwards, together with the
            # rows that wait for them.
            if c.migration is not None or any(transfer.planned for transfer in c.transfers)
        ]
        problem = ""
        if regrouping is not None:
            problem = f"regrouping {regrouping} is under way"
        elif moving:
            problem = f"key groups of {moving[0]} are on the move"
        elif view.draining:
            problem = f"executor {min(view.draining)} is draining"
        elif run.is_scaling() or run.pool.is_changing:
            problem = "executors are being added or given back"
        if problem:
            raise MigrationError(
                f"State cannot be repartitioned now: {problem}.",
                remedy="Wait for its end, or cancel it, and ask again.",
            )
