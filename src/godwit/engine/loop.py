"""The epoch loop: what happens in an epoch, on every cluster and in the simulator.

The epoch protocol, step by step; a crash between any two steps loses nothing:

1. ask the conductor how every component runs, waiting while epochs are held; tell the lanes what
   they need;
2. run the chain of stages: lanes write files that nobody names yet, and report them;
3. commit: one record names the files that count. *This is the moment.*
4. tell the conductor the outcome, show it to the observer (controller, policies, journal), and
   deliver the staged output to the sinks (again after a crash: sinks are idempotent by epoch);
5. return, and the source commits its own offsets. A batch that is offered again but has its record
   is done: its output was delivered when the run began.

An attempt that loses an executor before its commit is told to the conductor and repeated at once,
with the same batch; any other error is told and raised. An epoch without input does the same,
without a source side: it drains rows that wait and lets migrations end while no rows arrive
(`docs/decisions/0009-epochs-without-input.md`).

What the work of an epoch is, the loop does not know: instructions, lanes' reports and a commit
record where rows are processed (`godwit.engine.flow_epochs`), numbers in the simulator
(`docs/decisions/0054-one-epoch-loop.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from godwit.engine.cluster import AttemptLostError
from godwit.engine.progress import Stopwatch
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from godwit.engine.shared_conductor import SharedConductor
    from godwit.migration import Conductor, Copies, EpochOutcome, EpochPlan, LoadSummary

__all__ = ["CommittedEpoch", "EpochAttempt", "EpochLoop", "EpochObserver", "Epochs"]

BatchT = TypeVar("BatchT")
_BatchT_contra = TypeVar("_BatchT_contra", contravariant=True)
AttemptT = TypeVar("AttemptT", bound="EpochAttempt")
_AttemptT_co = TypeVar("_AttemptT_co", bound="EpochAttempt", covariant=True)
_AttemptT_contra = TypeVar("_AttemptT_contra", bound="EpochAttempt", contravariant=True)


class EpochAttempt(Protocol):
    """One attempt at an epoch, planned; its methods are called once each, in this order."""

    def run(self) -> None:
        """Do the work; nothing of it counts yet. Raises `AttemptLostError` to be repeated."""

    def commit(self) -> None:
        """Make the work count, durably and at once."""

    def outcome(self, copies: Copies) -> EpochOutcome:
        """Describe what was committed, given who held which copies before."""

    def deliver(self) -> None:
        """Give the sinks what was committed."""

    def remarks(
        self, outcome: EpochOutcome
    ) -> Iterable[tuple[type[events.Event], Mapping[str, Any]]]:
        """Return kinds and values of what else people are told of the epoch."""


class Epochs(Protocol[_BatchT_contra, _AttemptT_co]):
    """Epochs of one run: where it stands, and how the next one is attempted."""

    @property
    def next_epoch(self) -> int:
        """Number of the epoch after the last one that is committed."""

    def wait_while_held(self) -> bool:
        """See `godwit.engine.cluster.Cluster.wait_while_held`."""

    def regroup(self, physical_plan: Any) -> None:
        """Go on under the conductor's physical plan, if that is another."""

    def plan(
        self,
        epoch: int,
        batch: _BatchT_contra | None,
        plans: Mapping[str, EpochPlan],
        conductor: Conductor,
    ) -> _AttemptT_co:
        """Plan an attempt from how every component runs; the conductor is locked."""

    def now_s(self) -> float:
        """Return a time in seconds that never runs backwards, to time the epoch by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch(Generic[_AttemptT_co]):
    """An epoch from its commit on, as observers see it."""

    attempt: _AttemptT_co
    outcome: EpochOutcome
    plans: Mapping[str, EpochPlan]  # component → how it ran
    load: LoadSummary | None  # what key groups cost lately, now and then
    took_s: float  # from the start of the first attempt to the commit
    stopwatch: Stopwatch  # of the phases until now


class EpochObserver(Protocol[_AttemptT_contra]):
    """Whoever looks at epochs on their way."""

    def committed(self, epoch: CommittedEpoch[_AttemptT_contra]) -> None:
        """Take an epoch that is committed, and not delivered yet."""

    def delivered(self, epoch: CommittedEpoch[_AttemptT_contra]) -> None:
        """Take an epoch that is delivered, just before people are told of it."""


class EpochLoop(Generic[BatchT, AttemptT]):
    """Carries out the epochs of a run, one at a time."""

    at_step: Callable[[str, int], None] = staticmethod(lambda _step, _epoch: None)
    """Test hook; a no-op in production. Called with each step of an epoch that is done
    (``"planned"``, ``"staged"``: the lanes have written and reported, ``"committed"``,
    ``"delivered"``) and the epoch."""

    def __init__(
        self,
        epochs: Epochs[BatchT, AttemptT],
        conductor: SharedConductor,
        observer: EpochObserver[AttemptT],
    ) -> None:
        self._epochs, self._conductor, self._observer = epochs, conductor, observer

    def run(self, batch: BatchT | None) -> EpochOutcome | None:
        """Carry out the next epoch with a batch, or without input.

        Returns its outcome; ``None`` if epochs are held and nobody waits for them: then the same
        batch is to be offered again.
        """
        epoch, stopwatch = self._epochs.next_epoch, Stopwatch(self._epochs.now_s)
        attempt = None
        while attempt is None:
            begun = self._begin(epoch)
            if begun is None:
                return None
            plans, physical_plan = begun
            attempt = self._attempt(epoch, batch, plans, physical_plan, stopwatch)
        took_s = stopwatch.took_ms()["epoch"] / 1e3
        self.at_step("committed", epoch)
        with self._conductor.locked() as conductor:
            outcome = attempt.outcome(conductor.copies)
            conductor.commit(outcome)
            load = conductor.recent_load.due_summary()
        committed = CommittedEpoch(
            attempt=attempt,
            outcome=outcome,
            plans=plans,
            load=load,
            took_s=took_s,
            stopwatch=stopwatch,
        )
        self._observer.committed(committed)
        with stopwatch.phase("deliver"):
            attempt.deliver()
        self.at_step("delivered", epoch)
        stopwatch.stop()
        self._observer.delivered(committed)
        with self._conductor.locked() as conductor:
            waiting = sum(len(c.waiting) for c in conductor.view.components.values())
            conductor.announce(
                events.EpochCommitted,
                epoch=epoch,
                rows_in=outcome.rows_in,
                rows_out=outcome.rows_out,
                duration_ms=round(stopwatch.took_ms()["epoch"], 1),
                waiting_key_groups=waiting,
            )
            for kind, values in attempt.remarks(outcome):
                conductor.announce(kind, **values)
        return outcome

    def _begin(self, epoch: int) -> tuple[Mapping[str, EpochPlan], Any] | None:
        """Ask how every component runs and under which physical plan, while epochs are held."""
        while True:
            with self._conductor.locked() as conductor:
                plans, physical_plan = conductor.begin(epoch), conductor.plan
            if plans is not None:
                return plans, physical_plan
            if not self._epochs.wait_while_held():
                return None

    def _attempt(
        self,
        epoch: int,
        batch: BatchT | None,
        plans: Mapping[str, EpochPlan],
        physical_plan: Any,
        stopwatch: Stopwatch,
    ) -> AttemptT | None:
        """Carry out an epoch up to its commit; ``None`` if it is to be attempted again."""
        try:
            self._epochs.regroup(physical_plan)
            with stopwatch.phase("plan"), self._conductor.locked() as conductor:
                attempt = self._epochs.plan(epoch, batch, plans, conductor)
            self.at_step("planned", epoch)
            with stopwatch.phase("stages"):
                attempt.run()
            self.at_step("staged", epoch)
            with stopwatch.phase("commit"):
                attempt.commit()
        except BaseException as error:
            with self._conductor.locked() as conductor:
                conductor.abort(epoch, str(error) or repr(error))
            if isinstance(error, AttemptLostError):
                return None
            raise
        return attempt
