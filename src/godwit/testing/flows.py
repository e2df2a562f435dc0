"""Flows played in this process, step by step: `run`, `cluster` and the `Run` that they make.

What runs is what runs on a cluster (`godwit.local`); this adds what a test asks for and
does to it: rows and state as tables, a clock that moves where it is told to, executors that come
and die.
"""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import tempfile
import time
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import is_stand_in, map_rows
from godwit.checkpoint.epochs import take_back
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage, PosixDisk
from godwit.columns.python_values import datetime_of
from godwit.columns.signed import table_after
from godwit.columns.tables import micros, table_of
from godwit.columns.types import to_schema
from godwit.engine.initial_state import initial_state_of
from godwit.engine.settings import Lanes
from godwit.local import (
    LocalRun,
    check_loops,
    check_sources,
    lane_inputs,
    split_into_epochs,
    staged_rows,
)
from godwit.model import events, plugins
from godwit.model.errors import (
    InvalidFlowError,
    InvalidInputError,
    InvalidPlanError,
)
from godwit.model.frames import user_call
from godwit.model.naming import NoSuchCallError, did_you_mean, listing, type_name
from godwit.plan.compiled import SourceInput
from godwit.plan.explain import UserNames
from godwit.sinks.checks import check_columns_of_sinks, check_places, try_sink
from godwit.sinks.rows import last_of_each_key
from godwit.time.durations import microseconds

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from godwit.checkpoint.records import CommitRecord
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.strategy import Bounds, Policy
    from godwit.model.events import Event, RowsLeftOut
    from godwit.plan.compiled import CompiledFlow, SinkOutput
    from godwit.runtime.hot_keys import QueryHotKeys
    from godwit.runtime.placement import AnyPlan, AnyStrategy, Migration, QueryPlacement
    from godwit.runtime.regrouping import QueryComponents
    from godwit.time.durations import Duration

_OF_PARTS = {
    "assignment": "run.placement.assignments",
    "regroup": "run.components.regroup",
    "repartition": "run.components.repartition",
    "spread": "run.hot_keys.spread",
    "gather": "run.hot_keys.gather",
}
"""Former names of a run → names of its parts, as of a query."""

Rows = Any
"""Rows of a source: dicts, tuples, an Arrow table or record batch, a pandas DataFrame."""

