"""Decisions of the controller as plain text, built by the reducer of the journal.

A story has the measurements before a decision, the differences before them that passed for noise,
the expected and the measured effect, and what it would take to do better.  The first and the last
follow from the measurements that precede a decision (`LoadMeasured`); periods without a decision
are those whose differences passed for noise.

Invariant: texts are short and printable whatever the journal has (`godwit.ops.entries`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from godwit.model import events
from godwit.model.text import counted, human_bytes
from godwit.ops.entries import text

if TYPE_CHECKING:
    from collections.abc import Mapping

REMEDIES: Mapping[str, str] = {
    "executors": "more executors, or faster ones: gw.Control(scaling=..., max_executors=...)",
    "key group": "more executors do not help one key group: divide it by merge= or spread=, or "
    "make its heaviest key finer",
    "driver": "more executors do not help the driver: use a longer trigger, fewer operators or "
    "fewer key groups, so that there is less to plan and to commit",
    "source": "reading and exchanging rows is the bottleneck: give the source more partitions, "
    "or run maps and filters before the exchange",
    "sink": "more executors do not help a sink: make its target faster, write less to it, or "
    "give it larger epochs by a longer trigger",
}
"""First words of a bottleneck (`LoadMeasured.held_up_by`) → advice that shortens its work."""
_ORDER = ("seen", "noise", "expected", "came", "better")
_FULL = 0.9
"""Min. share of the time at which a part counts as always busy."""
_MATTERS = 0.02
"""Min. load distance, and busy share of an executor, that are mentioned."""
_SHOWN_ERROR = 0.005
"""Min. error of the arrival rate that is shown."""
_MAX_LINE = 1000  # characters: the reason of a refusal may have several sentences


def remedy(held_up_by: str) -> str:
    """Return the advice for a bottleneck (`LoadMeasured.held_up_by`); empty if there is none."""
    return next((say for part, say in REMEDIES.items() if held_up_by.startswith(part)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A decision as plain text; unknown or irrelevant parts are empty."""

    decided: str
    seen: str = ""
    noise: str = ""
    expected: str = ""
    came: str = ""
    better: str = ""

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Parts of the story after the decision: heading and text."""
        said = ((name, getattr(self, name)) for name in _ORDER)
        return tuple((name, line) for name, line in said if line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements that lead to a decision: the last period, and those since the last change."""

    last: events.LoadMeasured | None = None
    before: events.LoadMeasured | None = None  # the period before
    # of the periods before the last one that changed nothing
    periods: int = 0
    lasted_s: float = 0.0
    rates: tuple[float, float] = (math.inf, 0.0)  # least and greatest
    distance: float = 0.0  # greatest
    led_to_change: bool = False  # the last period did

    def after(self, event: events.LoadMeasured) -> Measurements:
        """Return the measurements with one more period."""
        last = self.last
        if last is None:
            return Measurements(last=event)
        if self.led_to_change:
            return Measurements(last=event, before=last)
        return replace(
            self,
            last=event,
            before=last,
            periods=self.periods + 1,
            lasted_s=self.lasted_s + last.period_s,
            rates=(min(self.rates[0], last.arrival_per_s), max(self.rates[1], last.arrival_per_s)),
            distance=max(self.distance, last.load_distance),
        )

    def changed(self) -> Measurements:
        """Return the measurements after a change, from which on quiet periods are counted."""
        return Measurements(last=self.last, before=self.before, led_to_change=True)

    def seen_text(self) -> str:
        """Return the figures of the last period as text; empty if there is none."""
        last = self.last
        if last is None:
            return ""
        parts = [f"{last.arrival_per_s:,.0f} rows/s arrived{self._change_text()}"]
        if last.held_up_by:
            parts.append(f"{last.held_up_by} took {last.held_up:.0%} of the time")
        else:
            used = last.usage.get(last.bottleneck, 0.0)
            parts.append(f"{used:.0%} of {last.bottleneck} was used")
        if last.load_distance > _MATTERS and len(last.load_index) > 1:
            name = max(last.load_index, key=lambda executor: last.load_index[executor])
            busy = last.load_index[name]
            if busy > _MATTERS:
                parts.append(
                    f"executor {name} was the busiest ({busy:.0%}; load distance "
                    f"{last.load_distance:.0%})"
                )
        slow = [f"{name} at {speed:.2f} of the speed" for name, speed in last.speeds.items()]
        parts += [f"executors differed: {', '.join(slow)}"] if slow else []
        if "mean" in last.latency_ms:
            parts.append(f"a row took {last.latency_ms['mean'] / 1e3:.3g} s")
        return "; ".join(parts)

    def _change_text(self) -> str:
        """Return the previous period's rate in parentheses, if it clearly differs."""
        last, before = self.last, self.before
        if last is None or before is None:
            return ""
        difference_per_s = abs(last.arrival_per_s - before.arrival_per_s)
        error_per_s = 3 * last.arrival_error * last.arrival_per_s
        is_clear = difference_per_s > max(error_per_s, 0.1 * before.arrival_per_s)
        return f" ({before.arrival_per_s:,.0f} in the period before)" if is_clear else ""

    def noise_text(self) -> str:
        """Return the range of the previous periods, which changed nothing, as text."""
        if not self.periods:
            return ""
        low, high = self.rates
        same = f"{low:,.0f}" == f"{high:,.0f}"
        rates = f"{low:,.0f} rows/s" if same else f"{low:,.0f} to {high:,.0f} rows/s"
        strays = ""
        if self.last is not None and self.last.arrival_error >= _SHOWN_ERROR:
            strays = f"; by chance a period's rate strays by ±{2 * self.last.arrival_error:.0%}"
        return (
            f"for {counted(self.periods, 'period')} ({self.lasted_s:.0f} s) {rates} and load "
            f"distances up to {self.distance:.0%} changed nothing{strays}"
        )


