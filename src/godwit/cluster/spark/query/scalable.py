"""``query.scale(n)``: what is asked, and whether it can be."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from godwit.cluster.spark.query.balancing import AnyStrategy, Balancing
from godwit.cluster.spark.query.plans import checked_bounds, checked_strategy
from godwit.cluster.spark.query.scaling import Scaling
from godwit.migration import Strategy
from godwit.model.checks import insist_on_number
from godwit.model.errors import ScalingError
from godwit.model.frames import user_call
from godwit.model.naming import type_name
from godwit.model.wording import counted
from godwit.planning import planner as planner_named

if TYPE_CHECKING:
    from godwit.cluster.spark.run.run import Run
    from godwit.migration import Bounds

__all__ = ["Scalable"]


class Scalable(Balancing):
    """What a query can do about the number of its executors; the query itself gives the means."""

    _run: Run
    _scaling: Scaling | None = None

    @property
    @abstractmethod
    def isActive(self) -> bool:  # noqa: N802  StreamingQuery's name
        """Whether the query is running."""

    @property
    def scaling(self) -> Scaling | None:
        """The last scaling that was asked for by hand, if any."""
        return self._scaling

    @user_call
    def scale(
        self,
        executors: int,
        *,
        planner: str = "milp",
        strategy: AnyStrategy = Strategy.LIVE,
        bounds: Bounds | None = None,
        timeout_s: float | None = None,
    ) -> Scaling:
        """Go on with another number of executors, while the stream flows.

        More: the cluster is asked for them, and once they have come they are given their share.
        Fewer: those with the least state (draining ones first) are emptied, and given back to the
        cluster between two epochs.

        Parameters
        ----------
        executors
            How many there are to be.
        planner
            Name of the planner that says where key groups go, as in `godwit plan`.
        strategy, bounds
            How key groups move, as for `migrate`.
        timeout_s
            Seconds that executors which the cluster is asked for are waited for; by default the
            `executors_timeout_s` that the query was started with.

        Returns
        -------
        Scaling
            Returns at once; ``wait()`` on it if need be. It goes on if that is interrupted.

        Raises
        ------
        ScalingError
            If the number makes no sense, executors cannot be added or removed here, another
            scaling is under way, or the query has stopped.
        InvalidProblemError
            If the planner does not exist.
        """
        if isinstance(executors, bool) or not isinstance(executors, int) or executors < 1:
            told = executors if isinstance(executors, int) else f"{executors!r}"
            raise ScalingError(
                f"scale was asked for {told} executors"
                + ("." if isinstance(executors, int) else f", of type {type_name(executors)}."),
                remedy="Give a whole number that is at least 1; query.stop() ends the query.",
            )
        if timeout_s is not None:
            insist_on_number(
                "The timeout_s of scale", timeout_s, least=0, whole=False, error=ScalingError
            )
        if not self.isActive:
            raise ScalingError(
                "The query has stopped, so it has no executors to be scaled.",
                remedy="Start the flow again from its checkpoint, and scale that query.",
            )
        if self._scaling is not None and not self._scaling.done:
            raise ScalingError(
                f"A scaling to {counted(self._scaling.wanted, 'executor')} is under way: "
                f"{self._scaling.stage}.",
                remedy="Wait for its end, or cancel it (query.scaling.cancel()).",
            )
        chosen, limits = checked_strategy(strategy), checked_bounds(bounds)
        planner_named(planner).load()
        self._run.pool.insist_on_scaling()
        if self._run.controlling is not None:
            self._run.controlling.scaled_by_hand()
        self._scaling = Scaling(
            executors,
            query=self,
            pool=self._run.pool,
            conducting=self._run.conducting,
            planner=planner,
            strategy=chosen,
            bounds=limits,
            patience_s=timeout_s,
        )
        return self._scaling