Moment = dt.datetime | str
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@user_call
def run(
    flow: LogicalFlow,
    inputs: Mapping[str, Rows | Sequence[Rows]] | None = None,
    *,
    epochs: int | None = None,
    rows_per_epoch: int | None = None,
    advance: Duration | None = None,
    close_at_end: bool = False,
    executors: int | Mapping[str, int] = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    now: Moment | None = None,
    policy: Policy | None = None,
    components: Mapping[str, Sequence[str]] | None = None,
    check_sinks: bool = False,
    initial: Mapping[str, Any] | None = None,
    initial_watermark: Moment | None = None,
) -> Run:
    """Run a flow over given rows, in this process and without Spark; for tests.

    Parameters
    ----------
    flow
        The flow. Its sources are stand-ins (`gw.testing.stream`), Godwit's own sources, or
        DataFrames, of which only the columns are used; maps over DataFrames need a Spark session.
    inputs
        Name of a source → rows to use instead of the source's: a list of dicts, an Arrow table or
        record batch, or a pandas DataFrame, for one epoch; or a list of these, one for each epoch.
        Timestamps may be ISO 8601 text. A Godwit source that is not named is read until the rows
        that it had at the beginning are processed. Epochs run for loops (``flow.feedback``) until
        no rows wait in them, or they pause.
    epochs, rows_per_epoch
        Divide the rows of every source into this number of epochs, or into epochs of this many
        rows. A source that is read itself gets at most this many epochs, or about this many rows in
        each.
    advance
        Time by which the test's clock advances after every epoch, such as ``"10 minutes"``: for
        processing-time timers, time-to-live and idle sources. By default the clock stands still.
    close_at_end
        ``True``: at the end open windows are emitted and event-time timers fire, as in
        ``flow.start``.
    executors
        Number of simulated executors of one lane each, named ``"1"``, ``"2"``, ...; or name →
        number of lanes.
    checkpoint
        Directory of the checkpoint, which is resumed if it has epochs; by default a temporary one.
    now
        Time of the test's clock at the beginning, a datetime or ISO 8601 text; by default the time
        of the call. The clock advances only by `advance` and `Run.advance`.
    policy
        Settings for recovery after the loss of an executor, and for copies of state; see
        `gw.migration.Policy`.
    components
        Component → names of its operators, which run in the same lanes; by default each operator is
        a component, of the same name.
    check_sinks
        ``True``: ask the target of every sink what ``flow.start`` would ask: whether it can be
        reached, and has the columns. Rows that a target would refuse fail the test, or go to
        ``rejects=``. Nothing is written, and nothing created remains. By default only the
        configuration of sinks is checked.
    initial, initial_watermark
        State that operators begin with, as for `flow.start`.

    Returns
    -------
    Run
        The run after its last epoch, with its rows, state and events. Further epochs can be run on
        it.

    Raises
    ------
    InvalidInputError
        If there is no such source, or rows do not fit its columns.
    InvalidFlowError
        If the flow is wrong, or its maps need Spark and there is no session.
    SinkError
        If the configuration of a sink does not fit its rows; with `check_sinks`, also if its target
        cannot be reached, or cannot take the rows.
    GodwitError
        Any other error that a query over these rows would fail with.

    Examples
    --------
    >>> played = gw.testing.run(delays, {"flights": ROWS})
    >>> played.rows("by_plane").to_pylist()
    [{'plane': 'N1', 'total': 29}]
    """
    played = Run(
        flow,
        executors=executors,
        checkpoint=checkpoint,
        now=now,
        policy=policy,
        components=components,
        close_at_end=close_at_end,
        check_sinks=check_sinks,
        initial=initial,
        initial_watermark=initial_watermark,
    )
    inputs = inputs or {}
    check_sources(inputs, played.flow.sources)
    for option, value in (("epochs", epochs), ("rows_per_epoch", rows_per_epoch)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidInputError(
                f"The option {option} of run is {value!r}.", remedy="Give a whole number from 1."
            )
    if epochs is not None and rows_per_epoch is not None:
        raise InvalidInputError(
            "Both epochs= and rows_per_epoch= were given.", remedy="Give one of them."
        )
    rows_of_epochs = {
        source: split_into_epochs(source, rows_, epochs=epochs, rows_per_epoch=rows_per_epoch)
        for source, rows_ in inputs.items()
    }
    check_loops(inputs, played.flow.loops)
    with played:
        played._stand_for(inputs)  # noqa: SLF001  one class in two parts
        played._end_with_what_is_there()  # noqa: SLF001
        for number in itertools.count() if epochs is None else range(epochs):
            rows = {
                source: batches[number]
                for source, batches in rows_of_epochs.items()
                if number < len(batches)
            }
            if not rows and not played._reads:  # noqa: SLF001
                break
            if not played._play(rows, limit=rows_per_epoch):  # noqa: SLF001
                break
            if advance is not None:
                played.advance(advance)
        played.go_round()
        if close_at_end:
            played.end_input()
    return played


@user_call
def cluster(
    flow: LogicalFlow,
    *,
    executors: int | Mapping[str, int] = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    now: Moment | None = None,
    policy: Policy | None = None,
    components: Mapping[str, Sequence[str]] | None = None,
    check_sinks: bool = False,
    initial: Mapping[str, Any] | None = None,
    initial_watermark: Moment | None = None,
) -> Run:
    """Start a flow in this process, to run it epoch by epoch; for tests.

    Parameters
    ----------
    flow, executors, checkpoint, now, policy, components, check_sinks, initial, initial_watermark
        As for `run`. The clock advances only by `Run.advance`.

    Returns
    -------
    Run
        The run, which has processed nothing yet: call `Run.epoch` with rows. Use it in a ``with``
        statement, which closes sources and releases the lock on `checkpoint`.

    Raises
    ------
    InvalidFlowError
        If the flow is wrong, or its maps need Spark and there is no session.
    SinkError
        As for `run`.
    GodwitError
        Any other error that starting a query would fail with.

    Examples
    --------
    >>> with gw.testing.cluster(delays, executors=2) as played:
    ...     out = played.epoch({"flights": ROWS})
    >>> out["by_plane"].to_pylist()
    [{'plane': 'N1', 'total': 29}]
    """
    return Run(
        flow,
        executors=executors,
        checkpoint=checkpoint,
        now=now,
        policy=policy,
        components=components,
        close_at_end=True,
        check_sinks=check_sinks,
        initial=initial,
        initial_watermark=initial_watermark,
    )


class Run:
    """A flow that runs in this process, epoch by epoch; for tests.

    Godwit makes it: `gw.testing.run` and `gw.testing.cluster` return it. Its methods return the
    rows that sinks got meanwhile, as a dict: name of a sink → its new rows. Sinks that got none are
    left out of the dict; asking it for one of them gives a table without rows.

    Attributes
    ----------
    epochs
        Outcomes of all epochs, oldest first, with ``rows_in``, ``rows_out``, ``left_out`` (dropped
        rows by operator and reason), ``watermarks`` and more.
    events
        Events (`gw.events`), oldest first.

    Examples
    --------
    >>> played = gw.testing.cluster(delays, executors=2)
    >>> played.epoch({"flights": ROWS})["by_plane"].num_rows
    1
    >>> played.kill("2")
    >>> played.executors
    {'1': 1}
    """

    def __init__(
        self,
        flow: LogicalFlow,
        *,
        executors: int | Mapping[str, int],
        checkpoint: str | os.PathLike[str] | None,
        now: Moment | None,
        policy: Policy | None,
        components: Mapping[str, Sequence[str]] | None,
        close_at_end: bool,
        check_sinks: bool,
        initial: Mapping[str, Any] | None,
        initial_watermark: Moment | None,
    ) -> None:
        self.epochs: list[EpochOutcome] = []
        self.events: list[Event] = []
        self._rows: dict[str, dict[int, pa.Table]] = {}
        self._given: set[str] = set()  # sources of Godwit's own for which rows were given
        self._policy, self._close_at_end = policy, close_at_end
        self._check_sinks = check_sinks
        self._directory = Path(tempfile.mkdtemp(prefix="godwit-testing-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        if checkpoint is not None and isinstance(flow, LogicalFlow):
            check_places(flow.compiled(), checkpoint)  # while nothing is created
        self._storage = (
            LocalStorage(str(self._directory / "checkpoint"), disk=PosixDisk(durable=False))
            if checkpoint is None
            else CheckpointStorage.open(checkpoint)
        )
        self._lease = None if checkpoint is None else acquire_lease(self._storage, uuid.uuid4().hex)
        self._clock_us = time.time_ns() // 1000 if now is None else micros(now, "now")
        # last epoch that sinks have got; an earlier run's last one is not for the sinks of this run
        self._last_delivered: int | None = None  # ``None``: the checkpoint is not open yet
        self._driver: LocalRun
        try:
            given = initial, initial_watermark
            self._start(flow, _lanes(executors), components, initial=given)
        except BaseException:
            self.close()
            raise
        self._last_delivered = self._driver.log.latest_epoch

    def _start(
        self,
        flow: LogicalFlow,
        executors: Mapping[str, int],
        components: Mapping[str, Sequence[str]] | None,
        *,
        repartition: bool = False,
        from_epoch: int | str | dt.datetime | None = None,
        placed: Mapping[str, tuple[str, ...]] | None = None,
        initial: tuple[Mapping[str, Any] | None, Moment | None] = (None, None),
    ) -> None:
        """Start a run of a flow from the checkpoint; options: see `recover_flow`."""
        if not isinstance(flow, LogicalFlow):
            raise InvalidFlowError(
                f"A value of type {type_name(flow)} was given to be played.",
                remedy="Give a gw.Flow.",
            )
        self._placed = {} if placed is None else placed
        compiled = flow.compiled()
        check_places(compiled)
        check_columns_of_sinks(compiled)
        rollback = take_back(self._storage, from_epoch, uuid.uuid4().hex[:12])
        if rollback is not None and rollback.goes_on_after is None:  # as targets are rolled back
            self._last_delivered = rollback.epoch
            for rows_of_epochs in self._rows.values():
                for epoch in [epoch for epoch in rows_of_epochs if epoch > rollback.epoch]:
                    del rows_of_epochs[epoch]
        if repartition or placed:  # then the last epoch is perhaps not the last one any more
            self._deliver_last()
        names = UserNames(compiled.operators)
        self._driver = LocalRun(
            compiled,
            self._storage,
            executors=executors,
            settings=Lanes(local_dir=str(self._directory / "local")),
            policy=self._policy,
            components=components,
            repartition=repartition,
            placed=placed,
            taken_back=rollback,
            delivered=repartition or bool(placed),
            initial=initial_state_of(*initial, compiled),
            close_at_end=self._close_at_end,
            clock_us=self._clock_us,
            emit=lambda event: self.events.append(names.event(event)),
            on_commit=self.epochs.append,
            on_delivery=self._delivered,
            place_by=self._place_by,
            row_check=lambda output, query_id: (
                try_sink(output, compiled, query_id) if self._check_sinks else None
            ),
        )
        self._logical = flow
        self._needed = _columns_read(compiled)
        self._schemas = {name: _schema_of(name, frame) for name, frame in flow.sources.items()}
        for name, source in compiled.own_sources.items():
            self._schemas[name] = to_schema(source.schema, where=f"The schema of source {name!r}")

    def _place_by(self, placed: Mapping[str, tuple[str, ...]]) -> None:
        """Start again with other partitioning columns of some operators."""
        self._driver.sources.close()
        self._start(self._logical, self.executors, None, placed={**self._placed, **placed})

    @property
    def flow(self) -> CompiledFlow:
        """The plan of the flow, for looking at its operators, components and columns.

        Examples
        --------
        >>> gw.testing.run(delays, {"flights": ROWS}).flow.num_key_groups
        256
        """
        return self._driver.flow

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sources, and release the lock on the checkpoint; results can still be read.

        Examples
        --------
        >>> played = gw.testing.cluster(delays)
        >>> out = played.epoch({"flights": ROWS})
        >>> played.close()
        >>> played.rows("by_plane").num_rows
        1
        """
        if hasattr(self, "_driver"):  # else the start has failed
            self._driver.sources.close()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __repr__(self) -> str:
        return f"<Run of flow {self.flow.name!r}: {len(self.epochs)} epochs, now {self.now}>"

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [known for known in dir(type(self)) if not known.startswith("_")]
            remedy = f"{did_you_mean(name, known)}It has {listing(known, limit=len(known))}."
            if name in _OF_PARTS:
                remedy = f"Use {_OF_PARTS[name]}."
            raise NoSuchCallError(
                f"A run of gw.testing has no {name!r}.",
                remedy=remedy,
                call=name,
            )

        def __getitem__(self, sink: object) -> Any:
            raise InvalidInputError(
                f"A run of gw.testing was asked for {sink!r} in brackets.",
                remedy=f"All rows of a sink are run.rows({sink!r}), and the newest of each key are "
                f"run.current({sink!r}).",
            )

    # -- what happens -----------------------------------------------------------------------------

    @user_call
    def epoch(self, inputs: Mapping[str, Rows] | None = None) -> dict[str, pa.Table]:
        """Run an epoch, and any epochs without input that are due after it.

        Parameters
        ----------
        inputs
            Name of a source → its rows: a list of dicts, an Arrow table or record batch, or a
            pandas DataFrame. A Godwit source that is never named here is read, up to its limits per
            epoch. If there are no rows at all, there is no epoch. Every epoch reads the rows that
            wait in loops.

        Returns
        -------
        dict
            Name of a sink → its new rows; sinks without new rows are left out.

        Raises
        ------
        InvalidInputError
            If there is no such source, or rows do not fit its columns.
        GodwitError
            Any other error that the epoch would fail with on a cluster; it is not committed then.

        Examples
        --------
        >>> played = gw.testing.cluster(delays)
        >>> played.epoch({"flights": ROWS[:1]})["by_plane"].to_pylist()
        [{'plane': 'N1', 'total': 5}]
        >>> played.epoch({"flights": ROWS[1:]})["by_plane"].to_pylist()
        [{'plane': 'N1', 'total': 29}]
        """
        inputs = inputs or {}
        check_sources(inputs, self.flow.sources)
        check_loops(inputs, self.flow.loops)
        self._stand_for(inputs)
        first = self._driver.log.latest_epoch + 1
        self._play(inputs)
        return self._settled(first)

    @user_call
    def go_round(self, rounds: int | None = None) -> dict[str, pa.Table]:
        """Run epochs over the rows that wait in feedback loops, until none wait or the loops pause.

        Parameters
        ----------
        rounds
            Maximum number of epochs; by default no limit.

        Returns
        -------
        dict
            Name of a sink → its new rows; sinks without new rows are left out.

        Raises
        ------
        GodwitError
            Any error that an epoch would fail with on a cluster; it is not committed then.

        Examples
        --------
        >>> gw.testing.run(delays, {"flights": ROWS}).go_round()
        {}
        """
        first = self._driver.log.latest_epoch + 1
        for _ in itertools.count() if rounds is None else range(rounds):
            if self._driver.run_round() is None:
                break
            for _ in self._driver.run_until_idle():
                pass
        return self._settled(first)

    @user_call
    def advance(
        self, by: Duration = "0 seconds", *, watermarks: Mapping[str, Moment] | None = None
    ) -> dict[str, pa.Table]:
        """Advance the test's clock and watermarks, and run the epochs that become due.

        Parameters
        ----------
        by
            Time by which the clock advances, such as ``"1 hour"``.
        watermarks
            Name of a source → its new watermark, a datetime or ISO 8601 text, as if rows had
            arrived with that event time plus the source's slack. Windows that end by then are
            emitted. A watermark never goes back: an earlier one changes nothing.

        Returns
        -------
        dict
            Name of a sink → its new rows; sinks without new rows are left out.

        Raises
        ------
        InvalidInputError
            If there is no such source, it has no event time that the flow uses, or a watermark is
            not a time.
        InvalidFlowError
            If `by` is not a length of time, or negative.
        GodwitError
            Any other error that an epoch would fail with on a cluster.

        Examples
        --------
        >>> hourly = of_rows.key_by("plane").window(gw.tumbling("1 hour")).compute(n=gw.count())
        >>> delays.sink("hourly", hourly, gw.sinks.noop())
        >>> played = gw.testing.run(delays, {"flights": ROWS})
        >>> played.advance(watermarks={"flights": "2024-05-01 12:00"})["hourly"]["n"].to_pylist()
        [1, 1]
        """
        first = self._driver.log.latest_epoch + 1
        self._set_time(by, watermarks)
        return self._settled(first)

    def _set_time(
        self, by: Duration = "0 seconds", watermarks: Mapping[str, Moment] | None = None
    ) -> None:
        """Advance the clock and watermarks for the next epoch, and run none."""
        self._driver.clock_us += microseconds(by, "The time to advance by", least=0)
        self._clock_us = self._driver.clock_us
        if watermarks:
            self._driver.advance_watermarks(self._newest(watermarks))

    @user_call
    def end_input(self) -> dict[str, pa.Table]:
        """End the input: emit open windows, and fire event-time timers.

        Returns
        -------
        dict
            Name of a sink → its new rows; sinks without new rows are left out.

        Raises
        ------
        GodwitError
            Any error that an epoch would fail with on a cluster.

        Examples
        --------
        >>> daily = of_rows.key_by("plane").window(gw.tumbling("1 day")).compute(n=gw.count())
        >>> delays.sink("daily", daily, gw.sinks.noop())
        >>> played = gw.testing.cluster(delays)
        >>> out = played.epoch({"flights": ROWS})
        >>> played.end_input()["daily"]["n"].to_pylist()
        [4]
        """
        first = self._driver.log.latest_epoch + 1
        self._driver.epochs.end_input()
        self._settled(first)
        self.go_round()  # what windows feed back as they close
        return self._settled(first)

    @user_call
    def migrate(
        self,
        plan: AnyPlan,
        *,
        component: str | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Migrate key groups to other executors, and run epochs until they are there.

        Parameters
        ----------
        plan, component, strategy, bounds
            As for `Query.migrate`.

        Returns
        -------
        Migration
            The migration, which has ended: ``wait()`` returns its outcome at once.

        Raises
        ------
        InvalidPlanError
            If a component, key group, executor or strategy does not exist.
        MigrationError
            If the component cannot be migrated by that strategy.

        Examples
        --------
        >>> played = gw.testing.cluster(delays, executors=2)
        >>> out = played.epoch({"flights": ROWS})
        >>> played.migrate({0: "2", 2: "2"}).wait().moved
        2
        """
        migration = self.placement._migrate(  # noqa: SLF001  as of a query
            plan, component=component, strategy=strategy, bounds=bounds
        )
        assert migration.done, "a run that has come to rest has ended its migrations"
        return migration

    @user_call
    def add(self, executor: str, lanes: int = 1) -> None:
        """Add an executor, without state and key groups; `migrate` moves some there.

        Parameters
        ----------
        executor
            Name of the executor.
        lanes
            Number of its lanes (parallel tasks).

        Raises
        ------
        InvalidPlanError
            If there is an executor of that name.
        InvalidInputError
            If `lanes` is not a positive number.

        Examples
        --------
        >>> played = gw.testing.cluster(delays)
        >>> played.add("2", lanes=2)
        >>> played.executors
        {'1': 1, '2': 2}
        """
        if executor in self.executors:
            raise InvalidPlanError(
                f"There is an executor {executor!r} already.",
                remedy="A new one has a new name, as in Spark.",
                executor=executor,
            )
        self._driver.set_executors({**self.executors, **_lanes({executor: lanes})})

    @user_call
    def kill(self, executor: str) -> None:
        """Kill an executor, as a crash would; its key groups go to the other executors.

        Its local copies of state are lost, but no state is: the other executors read the state of
        the last commit from the checkpoint in the next epoch.

        Parameters
        ----------
        executor
            Name of the executor.

        Raises
        ------
        InvalidPlanError
            If there is no executor of that name, or it is the only one.

        Examples
        --------
        >>> played = gw.testing.cluster(delays, executors=2)
        >>> played.kill("1")
        >>> played.epoch({"flights": ROWS})["by_plane"].to_pylist()
        [{'plane': 'N1', 'total': 29}]
        """
        self._check_executor(executor)
        left = {name: lanes for name, lanes in self.executors.items() if name != executor}
        if not left:
            raise InvalidPlanError(
                f"Executor {executor!r} is the last one, and without any nothing runs.",
                remedy=f"Add another one first, as in run.add({executor + '-2'!r}).",
                executor=executor,
            )
        self._driver.set_executors(left)

    @user_call
    def restart(
        self,
        flow: LogicalFlow | None = None,
        *,
        executors: int | Mapping[str, int] | None = None,
        components: Mapping[str, Sequence[str]] | None = None,
        repartition: bool = False,
        from_epoch: int | str | dt.datetime | None = None,
    ) -> dict[str, pa.Table]:
        """Stop, and start again from the checkpoint, perhaps with a changed flow.

        Parameters
        ----------
        flow
            The changed flow; by default the same flow.
        executors, components
            As in `gw.testing.run`; by default as before.
        repartition
            ``True``: if ``partition_by=`` of an operator or ``num_key_groups=`` of the flow has
            changed, state is rewritten. ``False``: such a change is refused.
        from_epoch
            Number or name of the epoch to continue after, or a time by which it was committed;
            later epochs are taken back, with their rows in sinks. By default the last epoch.

        Returns
        -------
        dict
            Name of a sink → its new rows, from epochs that were due at the start, and from the last
            one before if that was committed and not delivered.

        Raises
        ------
        CheckpointMismatchError
            If state in the checkpoint does not fit the changed flow; the message lists every
            difference.
        InvalidFlowError
            If the changed flow is wrong.

        Examples
        --------
        >>> played = gw.testing.cluster(delays)
        >>> out = played.epoch({"flights": ROWS})
        >>> out = played.restart(executors=2)
        >>> played.epoch({"flights": ROWS})["by_plane"].to_pylist()
        [{'plane': 'N1', 'total': 58}]
        """
        lanes = self.executors if executors is None else _lanes(executors)
        assert self._last_delivered is not None, "a run has started"
        self._driver.sources.close()
        changed = self._logical if flow is None else flow
        last = self._last_delivered
        self._start(changed, lanes, components, repartition=repartition, from_epoch=from_epoch)
        return self._settled(min(last, self._driver.log.latest_epoch) + 1)

    # -- what can be asked ------------------------------------------------------------------------

    @user_call
    def rows(self, sink: str) -> pa.Table:
        """Return all rows that a sink got, in order; ``.to_pylist()`` makes dicts of them.

        Of an aggregate these are updates: a row for every key that an epoch changed (see
        `current`). Late rows of an operator with ``late=`` are in the sink ``<operator>_late``.

        Parameters
        ----------
        sink
            Name of the sink.

        Raises
        ------
        InvalidInputError
            If the flow has no such sink.

        Examples
        --------
        >>> played = gw.testing.run(delays, {"flights": ROWS}, epochs=2)
        >>> played.rows("by_plane").to_pylist()
        [{'plane': 'N1', 'total': 17}, {'plane': 'N1', 'total': 29}]
        """
        output = self._output(sink)
        tables = [self._rows.get(sink, {})[epoch] for epoch in sorted(self._rows.get(sink, {}))]
        tables.append(output.schema.empty_table())
        return _joined(tables, output.schema).select(output.schema.names)

    @user_call
    def current(self, sink: str) -> pa.Table:
        """Return the newest row of every key, or of every window of a key, that a sink got.

        With ``output="complete"`` these are the rows of the newest epoch; of changes, the rows of
        the table that are left, without the column ``change``. Rows that functions or joins emitted
        have no key that identifies them, so all of them are returned.

        Parameters
        ----------
        sink
            Name of the sink.

        Raises
        ------
        InvalidInputError
            If the flow has no such sink.

        Examples
        --------
        >>> played = gw.testing.run(delays, {"flights": ROWS}, epochs=2)
        >>> played.current("by_plane").to_pylist()
        [{'plane': 'N1', 'total': 29}]
        """
        output, rows = self._output(sink), self.rows(sink)
        of_epochs = self._rows.get(sink, {})
        if of_epochs and output.is_result and self.flow.operator(output.operator).complete:
            return of_epochs[max(of_epochs)]
        if output.kind == "changes" and rows.num_rows:
            return table_after(rows)
        if output.kind == "upserts" and output.table_keys and rows.num_rows:
            return table_after(rows, output.table_keys)
        if not output.unique_keys:
            return rows
        if () in output.unique_keys:  # the result of a whole stream is one row
            return rows.slice(max(rows.num_rows - 1, 0))
        return rows.filter(pa.array(last_of_each_key(rows.select(list(output.unique_keys[0])))))

    @user_call
    def state(
        self, operator: str, state: str | None = None, *, epoch: int | None = None
    ) -> pa.Table:
        """Return the state of an operator, with the rows and columns of ``gw.read_state``.

        Parameters
        ----------
        operator
            Name of the operator.
        state
            Name of one of its named states, or ``"timers"`` for its timers; required if it has
            several states.
        epoch
            Number of one of the last ten epochs; by default the last.

        Returns
        -------
        pyarrow.Table
            One row per key, or per part of a key's state; without rows and columns if the operator
            has no state yet.

        Raises
        ------
        InvalidFlowError
            If there is no such operator.
        CheckpointError
            If there is no such state, or the epoch is not retained.

        Examples
        --------
        >>> played = gw.testing.run(delays, {"flights": ROWS})
        >>> played.state("by_plane").column_names
        ['key_group', 'plane', 'total']
        """
        self.flow.operator(operator)
        table: pa.Table = plugins.in_district("godwit.ops.state_view", "state_table")(
            self._storage, operator, epoch, state
        )
        return table

    @property
    def late(self) -> list[RowsLeftOut]:
        """Events `godwit.events.RowsLeftOut`: one for each operator and epoch that dropped rows.

        Dropped are rows that are late, too far ahead of the clock, or without an event time.

        Examples
        --------
        >>> hourly = of_rows.key_by("plane").window(gw.tumbling("1 hour")).compute(n=gw.count())
        >>> delays.sink("hourly", hourly, gw.sinks.noop())
        >>> played = gw.testing.run(delays, {"flights": ROWS})
        >>> out = played.advance(watermarks={"flights": "2024-05-01 12:00"})
        >>> out = played.epoch({"flights": ROWS})
        >>> [event.late for event in played.late]
        [4]
        """
        return [event for event in self.events if isinstance(event, events.RowsLeftOut)]

    @property
    def now(self) -> dt.datetime:
        """Current time of the test's clock, in UTC; only `advance` moves it.

        Examples
        --------
        >>> gw.testing.cluster(delays, now="2024-05-01 08:00").now
        datetime.datetime(2024, 5, 1, 8, 0, tzinfo=datetime.timezone.utc)
        """
        return EPOCH + dt.timedelta(microseconds=self._clock_us)

    @property
    def watermarks(self) -> dict[str, dt.datetime]:
        """Name of a source → its watermark (newest event time less slack), if it has one.

        Rows after a map that may compute a new event time (every map on a source of `gw.sources`)
        have a watermark of their own. Its name is ``<source>/<operator>``, with the operator that
        reads these rows; ``/<number>`` follows if it is not the operator's first input.

        Examples
        --------
        >>> hourly = of_rows.key_by("plane").window(gw.tumbling("1 hour")).compute(n=gw.count())
        >>> delays.sink("hourly", hourly, gw.sinks.noop())
        >>> gw.testing.run(delays, {"flights": ROWS}).watermarks
        {'flights': datetime.datetime(2024, 5, 1, 10, 0, tzinfo=datetime.timezone.utc)}
        """
        times = self._driver.epochs.times.times.watermarks
        return {
            name: datetime_of(times[name])
            for names in self.flow.watermarks
            for name in names
            if times.get(name, -(2**62)) > -(2**61)
        }

    @property
    def executors(self) -> dict[str, int]:
        """Name of an executor → its number of lanes.

        Examples
        --------
        >>> gw.testing.cluster(delays, executors={"a": 2, "b": 1}).executors
        {'a': 2, 'b': 1}
        """
        return {name: executor.lanes for name, executor in self._driver.executors.items()}

    @property
    def placement(self) -> QueryPlacement:
        """Assignments of key groups and plans for them, as ``query.placement``.

        Examples
        --------
        >>> played = gw.testing.cluster(delays, executors=2)
        >>> played.placement.assignments["by_plane"].num_owned
        {'1': 128, '2': 128}
        """
        from godwit.runtime.placement import QueryPlacement  # noqa: PLC0415  it has planners

        return QueryPlacement(self.flow.name, self._driver)

    @property
    def components(self) -> QueryComponents:
        """Operators of each component, and changes of them, as ``query.components``.

        Examples
        --------
        >>> played = gw.testing.cluster(delays)
        >>> list(played.components)
        ['by_plane']
        >>> out = played.epoch({"flights": ROWS})
        >>> played.components.repartition({"by_plane": "plane"})  # its only key column: no change
        """
        from godwit.runtime.regrouping import QueryComponents  # noqa: PLC0415  it has policies

        return QueryComponents(self._driver)

    @property
    def hot_keys(self) -> QueryHotKeys:
        """Hot keys, divided among several lanes on request, as ``query.hot_keys``.

        Examples
        --------
        >>> def count(key, rows, seen):
        ...     seen.value += len(rows)
        >>> number = gw.ValueState(int, merge=lambda a, b: a + b)
        >>> by_plane = of_rows.key_by("plane")
        >>> seen = by_plane.process(count, name="seen", state=number, output="plane string")
        >>> delays.sink("seen", seen, gw.sinks.noop())
        >>> played = gw.testing.cluster(delays, executors=2)
        >>> played.hot_keys.spread("seen", "N1", left=2)
        >>> out = played.epoch({"flights": ROWS})
        >>> played.state("seen").num_rows
        2
        """
        from godwit.runtime.hot_keys import QueryHotKeys  # noqa: PLC0415  few tests have any

        return QueryHotKeys(self._driver)

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _reads(self) -> bool:
        """True if any source is read, and not replaced by rows of the test."""
        return any(name not in self._given for name in self.flow.own_sources)

    def _stand_for(self, names: Iterable[str]) -> None:
        """From now on, use rows of the test instead of the sources `names`, or raise.

        Raises `InvalidInputError` if one of them has been read already.
        """
        for name in names:
            if name in self._driver.sources.positions:
                raise InvalidInputError(
                    f"Rows were given for source {name!r}, which has been read.",
                    remedy="Let it have these rows; or give rows from the first epoch on, which "
                    "then stand for what it reads.",
                    source=name,
                )
        self._given.update(name for name in names if name in self.flow.own_sources)

    def _open(self) -> None:
        """Open the sources that are read."""
        self._driver.sources.open(n for n in self.flow.own_sources if n not in self._given)

    def _end_with_what_is_there(self) -> None:
        """Fix the end of every source at the rows that it has now."""
        self._open()
        self._driver.sources.fix_ends()

    def _play(self, inputs: Mapping[str, Rows], *, limit: int | None = None) -> bool:
        """Run an epoch over rows of the test and of sources; return ``False`` if there are none."""
        self._open()
        if not inputs and self._reads:
            ran = self._driver.read_epoch(limit=limit) is not None
        else:
            tables = {
                source: table_of(source, given, self._schemas[source], self._needed[source])
                for source, given in inputs.items()
            }
            rows = lane_inputs(self.flow, tables, self._apply_maps)
            ran = self._driver.read_epoch(rows, limit=limit) is not None
        for _ in self._driver.run_until_idle():
            pass
        return ran

    def _settled(self, first: int) -> dict[str, pa.Table]:
        """Run the epochs that are due; return sink → its rows from epoch `first` on."""
        for _ in self._driver.run_until_idle():
            pass
        rows = _NewRows(self)
        for sink, of_epochs in self._rows.items():
            tables = [table for epoch, table in sorted(of_epochs.items()) if epoch >= first]
            if tables:
                rows[sink] = _joined(tables, tables[-1].schema)
        return rows

    def _deliver_last(self) -> None:
        """Deliver the last committed epoch, if its run did not."""
        if (latest := self._driver.log.latest) is not None:
            self._delivered(latest)

    def _delivered(self, record: CommitRecord) -> None:
        """Store the rows that an epoch delivers to sinks, unless they have them."""
        if self._last_delivered is None or record.epoch <= self._last_delivered:
            return
        self._last_delivered = record.epoch
        for sink, batches in staged_rows(record, self._storage).items():
            self._rows.setdefault(sink, {})[record.epoch] = pa.Table.from_batches(batches)

    def _apply_maps(self, source: str, maps: tuple[Any, ...], table: pa.Table) -> pa.Table:
        """Return input rows after a source's DataFrame maps."""
        return map_rows(source, maps, self._logical.sources[source], table)

    def _newest(self, watermarks: Mapping[str, Moment]) -> dict[int, int]:
        """Return watermark number → event time to which it advances; raise if a source has none."""
        check_sources(watermarks, self.flow.sources)
        newest = {}
        for source, moment in watermarks.items():
            source_time = self.flow.times.get(source)
            if source_time is None:
                raise InvalidInputError(
                    f"Source {source!r} has no event time that the flow uses, so no watermark.",
                    remedy=f"Sources with one are {listing(list(self.flow.times)) or 'none'}.",
                    source=source,
                )
            max_event_time = micros(moment, f"the watermark of {source!r}") + source_time.slack_us
            for number, names in enumerate(self.flow.watermarks):
                if names[0].partition("/")[0] == source:
                    newest[number] = max_event_time
        return newest

    def _check_executor(self, executor: str) -> None:
        """Raise if the run has no executor of this name."""
        if executor not in self.executors:
            raise InvalidPlanError(
                f"There is no executor {executor!r}.",
                remedy=f"Executors are {listing(list(self.executors))}.",
                executor=executor,
            )

    def _output(self, sink: str) -> SinkOutput:
        """Return the output of a sink; raise if there is no such sink."""
        outputs = {output.name: output for output in self.flow.outputs}
        if sink not in outputs:
            raise InvalidInputError(
                f"Flow {self.flow.name!r} has no sink {sink!r}.",
                remedy=f"{did_you_mean(str(sink), list(outputs))}Its sinks are "
                f"{listing(list(outputs))}.",
                sink=sink,
            )
        return outputs[sink]


class _NewRows(dict[str, pa.Table]):
    """New rows by sink; a sink of the flow that is not in it has an empty table."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __missing__(self, sink: str) -> pa.Table:
        return self._run._output(sink).schema.empty_table()  # noqa: SLF001  one class in two parts


def _joined(tables: list[pa.Table], columns: pa.Schema) -> pa.Table:
    """Return tables as one; times of flows with other time zones get the zones of `columns`."""
    zoned = {f.name: f.type for f in columns if pa.types.is_timestamp(f.type) and f.type.tz}
    for number, table in enumerate(tables):
        fields = [
            f.with_type(zoned[f.name])
            if f.name in zoned and pa.types.is_timestamp(f.type) and f.type.tz
            else f
            for f in table.schema
        ]
        tables[number] = table.cast(pa.schema(fields))
    return pa.concat_tables(tables, promote_options="permissive")


def _lanes(executors: Any) -> dict[str, int]:
    """Return executor → number of lanes, from a user's value; raise if it is not valid."""
    if isinstance(executors, int) and not isinstance(executors, bool) and executors > 0:
        return {str(number): 1 for number in range(1, executors + 1)}
    if hasattr(executors, "items") and executors:
        lanes = {str(name): number for name, number in executors.items()}
        if all(isinstance(number, int) and number > 0 for number in lanes.values()):
            return lanes
    raise InvalidInputError(
        f"{executors!r} was given for executors.",
        remedy='Give a number of executors, or names and lanes, as in {"1": 2, "2": 2}.',
    )


def _schema_of(source: str, dataframe: Any) -> pa.Schema:
    """Return the columns of a source that is a DataFrame or a stand-in."""
    if is_stand_in(dataframe):
        return dataframe.schema
    return to_schema(dataframe.schema, where=f"The schema of source {source!r}")


def _columns_read(flow: CompiledFlow) -> dict[str, set[str]]:
    """Return source → columns that its rows must have, as far as that is known."""
    needed: dict[str, set[str]] = {source: set() for source in flow.sources}
    for flow_input in flow.inputs:
        if isinstance(flow_input, SourceInput) and not flow_input.maps:
            needed[flow_input.source].update(flow_input.columns)
            if flow_input.time is not None:
                needed[flow_input.source].add(flow_input.time.name)
    return needed
