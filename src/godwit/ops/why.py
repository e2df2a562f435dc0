"""`godwit why`: the controller's last decisions, explained from the checkpoint's journal."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.journal import JournalReader
from godwit.model.text import counted
from godwit.ops.arguments import add_checkpoint, bounded, no_journal_error, opened_checkpoint
from godwit.ops.run_state import RunState, reduced
from godwit.ops.stories import quiet_story

if TYPE_CHECKING:
    import argparse

    from godwit.ops.stories import Story

_MINOR: Final = frozenset({"LanesBalanced", "ExecutorsReturned"})
"""Kinds of decisions shown only with --all: they move no state, or follow from another."""
_INDENT: Final = 12
_WIDTH: Final = 100


def add_why_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit why`, and its function as ``run``."""
    parser.description = (
        "Tell the controller's last decisions as a story each: what it saw, what it took for noise "
        "before, what it expected, what came, and what it would take to do better. 'seen' is the "
        "statistics period before the decision, and names what took most of its time: the "
        "executors, one key group, the driver, the source or a sink. 'noise' is what the periods "
        "since the last change showed without changing anything. 'expected' is the model's "
        "prediction, 'came' the verdict two steady periods later; a decision without 'came' is not "
        "judged, or not yet. It knows at most 200 decisions, of the last 4 MiB of the journal. "
        "Only the checkpoint is read, so it works while the query runs and after it. Exit status "
        "0; 2 if there is no checkpoint, or no journal yet."
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--last",
        type=bounded(int, 1, 200, "number of decisions"),
        default=5,
        metavar="N",
        help="number of decisions to show, latest last (default: %(default)s)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show key groups that changed lanes within an executor, and released executors",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(run=_run_why)


def _run_why(args: argparse.Namespace) -> int:
    """Print the stories of a checkpoint's last decisions; return the exit status."""
    state = RunState()
    for entries in JournalReader(opened_checkpoint(args.path)).new_entries():
        for entry in entries:
            state = reduced(state, entry)
    if state.last_s is None:
        raise no_journal_error(args.path)
    shown = tuple(d for d in state.decisions if args.all or d.kind not in _MINOR)
    state = replace(state, decisions=shown)
    if args.json:
        print(json.dumps(why_json(state, args.last), indent=2, allow_nan=False))
    else:
        print(why_text(state, args.last))
    return 0


def why_json(state: RunState, last: int) -> dict[str, Any]:
    """Return the last decisions of a run as plain values."""
    measured, since = state.measurements.last, _story_since(state)
    return {
        "decisions": [
            {"at_s": d.at_s, "epoch": d.epoch, "kind": d.kind, "decided": d.story.decided}
            | dict(d.story.lines)
            for d in state.decisions[-last:]
        ],
        "since": None if since is None else {"decided": since.decided} | dict(since.lines),
        "held_up_by": None if measured is None else measured.held_up_by,
    }


def why_text(state: RunState, last: int) -> str:
    """Return the last decisions of a run as text, the latest last."""
    shown = state.decisions[-last:]
    parts = [
        _story_text(_decision_time(decision.at_s, state.last_s or decision.at_s), decision.story)
        for decision in shown
    ]
    num_not_shown = len(state.decisions) - len(shown)
    if num_not_shown:
        parts.insert(
            0, f"({counted(num_not_shown, 'earlier decision')}: --last {len(state.decisions)})"
        )
    latest_story = _story_since(state)
    if latest_story is not None:
        parts.append(_story_text("since then" if shown else "so far", latest_story))
    return "\n\n".join(parts)


def _story_since(state: RunState) -> Story | None:
    """Return the story of the time since the last decision; ``None`` if no period ended since."""
    measured, decisions = state.measurements.last, state.decisions
    if decisions and (measured is None or measured.at_s <= decisions[-1].at_s):
        return None
    return quiet_story(state.measurements)


def _decision_time(at_s: float, last_s: float) -> str:
    """Return the local time of a decision; with its day, if the run's last entry is of another."""
    decided, last = (datetime.fromtimestamp(s).astimezone() for s in (at_s, last_s))
    same_day = decided.date() == last.date()
    return f"{decided:%H:%M:%S}" if same_day else f"{decided:%m-%d %H:%M}"


def _story_text(when: str, story: Story) -> str:
    """Return a story as lines of text."""
    lines = [(when, story.decided), *story.lines]
    return "\n".join(
        textwrap.fill(
            line,
            _WIDTH,
            initial_indent=f"{heading if heading == when else '  ' + heading:<{_INDENT}}",
            subsequent_indent=" " * _INDENT,
        )
        for heading, line in lines
    )
