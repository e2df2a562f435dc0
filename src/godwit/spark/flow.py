"""A flow as users build it: the logical flow, its sources in a Spark session, and its start.

This module does not import Spark, so that ``import godwit`` does not either; the code that runs the
flow is imported when it is explained or started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import is_stand_in
from godwit.engine.settings import Lanes
from godwit.migration.strategy import Policy
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import type_name
from godwit.model.text import show, text_block
from godwit.plan.explain import explain
from godwit.plan.grouping import checked_components
from godwit.runtime.settings import (
    Checkpointing,
    Observability,
    Options,
    Sizing,
    Trigger,
    checked_trigger,
)
from godwit.sinks.checks import check_columns_of_sinks, check_places

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from godwit.plan.compiled import CompiledFlow

    # under the names that users know
    from godwit.runtime.ports import AdaptationSettings as Adaptation
    from godwit.runtime.ports import ControlSettings as Control
    from godwit.runtime.query import Query
    from godwit.sinks.continuity import OnDivergence


class Flow(LogicalFlow):
    """A stateful stream program: a DAG of sources, keyed operators and sinks.

    Parameters
    ----------
    name
        Name of the flow. It is stored in the checkpoint: only a flow of the same name can resume
        it.
    num_key_groups
        Number of key groups that the keys of every operator are divided into, 1 to 32768, as
        Flink's maximum parallelism. At most this many lanes (parallel tasks) can process an
        operator, and load is balanced in units of key groups. A later start may have another number
        with ``gw.Checkpointing(repartition=True)``, which rewrites all state.

    Raises
    ------
    InvalidFlowError
        If the name or the number of key groups is not valid.

    Examples
    --------
    >>> import godwit as gw
    >>> flow = gw.Flow("delays")
    >>> flights = flow.source("flights", spark.readStream.parquet("in/"))  # doctest: +SKIP
    >>> total = flights.key_by("tailnum").compute(total=gw.sum("arr_delay"))  # doctest: +SKIP
    >>> flow.sink("totals", total, gw.sinks.parquet("out/"))  # doctest: +SKIP
    >>> query = flow.start(checkpoint="checkpoint/")  # doctest: +SKIP
    """

    __slots__ = ()

    def _check_source(self, name: str, dataframe: Any) -> None:
        """Raise unless a DataFrame fits the flow's sources: of one session, without Spark state."""
        stand_ins = [name_ for name_, source in self.sources.items() if is_stand_in(source)]
        if len(stand_ins) < len(self.sources) if is_stand_in(dataframe) else stand_ins:
            raise InvalidFlowError(
                f"Some sources of flow {self.name!r} are DataFrames of a session, and some are "
                "stand-ins (gw.testing.stream).",
                remedy="Use DataFrames for all of them, or stand-ins for all.",
                source=name,
            )
        if is_stand_in(dataframe):
            return
        self._check_session(name, dataframe)
        from godwit.spark.stages.source_plans import check_plan  # noqa: PLC0415  it loads Spark

        is_query = self._query_watermark is not None
        check_plan(dataframe, f"Source {name!r}", epochs_are_batches=is_query, source=name)

    def _check_session(self, name: str, dataframe: Any) -> None:
        """Raise for a DataFrame of Spark Connect, or of another session."""
        session = dataframe.sparkSession
        if not hasattr(session, "_jsparkSession"):
            raise InvalidFlowError(
                f"Source {name!r} was given a DataFrame of a Spark Connect session.",
                remedy="Create it in a classic session (SparkSession.builder.master(...)): placing "
                "tasks on executors needs the SparkContext.",
                source=name,
            )
        for other, known in self.sources.items():
            if known.sparkSession._jsparkSession != session._jsparkSession:  # noqa: SLF001
                raise InvalidFlowError(
                    f"Sources {other!r} and {name!r} come from two Spark sessions.",
                    remedy="Read all sources of a flow in one session: they run as one query, "
                    "under the settings of one session.",
                    source=name,
                )

    @user_call
    def explain(self) -> None:
        """Print how the flow would run: sources, operators by component with their state, sinks.

        In a notebook the graph is shown too.

        Raises
        ------
        InvalidFlowError
            If the flow cannot run; the message names the place and a remedy.
        SinkError
            If the configuration of a sink does not fit its rows. No target is asked.

        Examples
        --------
        >>> delays.explain()
        Flow 'delays': 1 source, 1 keyed operator on 1 level, 1 sink
        ...
        """
        compiled = self.compiled()
        if self.sources and not any(map(is_stand_in, self.sources.values())):
            from godwit.spark.start import (  # noqa: PLC0415  it loads Spark
                check_places_of,
            )

            check_places_of(self, compiled)
        else:
            check_places(compiled)
        check_columns_of_sinks(compiled)
        text = explain(compiled)
        show(text, f"<div>{self._as_svg()}{text_block(text)}</div>")

    @user_call
    def compiled(self) -> CompiledFlow:
        """Return the plan of the flow: its operators with the types of all columns.

        The types of sources that are DataFrames are those of their Spark session. `explain` prints
        the plan; `start` compiles it by itself.

        Raises
        ------
        InvalidFlowError
            If the flow cannot run; the message names the place and a remedy.

        Examples
        --------
        >>> [operator.name for operator in delays.compiled().operators]
        ['by_plane']
        """
        if all(map(is_stand_in, self.sources.values())):
            return super().compiled()
        from godwit.spark.start import (  # noqa: PLC0415  it loads Spark
            compile_flow,
            session_of,
        )

        return compile_flow(self, session_of(self, None))

    @user_call
    def start(
        self,
        *,
        checkpoint: str | os.PathLike[str],
        session: SparkSession | None = None,
        trigger: Trigger | None = None,
        executors: int = 1,
        name: str | None = None,
        control: Control | None = None,
        components: Mapping[str, Sequence[str]] | None = None,
        policy: Policy | None = None,
        close_at_end: bool = False,
        on_divergence: OnDivergence = "refuse",
        checkpointing: Checkpointing | None = None,
        lanes: Lanes | None = None,
        sizing: Sizing | None = None,
        adaptation: Adaptation | None = None,
        observability: Observability | None = None,
        initial: Mapping[str, Any] | None = None,
        initial_watermark: dt.datetime | str | None = None,
        from_epoch: int | str | None = None,
        as_of: dt.datetime | str | None = None,
    ) -> Query:
        """Start the flow.

        Parameters
        ----------
        checkpoint
            Directory of the checkpoint: a path, or a URI that both ``pyarrow.fs`` and Spark can
            open. It is created if absent; if it has epochs of this flow, the flow resumes after the
            last one.
        session
            Spark session for a flow over Godwit's own sources; by default the active one, or a new
            one if there is none (``SparkSession.builder.getOrCreate()``). A flow over DataFrames
            runs in the session of these.
        trigger
            Trigger of epochs, as in Spark: ``{"availableNow": True}`` or ``{"processingTime": "1
            second"}``; by default an epoch starts as soon as the last one has ended. See
            `gw.types.Trigger`.
        executors
            Number of executors to wait for before the first epoch. If fewer are there after
            ``executors_timeout_s`` of `gw.Sizing` (60 s by default), the start fails. Executors
            beyond this number are used too.
        name
            Name of the Spark query; by default the flow's.
        control
            Enables automatic balancing and scaling, as in ``gw.Control(period="10 seconds")``. By
            default key groups move only on calls such as ``query.migrate``, or if an executor is
            lost.
        components
            Component → names of its operators, which run in the same tasks, behind one exchange
            (shuffle by key), and whose key groups move together. Operators that are not named keep
            the component that they have in the checkpoint; new ones get a component each.
            ``query.components.regroup`` changes this while the query runs.
        policy
            Settings for recovery after the loss of an executor, and for copies of state; see
            `gw.migration.Policy`.
        close_at_end
            ``True``: at the end of a bounded input (``availableNow``) open windows are emitted and
            all event-time timers fire, as in Flink; rows that a later run brings for the windows
            are late. By default windows and timers stay for the next run, as in Spark.
        on_divergence
            Action if the epochs in a sink's target differ from those in the checkpoint, as after
            one of the two was restored from a backup, or another copy of the query wrote to the
            target. ``"refuse"``: fail the start. ``"roll_back"``: remove from the target the epochs
            that are not in the checkpoint. ``"new_writer"``: leave the target as it is, and write
            as a new writer. A mapping of sink name → action sets it per sink. The guide to sinks
            lists the targets that can be rolled back.
        checkpointing
            Access to the checkpoint, and number of epochs that it retains; see `gw.Checkpointing`.
        lanes
            Local stores, snapshots, compression, hot keys and resident lanes; see `gw.Lanes`.
        sizing
            Time to wait for executors, and the first assignment of key groups; see `gw.Sizing`.
        adaptation
            Automatic changes of the plan, such as fusing operators; see `gw.control.Adaptation`. By
            default there are none, except that windows with ``consolidate="measured"`` choose their
            layout.
        observability
            Metrics for Prometheus, and a live web page; see `gw.Observability`. By default neither
            is served.
        initial
            State that operators begin with, if the checkpoint has no epoch yet: operator → rows of
            its state, with the key columns and the columns that `gw.read_state` shows; of an
            operator with named states, operator → state → rows. Rows are a DataFrame (such as one
            of `gw.read_state`), a ``pyarrow.Table`` or dataset, a ``deltalake.DeltaTable``, a
            pandas DataFrame, a list of dicts, or a Parquet directory. A checkpoint that began with
            the same operators and columns continues without reading them again (event
            `gw.events.InitialStateIgnored`).
        initial_watermark
            Watermark that `initial` goes with, a datetime or ISO 8601 text: windows that end by
            then have been emitted, and rows before it are late. By default no window has been.
        from_epoch
            Epoch to continue after, instead of the last one: its number, or the name under which
            ``godwit checkpoint keep`` keeps it. Later epochs are taken back permanently; give
            `on_divergence` for targets that have them. If the last such start was given the same,
            this one continues after the epochs since.
        as_of
            The same for the last epoch that was committed by this time, a datetime or ISO 8601
            text (UTC without a zone).

        Returns
        -------
        Query
            The running query.

        Raises
        ------
        InvalidFlowError
            If the flow or an option is wrong; the checkpoint and the sinks are untouched then.
        InvalidPlanError
            If operators of one component cannot run together.
        CheckpointError
            If the checkpoint cannot be used, belongs to another flow, or is in use by another
            query, or cannot start from the epoch asked for.
        SourceError, SinkError
            If a source or the target of a sink cannot be opened, or a target differs from the
            checkpoint (`on_divergence`).
        InvalidInputError
            If rows of `initial` do not fit the state, or give a key twice.
        EpochFailedError
            If fewer than `executors` executors have registered in time.

        Notes
        -----
        Rows of ``initial`` have the key columns and, by operator:

        - ``compute``: the results, where a result is its own state (``sum``, ``count``, ``min``,
          ``max``); else its parts, such as ``mean__sum`` and ``mean__count``
        - windows: ``window_start`` and ``window_end``, or ``pane``, and as ``compute``
        - sessions: ``window_start`` and ``window_end``, or ``first`` and ``last``, and as
          ``compute``
        - ``drop_duplicates``: none; with ``within=``: ``seen``, the event time of the row that has
          passed
        - ``join``: ``side`` (0: left, 1: right), ``moment``, and the columns of the side
        - ``process``: ``value`` (a class is a struct of its fields), or ``state`` as JSON text;
          ``timers`` (a list of times); ``expires``
        - named states: operator → state → rows with ``value``: a value, a list, or a map

        Examples
        --------
        >>> more, counted = gw.sources.memory("origin string"), gw.sinks.memory()
        >>> more.add([("JFK",), ("LGA",), ("JFK",)])
        >>> other = gw.Flow("airports")
        >>> counts = other.source("flights", more).key_by("origin").compute(flights=gw.count())
        >>> other.sink("counts", counts, counted)
        >>> other.start(checkpoint="other/", trigger={"availableNow": True}).awaitTermination()
        >>> sorted(counted.table()["flights"].to_pylist())
        [1, 2]
        """
        options = Options(
            checkpoint=_path("checkpoint", checkpoint),
            session=session,
            trigger=checked_trigger(trigger),
            executors=executors,
            name=name,
            control=control,
            components=checked_components({} if components is None else components),
            policy=Policy() if policy is None else policy,
            close_at_end=close_at_end,
            on_divergence=on_divergence,
            checkpointing=Checkpointing() if checkpointing is None else checkpointing,
            lanes=Lanes() if lanes is None else lanes,
            sizing=Sizing() if sizing is None else sizing,
            adaptation=adaptation,
            observability=Observability() if observability is None else observability,
            initial=initial,
            initial_watermark=initial_watermark,
            from_epoch=from_epoch,
            as_of=as_of,
        )
        if self.sources and all(map(is_stand_in, self.sources.values())):
            raise InvalidFlowError(
                f"Flow {self.name!r} is built on gw.testing.stream(...), which has no rows.",
                remedy="Build it on DataFrames of spark.readStream to start it, or play it by "
                "gw.testing.run(flow, {...}).",
                flow=self.name,
            )
        if not self.sources:
            # Mistakes in it are reported before a session is created.
            check_places(self.compiled(), options.checkpoint)
        from godwit.spark.start import start  # noqa: PLC0415  it loads Spark

        return start(self, options)


def _path(option: str, value: Any) -> str:
    """Return a path-like option as text; raise `InvalidFlowError` for another type."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str):
            return path
    raise InvalidFlowError(
        f"The option {option} of start is of type {type_name(value)}.",
        remedy=f'Give a directory, as in {option}="checkpoints/delays".',
    )
