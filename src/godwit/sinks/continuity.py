"""Whether a target goes on from where the checkpoint's last epoch is, and what to do if not.

Problem: a sink takes an epoch that its target has for delivered.  That is right as long as target
and checkpoint tell one history.  A checkpoint that was restored from a backup stands before epochs
that its target has, and the epochs that it makes anew would be skipped; a target that was restored
lacks epochs that will not come again.

A target therefore keeps, with the rows of an epoch, the point of the history that they are of
(`godwit.checkpoint.ownership.HistoryPoint`), and a start compares it with the checkpoint:

=============  ==================================================================================
it is          when
=============  ==================================================================================
continued      the target's last epoch is one of the checkpoint's, and the checkpoint has nothing
               between it and its own last epoch, which is the one that may be delivered again
ahead          the target has later epochs of this history
diverged       the target has epochs of another history
behind         the target lacks epochs that the checkpoint has delivered
another's      the checkpoint is a copy, and the target is that of the query that was copied
=============  ==================================================================================

Everything but the first is refused, unless the user says how to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from godwit.checkpoint.ownership import Relation
    from godwit.sinks.sink import Sink

__all__ = [
    "WAYS",
    "CommittedEpochs",
    "OnDivergence",
    "Position",
    "Way",
    "continue_delivery",
    "is_shared",
    "point_at",
    "too_few_left",
    "way_of",
]

Way: TypeAlias = Literal["refuse", "roll_back", "new_writer"]
OnDivergence: TypeAlias = Way | Mapping[str, Way]
WAYS: Final[tuple[Way, ...]] = ("refuse", "roll_back", "new_writer")


class CommittedEpochs(Protocol):
    """The committed epochs of a checkpoint: `godwit.checkpoint.commit_log.CommitLog`."""

    @property
    def latest_epoch(self) -> int:
        """The last one; -1 before the first."""

    @property
    def retained_epochs(self) -> range:
        """Those whose records are there."""

    def point(self, epoch: int) -> HistoryPoint:
        """Digest of a retained epoch, and whose history it is."""

    def relation(self, point: HistoryPoint) -> Relation:
        """How a point lies to this history."""

    def shared_with(self, point: HistoryPoint) -> int:
        """Last epoch in common with the history of a point, as far as is known; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a checkpoint knows of a sink.

    Attributes
    ----------
    before
        Last epoch before the latest that had something for it; -1 if none had.
    stays
        Whether it is known to write where it wrote in the latest epoch.
    copied
        Whether another query committed the latest epoch.
    """

    before: int
    stays: bool
    copied: bool


def way_of(on_divergence: OnDivergence, sink: str) -> Way:
    """Return what the user wants for a sink."""
    if isinstance(on_divergence, Mapping):
        return on_divergence.get(sink, "refuse")
    return on_divergence


def is_shared(point: HistoryPoint, epochs: CommittedEpochs) -> bool:
    """Whether an epoch at a target is one of the checkpoint's, as far as its record is there.

    A point without a digest, as earlier versions left it, goes by its number.
    """
    if point.epoch > epochs.latest_epoch:
        return False
    return not point.digest or epochs.relation(point) in {"shared", "unknown"}


def continue_delivery(
    sink: Sink, name: str, epochs: CommittedEpochs, position: Position, way: Way
) -> str | None:
    """Let an open sink go on after the checkpoint's last epoch, or refuse to.

    Parameters
    ----------
    sink, name
        The sink, and what it is called.
    epochs, position
        The checkpoint, and what it knows of the sink.
    way
        What to do where the two do not go on from one another.

    Returns
    -------
    str or None
        What was done about it, in words; ``None`` if there was nothing to do.

    Raises
    ------
    SinkError
        If they do not, and the user has not said how to go on, or it cannot be done.
    """
    if not sink.keeps_epochs:
        return None
    problem = _problem(sink, epochs, position)
    if problem is None:
        if sink.last_delivered() is None and position.stays and position.before >= 0:
            return (
                f"sink {name}: its target has nothing of this query, though epochs up to "
                f"{position.before} had rows for it; it gets the last epoch and what comes after"
            )
        return None
    if way == "refuse":
        raise _refused(name, problem, sink)
    if way == "new_writer":
        sink.continue_after(point_at(epochs, problem.settled))
        return (
            f"sink {name}: {problem.what}; it goes on as a new writer after epoch {problem.settled}"
        )
    if problem.kind not in {"ahead", "diverged"} or sink.cannot_roll_back() is not None:
        raise _refused(name, problem, sink)
    sink.roll_back(epochs, _min_epoch(problem, sink, epochs, position))
    left = _problem(sink, epochs, position)
    if left is not None:
        raise _refused(name, left, sink)
    now = sink.last_delivered()
    return (
        f"sink {name}: {problem.what}; it was rolled back to "
        f"{'nothing' if now is None or now.epoch < 0 else f'epoch {now.epoch}'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    kind: Literal["ahead", "diverged", "behind", "another's"]
    what: str
    settled: int
    """The last epoch that a new writer takes for delivered."""


def _problem(sink: Sink, epochs: CommittedEpochs, position: Position) -> _Problem | None:
    point, latest = sink.last_delivered(), epochs.latest_epoch
    if point is None:
        if position.copied and position.stays:
            return _Problem(
                kind="another's",
                what="this checkpoint is a copy, and its target is that of the query it was "
                "copied from",
                settled=latest,
            )
        return None
    if not is_shared(point, epochs):
        ahead = not point.digest or epochs.relation(point) == "ahead"
        shared = latest if ahead else epochs.shared_with(point)
        return _Problem(
            kind="ahead" if ahead else "diverged",
            what=f"its target has epochs up to {point.epoch}"
            + ("" if ahead else " of another history")
            + f", and the checkpoint {'has none' if latest < 0 else f'ends with epoch {latest}'}",
            settled=latest if shared >= latest else latest - 1,
        )
    if point.epoch < position.before:
        return _Problem(
            kind="behind",
            what=f"its target has {_up_to(point)}, and epochs up to {position.before} were "
            "delivered to it",
            settled=latest - 1,
        )
    return None


def _up_to(point: HistoryPoint) -> str:
    return f"epochs up to {point.epoch}" if point.epoch >= 0 else "nothing"


def _min_epoch(problem: _Problem, sink: Sink, epochs: CommittedEpochs, position: Position) -> int:
    """Return the epoch up to which a target may lose nothing when it is rolled back.

    Where it parted from the checkpoint before epochs that the checkpoint has delivered to it, these
    are of the other history at the target, and the checkpoint does not make them again.
    """
    point = sink.last_delivered()
    if problem.kind != "diverged" or point is None or not position.stays:
        return -1
    return position.before if epochs.shared_with(point) < position.before else -1


def too_few_left(left: int, min_epoch: int) -> tuple[str, str]:
    """Problem and remedy of a target that would lack delivered epochs once it is rolled back."""
    problem = (
        f"cannot be rolled back: it would have epochs up to {left}, and epochs up to "
        f"{min_epoch} were delivered to it and do not come again"
    )
    remedy = (
        "Restore the target as it was with this checkpoint; start from a backup of the "
        "checkpoint that is as old as what both have; or go on all the same, "
        'on_divergence="new_writer".'
    )
    return problem, remedy


def point_at(epochs: CommittedEpochs, epoch: int) -> HistoryPoint:
    """Return the point of an epoch, without its digest where the record is gone."""
    if epoch in epochs.retained_epochs:
        return epochs.point(epoch)
    return HistoryPoint(query_id="", history="", epoch=epoch, digest="")


_CAUSES: Final[dict[str, str]] = {
    "ahead": "The checkpoint was restored from an older copy, so that it makes epochs anew which "
    "the target would skip.",
    "diverged": "Another checkpoint of the query wrote them: one of the two is a copy of the "
    "other, or of an older one.",
    "behind": "The target was restored from an older copy, or its server is a replica that did "
    "not have everything.",
    "another's": "Its rows would mix with those of that query.",
}


def _refused(name: str, problem: _Problem, sink: Sink) -> SinkError:
    if problem.kind == "behind":
        back = (
            "Restore the target as it was; or start from a backup of the checkpoint that is as "
            "old as the target"
        )
    elif problem.kind == "another's":
        back = "Give the sink a target of its own"
    else:
        why_not = sink.cannot_roll_back()
        back = (
            'Take back what the target has beyond the checkpoint: start(on_divergence="roll_back")'
            if why_not is None
            else f"Rolling back is not possible here: {why_not}. Restore the target as it was "
            "with the checkpoint, or give the sink another target"
        )
    effect = {
        "ahead": "rows that are made anew come beside those that are there",
        "diverged": "rows that are made anew come beside those that are there",
        "behind": "the rows in between stay missing",
        "another's": "rows of both queries are in one target",
    }[problem.kind]
    return SinkError(
        f"Sink {name!r} does not go on from this checkpoint: {problem.what}. "
        f"{_CAUSES[problem.kind]}",
        remedy=f'{back}. Or go on all the same, start(on_divergence="new_writer"): {effect}. '
        "on_divergence={sink: way} says it for one sink.",
        sink=name,
        divergence=problem.kind,
    )