def story_of(event: events.Event, measured: Measurements) -> Story:
    """Return the story of a decision, from its event and the measurements that led to it."""
    story = Story(decided=event.describe(), seen=measured.seen_text(), noise=measured.noise_text())
    held_up_by = "" if measured.last is None else measured.last.held_up_by
    match event:
        case events.ScaledOut() | events.ScaledIn():
            verb = "out" if isinstance(event, events.ScaledOut) else "in"
            story = replace(
                story,
                decided=f"scaled {verb} from {event.before} to {event.wanted} executors: "
                f"{event.reason}",
                expected=_expected_latency(event.numbers, event.wanted),
            )
        case events.ScalingRefused():
            verb = "was" if event.wanted == 1 else "were"
            wanted = (
                f", though {event.wanted} {verb} wanted" if event.wanted != event.before else ""
            )
            story = replace(
                story,
                decided=f"stayed at {counted(event.before, 'executor')}{wanted}: {event.reason}",
                better="" if held_up_by == "executors" else remedy(held_up_by),
            )
        case events.RebalancingStarted():
            story = replace(
                story,
                decided=f"moved {counted(event.moves, 'key group')} of "
                f"{', '.join(event.migrations)} ({human_bytes(event.state_bytes)} of state)",
                expected=f"a load distance of {event.distance_after:.0%} instead of "
                f"{event.distance_before:.0%}, which saves {event.gain_s:.3g} s for "
                f"{event.cost_s:.3g} s of copying",
            )
        case events.LanesBalanced():
            story = replace(
                story,
                decided=f"moved {counted(event.key_groups, 'key group')} of {event.component} to "
                "other lanes of their executors, without their state",
                expected=f"the busiest lane at {event.imbalance_after:.2f} times the mean "
                f"instead of {event.imbalance_before:.2f}",
            )
        case events.DecisionSkipped():
            story = replace(story, decided=f"no {event.what}: {event.reason}")
        case events.PlannerFailed():
            story = replace(
                story,
                decided=f"{event.planner} failed: {event.reason}",
                better="another planner, or a longer time_limit of gw.control.Search",
            )
        case _:
            pass
    return _printable_story(story)


def _printable_story(story: Story) -> Story:
    """Return a story whose texts are short and printable."""
    shown = {name: text(line, _MAX_LINE) for name, line in story.lines}
    return Story(decided=text(story.decided, _MAX_LINE), **shown)


def _expected_latency(numbers: Mapping[str, float], executors: int) -> str:
    """Return the expected latency for a number of executors; empty if unknown."""
    expected, target = numbers.get("expected_s"), numbers.get("target_s")
    if expected is None or target is None:
        return ""
    return f"{expected:.3g} s for a row with {executors} executors; the target is {target:.3g} s"


def judged(story: Story, event: events.Event, measured: Measurements) -> Story:
    """Return a story with the verdict on its decision (an event `…Judged`)."""
    if isinstance(event, events.DecisionJudged):
        came = "" if event.measured is None else f"{event.measured:.3g}, "
        missed = event.measured is not None and event.measured > event.target
        story = replace(story, came=f"{came}{event.verdict}: {event.reason}")
    elif isinstance(event, events.RebalancingJudged):
        came = "" if event.measured is None else f"a load distance of {event.measured:.0%}, "
        missed = False
        story = replace(story, came=f"{came}{event.verdict}: {event.reason}")
    else:
        return story
    if missed or event.verdict == "no help":
        story = replace(story, better=_remedy_of_bottleneck(measured))
    elif event.verdict == "overtaken":
        story = replace(story, better="steadier periods, such as by a longer period=")
    return _printable_story(story)


def _remedy_of_bottleneck(measured: Measurements) -> str:
    """Return what it would take to do better; empty if the bottleneck was not measured."""
    last = measured.last
    if last is None or not last.held_up:
        return ""
    return remedy(last.held_up_by) or (
        "no single part took most of the time: godwit ui shows where rows waited"
    )


def quiet_story(measured: Measurements) -> Story:
    """Return the story of a stream on which nothing was decided."""
    if measured.last is None:
        return Story(decided="no decisions and no measurements: does the query have a gw.Control?")
    full = measured.last.held_up >= _FULL
    return _printable_story(
        Story(
            decided="nothing had to change",
            seen=measured.seen_text(),
            noise=measured.noise_text(),
            better=remedy(measured.last.held_up_by) if full else "",
        )
    )
