"""A flow as users build it: the logical flow, its sources in a Spark session, and its start.

This module loads no Spark, so that ``import godwit`` does not either; what runs the flow is loaded
when it is explained or started.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import is_stand_in
from godwit.cluster.spark.query.options import Options
from godwit.cluster.spark.query.triggers import Trigger, checked_trigger
from godwit.engine.settings import LaneSettings
from godwit.migration.strategy import Policy
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import type_name
from godwit.plan.regrouping import checked_components

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.adapt.fusing import Fusion
    from godwit.adapt.settings import Control
    from godwit.adapt.splitting import Splitting
    from godwit.cluster.spark.query.query import Query
    from godwit.model.assignment import Assignment
    from godwit.plan.compiled import CompiledFlow
    from godwit.sinks.continuity import OnDivergence

__all__ = ["Flow"]


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
        others = [other for other in self._sources if is_stand_in(self._sources[other].dataframe)]
        if len(others) < len(self._sources) if is_stand_in(dataframe) else others:
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
        session = dataframe.sparkSession
        if not hasattr(session, "_jsparkSession"):
            raise InvalidFlowError(
                f"Source {name!r} was given a DataFrame of a Spark Connect session.",
                remedy="Make it in a classic session (SparkSession.builder.master(...)): placing "
                "tasks on executors needs the SparkContext.",
                source=name,
            )
        for other, known in self._sources.items():
            if known.dataframe.sparkSession._jsparkSession != session._jsparkSession:  # noqa: SLF001
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
        sys.stdout.write(self.compiled().explain() + "\n")

    def compiled(self) -> CompiledFlow:
        """Compile with the columns of the sources, which their session knows."""
        if all(map(is_stand_in, self.sources.values())):
            return super().compiled()
        from godwit.cluster.spark.query.runtime import compile_flow  # noqa: PLC0415  it loads Spark

        return compile_flow(self)

    @user_call
    def start(
        self,
        *,
        checkpoint: str | os.PathLike[str],
        trigger: Trigger | None = None,
        executors: int = 1,
        executors_timeout_s: float = 60.0,
        assignments: Mapping[str, Assignment] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        policy: Policy | None = None,
        retain_epochs: int = 10,
        snapshot_budget_bytes: int = 32 * 2**20,
        snapshot_growth: float = 4.0,
        inline_bytes: int = 16 * 2**10,
        compression: Literal["lz4", "zstd"] | None = None,
        hot_keys: float = 0.1,
        name: str | None = None,
        access: Literal["owner", "umask"] = "owner",
        single_driver: bool = False,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        control: Control | None = None,
        close_at_end: bool = False,
        components: Mapping[str, Sequence[str]] | None = None,
        fusion: Fusion | None = None,
        splitting: Splitting | None = None,
        on_divergence: OnDivergence = "refuse",
    ) -> Query:
        """Start the flow.

        Parameters
        ----------
        checkpoint
            Directory of the checkpoint: a path, or a URI that both ``pyarrow.fs`` and Spark open.
            Starting again from it resumes the flow.
        trigger
            When epochs run: ``{"availableNow": True}`` or ``{"processingTime": "1 second"}``; by
            default epochs follow each other at once.
        executors
            Executors to wait for before the first epoch, at most `executors_timeout_s` seconds.
        executors_timeout_s
            Seconds.
        assignments
            Component → assignment to begin a new checkpoint with (`components` has the names); the
            others are dealt out evenly. A checkpoint that is resumed goes on with its own.
        local_dir
            Directory for local stores on every executor; by default the executor's own Spark
            directory. What is in it may vanish at any time.
        policy
            What happens to key groups of an executor that dies, and more.
        retain_epochs
            Epochs whose state stays readable by ``gw.read_state(epoch=...)``.
        snapshot_budget_bytes
            State rewritten as snapshots in one epoch, at most (one key group always may).
        snapshot_growth
            A snapshot is due when reading the changelog costs this many times what reading the
            snapshot costs: larger writes less, smaller recovers and migrates faster.
        inline_bytes
            What one lane writes up to this size travels in the commit record and not as a file.
        compression
            Arrow IPC compression of changelog and staged output. Worth it for object stores; local
            disks are faster without.
        hot_keys
            Rows of a key that has this much of what a lane gets on average are combined before they
            are sent to its lane, where the operator can merge them; 0: only where combining pays
            for all keys. ``query.lastProgress["hotKeys"]`` names such keys.
        name
            Name of the Spark query; by default the flow's.
        access
            Who may read the checkpoint on a local disk: its owner alone (0700, 0600), or whomever
            the umask lets, as where executors run as another user than the driver.
        single_driver
            Vouches that no second driver can ever be started on this checkpoint. Needed only on
            stores where a file cannot be created only if there is none.
        metrics_port
            Port on which Prometheus may read the query's metrics while it runs; 0 takes any that is
            free, and ``query.metrics_url`` says which. Needs
            ``pip install 'godwit-streams[metrics]'``.
        metrics_host
            Address that the port is opened on: by default only this machine can reach it.
        control
            Lets the stream balance and scale itself, as in ``gw.Control(period="10 seconds")``;
            by default nothing moves unless somebody says so.
        close_at_end
            Whether windows that are still open come out, and timers fire, once a bounded input
            (``availableNow``) has ended, as where no run is to follow. By default they stay open
            for the next run, as in Spark: rows of theirs would be late in it.
        components
            Component → names of the operators that are to share it, and with it one assignment and
            one exchange; operators that are not named are as the checkpoint has them, or each by
            itself. ``query.components.regroup`` changes it while the query runs.
        fusion
            Lets operators in a row that send each other many rows come to share a component while
            the stream runs, and part again, as in ``gw.Fusion()``; operators that are named in
            `components`, or by ``query.components.regroup``, are left alone. By default nobody but
            you does.
        splitting
            How it is decided where windows with ``consolidate="measured"`` are consolidated, as in
            ``gw.Splitting(max_latency="500 milliseconds")``; by default as that is by itself.
        on_divergence
            What to do with a sink whose target does not go on from the checkpoint, since one of the
            two was restored from a backup, or another copy of the query wrote to the target:
            ``"refuse"`` the start, ``"roll_back"`` the target to the checkpoint's last epoch, or
            go on as a ``"new_writer"``, whatever the target has. A mapping from a sink's name says
            it for one sink. The guide to sinks says what each target can do.

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
            trigger=checked_trigger(trigger),
            executors=executors,
            executors_timeout_s=executors_timeout_s,
            assignments={} if assignments is None else assignments,
            policy=Policy() if policy is None else policy,
            retain_epochs=retain_epochs,
            lanes=LaneSettings(
                local_dir=None if local_dir is None else _path("local_dir", local_dir),
                snapshot_budget_bytes=snapshot_budget_bytes,
                snapshot_growth=snapshot_growth,
                inline_bytes=inline_bytes,
                compression=compression,
                hot_keys=hot_keys,
            ),
            access=access,
            single_driver=single_driver,
            close_at_end=close_at_end,
            components=checked_components({} if components is None else components),
            fusion=fusion,
            splitting=splitting,
            on_divergence=on_divergence,
            name=name,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            control=control,
        )
        if self._sources and all(map(is_stand_in, self.sources.values())):
            raise InvalidFlowError(
                f"Flow {self.name!r} stands on gw.testing.stream(...), which has no rows.",
                remedy="Build it on DataFrames of spark.readStream to start it, or play it by "
                "gw.testing.run(flow, {...}).",
                flow=self.name,
            )
        from godwit.cluster.spark.query.runtime import start  # noqa: PLC0415  it loads Spark

        return start(self, options)


def _path(option: str, value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str):
            return path
    raise InvalidFlowError(
        f"The option {option} of start is of type {type_name(value)}.",
        remedy=f'Give a directory, as in {option}="checkpoints/delays".',
    )
