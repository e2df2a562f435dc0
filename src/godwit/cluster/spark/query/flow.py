"""A flow as users build it: the logical flow, its sources in a Spark session, and its start.

This module loads no Spark, so that ``import godwit`` does not either; what runs the flow is loaded
when it is explained or started.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import is_stand_in
from godwit.cluster.spark.query.settings import (
    Adaptation,
    Checkpointing,
    Observability,
    Options,
    Sizing,
    Trigger,
    checked_trigger,
)
from godwit.engine.settings import Lanes
from godwit.migration.strategy import Policy
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import type_name
from godwit.plan.explain import explain
from godwit.plan.grouping import checked_components

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from godwit.adapt.settings import Control
    from godwit.cluster.spark.query.query import Query
    from godwit.plan.compiled import CompiledFlow
    from godwit.sinks.continuity import OnDivergence


class Flow(LogicalFlow):
    """A stateful stream program: a DAG of sources, keyed operators and sinks.

    Parameters
    ----------
    name
        A checkpoint belongs to the flow of one name.
    num_key_groups
        How many key groups every operator's keys fall into, 1 to 32768; fixed at first launch. It
        bounds how many lanes can work at once, and how finely load can be balanced.

    Raises
    ------
    InvalidFlowError
        If the name or the number of key groups will not do.

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
        """Refuse DataFrames that are not classic, of another session, or that need state."""
        others = [other for other, known in self.sources.items() if is_stand_in(known)]
        if len(others) < len(self.sources) if is_stand_in(dataframe) else others:
            raise InvalidFlowError(
                f"Some sources of flow {self.name!r} are DataFrames of a session, and some are "
                "stand-ins (gw.testing.stream).",
                remedy="Make all of them the one or the other.",
                source=name,
            )
        if is_stand_in(dataframe):
            return
        self._check_session(name, dataframe)
        from godwit.cluster.spark.stages.source_plans import check_plan  # noqa: PLC0415  it loads Spark

        check_plan(dataframe, f"Source {name!r}", source=name)

    def _check_session(self, name: str, dataframe: Any) -> None:
        """Refuse a DataFrame of Spark Connect, or of another session."""
        session = dataframe.sparkSession
        if not hasattr(session, "_jsparkSession"):
            raise InvalidFlowError(
                f"Source {name!r} was given a DataFrame of a Spark Connect session.",
                remedy="Make it in a classic session (SparkSession.builder.master(...)): placing "
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
        """Print how the flow would run.

        Raises
        ------
        InvalidFlowError
            Says what is wrong with the flow, where, and what to do about it.
        """
        sys.stdout.write(explain(self.compiled()) + "\n")

    def compiled(self) -> CompiledFlow:
        """Compile with the columns of the sources, which their session knows."""
        if all(map(is_stand_in, self.sources.values())):
            return super().compiled()
        from godwit.cluster.spark.query.runtime import (  # noqa: PLC0415  it loads Spark
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
    ) -> Query:
        """Start the flow.

        Parameters
        ----------
        checkpoint
            Directory of the checkpoint: a path, or a URI that both ``pyarrow.fs`` and Spark open.
            Starting again from it resumes the flow.
        session
            Spark session that a flow over Godwit's own sources runs in; by default the active one,
            and a new one where there is none (``SparkSession.builder.getOrCreate()``). A flow over
            DataFrames runs in theirs.
        trigger
            When epochs run: ``{"availableNow": True}`` or ``{"processingTime": "1 second"}``; by
            default epochs follow each other at once.
        executors
            Executors to wait for before the first epoch, for as long as `sizing` says.
        name
            Name of the Spark query; by default the flow's.
        control
            Lets the stream balance and scale itself, as in ``gw.Control(period="10 seconds")``;
            by default nothing moves unless somebody says so.
        components
            Component → names of the operators that are to share it, and with it one assignment and
            one exchange; operators that are not named are as the checkpoint has them, or each by
            itself. ``query.components.regroup`` changes it while the query runs.
        policy
            What happens to key groups of an executor that dies, and more; see `gw.Policy`.
        close_at_end
            Whether windows that are still open come out, and timers fire, once a bounded input
            (``availableNow``) has ended, as where no run is to follow. By default they stay open
            for the next run, as in Spark: rows of theirs would be late in it.
        on_divergence
            What to do with a sink whose target does not go on from the checkpoint, since one of the
            two was restored from a backup, or another copy of the query wrote to the target:
            ``"refuse"`` the start, ``"roll_back"`` the target to the checkpoint's last epoch, or
            go on as a ``"new_writer"``, whatever the target has. A mapping from a sink's name says
            it for one sink. The guide to sinks says what each target can do.
        checkpointing
            Who may use the checkpoint, and how much of its past stays; see `gw.Checkpointing`.
        lanes
            Local stores, snapshots, compression, hot keys; see `gw.Lanes`.
        sizing
            How long executors are waited for, and where key groups begin; see `gw.Sizing`.
        adaptation
            What the plan may change by itself; see `gw.Adaptation`. By default nothing does.
        observability
            Metrics for Prometheus; see `gw.Observability`. By default there are none.

        Returns
        -------
        Query
            The running query.

        Raises
        ------
        InvalidFlowError
            If the flow or an option is wrong; nothing was touched then.
        InvalidPlanError
            If operators of one component could not run together.
        CheckpointError
            If the checkpoint cannot be used, or belongs to another flow.
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
            adaptation=Adaptation() if adaptation is None else adaptation,
            observability=Observability() if observability is None else observability,
        )
        if self.sources and all(map(is_stand_in, self.sources.values())):
            raise InvalidFlowError(
                f"Flow {self.name!r} stands on gw.testing.stream(...), which has no rows.",
                remedy="Build it on DataFrames of spark.readStream to start it, or play it by "
                "gw.testing.run(flow, {...}).",
                flow=self.name,
            )
        if not self.sources:
            self.compiled()  # what is wrong with it is told before a session is made
        from godwit.cluster.spark.query.runtime import start  # noqa: PLC0415  it loads Spark

        return start(self, options)


def _path(option: str, value: Any) -> str:
    """Return an option as a path, or refuse it."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str):
            return path
    raise InvalidFlowError(
        f"The option {option} of start is of type {type_name(value)}.",
        remedy=f'Give a directory, as in {option}="checkpoints/delays".',
    )
