"""Continuity of targets: comparison of a target with the checkpoint, and ways out if they differ.

A sink takes an epoch that its target has for delivered, which is right as long as both tell one
history.  So a target keeps, with the rows of an epoch, the `HistoryPoint` that they are of, and a
start compares it with the checkpoint:

=============  ==================================================================================
it is          when
=============  ==================================================================================
continued      the target's last epoch is one of the checkpoint's, and the checkpoint has nothing
               between it and its own last epoch, which is the one that may be delivered again
ahead          the target has later epochs of this history: the checkpoint is an older backup
diverged       the target has epochs of another history
behind         the target lacks epochs that the checkpoint has delivered, as an older backup does
another's      the checkpoint is a copy, and the target is that of the query that was copied
=============  ==================================================================================

Everything but the first is refused, unless the user says how to continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from godwit.model.errors import SinkError
from godwit.sinks.target_sink import is_shared, point_of_epoch

if TYPE_CHECKING:
    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.sinks.sink import CommittedEpochs, Sink

Way: TypeAlias = Literal["refuse", "roll_back", "new_writer"]
OnDivergence: TypeAlias = Way | Mapping[str, Way]
WAYS: Final[tuple[Way, ...]] = ("refuse", "roll_back", "new_writer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a sink, by its checkpoint."""

    before: int  # last epoch before the latest that had something for it; -1 if none had
    stays: bool  # whether it is known to write where it wrote in the latest epoch
    copied: bool  # whether another query committed the latest epoch


def divergence_choice(on_divergence: OnDivergence, sink: str) -> Way:
    """Return the action for a sink whose target has diverged, from ``on_divergence=``."""
    if isinstance(on_divergence, Mapping):
        return on_divergence.get(sink, "refuse")
    return on_divergence


def continue_delivery(
    sink: Sink, name: str, epochs: CommittedEpochs, position: Position, way: Way
) -> str | None:
    """Prepare an open sink to continue after the checkpoint's last epoch; raise if it has diverged.

    `position`: last epoch that the checkpoint records for the sink. `way`: the user's choice for a
    diverged target. Returns a text for users about the change made; ``None`` if there was none.
    """
    if not sink.keeps_epochs:
        return None
    problem = divergence_of(sink.last_delivered(), epochs, position)
    if problem is None:
        if sink.last_delivered() is not None or not position.stays or position.before < 0:
            return None
        return (
            f"sink {name}: its target has nothing of this query, though epochs up to "
            f"{position.before} had rows for it; it gets the last epoch and later ones"
        )
    if way == "refuse":
        raise _diverged_error(name, problem, sink)
    if way == "new_writer":
        resume_after = problem.resume_after
        sink.continue_after(point_of_epoch(epochs, resume_after))
        return (
            f"sink {name}: {problem.what}; it continues as a new writer after epoch {resume_after}"
        )
    if problem.kind not in {"ahead", "diverged"} or sink.cannot_roll_back() is not None:
        raise _diverged_error(name, problem, sink)
    sink.roll_back(epochs, _min_epoch(problem, sink, epochs, position))
    remaining_problem = divergence_of(sink.last_delivered(), epochs, position)
    if remaining_problem is not None:
        raise _diverged_error(name, remaining_problem, sink)
    point = sink.last_delivered()
    rolled_back_to = "nothing" if point is None or point.epoch < 0 else f"epoch {point.epoch}"
    return f"sink {name}: {problem.what}; it was rolled back to {rolled_back_to}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Difference between a target's last epoch and the checkpoint."""

    kind: Literal["ahead", "diverged", "behind", "another's"]
    what: str
    resume_after: int  # the last epoch that a new writer takes for delivered


def divergence_of(
    point: HistoryPoint | None, epochs: CommittedEpochs, position: Position
) -> _Problem | None:
    """Return how `point`, a target's last epoch, differs from the checkpoint; ``None``: it fits."""
    latest = epochs.latest_epoch
    if point is None:
        if position.copied and position.stays:
            return _Problem(
                kind="another's",
                what="this checkpoint is a copy, and its target is that of the query it was "
                "copied from",
                resume_after=latest,
            )
        return None
    if not is_shared(point, epochs):
        ahead = not point.digest or epochs.relation(point) == "ahead"
        shared = latest if ahead else epochs.last_shared_epoch(point)
        return _Problem(
            kind="ahead" if ahead else "diverged",
            what=f"its target has epochs up to {point.epoch}"
            + ("" if ahead else " of another history")
            + f", and the checkpoint {'has none' if latest < 0 else f'ends with epoch {latest}'}",
            resume_after=latest if shared >= latest else latest - 1,
        )
    if point.epoch < position.before:
        return _Problem(
            kind="behind",
            what=f"its target has {'nothing' if point.epoch < 0 else f'epochs up to {point.epoch}'}"
            f", and epochs up to {position.before} were delivered to it",
            resume_after=latest - 1,
        )
    return None


def _min_epoch(problem: _Problem, sink: Sink, epochs: CommittedEpochs, position: Position) -> int:
    """Return the last epoch that a roll-back has to keep; -1 if it may remove all.

    If the histories differ from an epoch on that this checkpoint has already delivered, the target
    has other rows for it, and the checkpoint cannot deliver it again.
    """
    point = sink.last_delivered()
    if problem.kind != "diverged" or point is None or not position.stays:
        return -1
    return position.before if epochs.last_shared_epoch(point) < position.before else -1


_CAUSES: Final[dict[str, str]] = {
    "ahead": "The checkpoint was restored from an older copy, so it produces epochs again that "
    "the target would skip.",
    "diverged": "Another checkpoint of the query wrote them: one of the two is a copy of the "
    "other, or of an older one.",
    "behind": "The target was restored from an older copy, or its server is a replica that did "
    "not have everything.",
    "another's": "Its rows would mix with those of that query.",
}
_EFFECTS: Final[dict[str, str]] = {  # of continuing anyway
    "ahead": "the target keeps its rows and gets the rows that are produced again, too",
    "diverged": "the target keeps its rows and gets the rows that are produced again, too",
    "behind": "the rows in between stay missing",
    "another's": "rows of both queries are in one target",
}


def _diverged_error(name: str, problem: _Problem, sink: Sink) -> SinkError:
    """Return the error that target and checkpoint have diverged, with the possible actions."""
    if problem.kind == "behind":
        back = (
            "Restore the target as it was; or start from a backup of the checkpoint that is as "
            "old as the target"
        )
    elif problem.kind == "another's":
        back = "Give the sink a target of its own"
    elif (why_not := sink.cannot_roll_back()) is None:
        back = (
            'Take back what the target has beyond the checkpoint: start(on_divergence="roll_back")'
        )
    else:
        back = (
            f"Rolling back is not possible here: {why_not}. Restore the target as it was "
            "with the checkpoint, or give the sink another target"
        )
    return SinkError(
        f"Sink {name!r} does not continue from this checkpoint: {problem.what}. "
        f"{_CAUSES[problem.kind]}",
        remedy=f'{back}. Or continue anyway, start(on_divergence="new_writer"): '
        f"{_EFFECTS[problem.kind]}. "
        "on_divergence={sink: choice} applies to one sink.",
        sink=name,
        divergence=problem.kind,
    )
