"""Programs compared in turns, round by round and every other round in the other order.

Each runs in a fresh process, once what the one before has written is on the disk.  Figures are
medians over the steady epochs of all rounds, and ratios are within one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.options import append_json, read_options
from benchmarks.streaming.measure import in_turns, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.streaming.measure import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A program and its input; a slow rival may have fewer epochs of it."""

    program: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Programs over inputs; the first is the subject, the others are its rivals."""

    about: str
    parties: tuple[Party, ...]
    skip: int | None = None  # epochs of a warm-up; ``None``: the first half

    def epoch_ms(self, run: Measurement) -> float:
        """Median time of a steady epoch."""
        return run.epoch_ms(skip=len(run.epochs) // 2 if self.skip is None else self.skip)


def same(programs: Sequence[str], **source: Any) -> tuple[Party, ...]:
    """Give programs one input."""
    return tuple(Party(program=program, source=source) for program in programs)


def compare(
    comparisons: Mapping[str, Comparison],
    package: str,
    make: Callable[..., Path],
    about: str | None,
    **overrides: type,
) -> None:
    """Compare what the command line names, of the programs of a package beside this one.

    `make`: makes an input in a directory, or finds it there. `overrides`: options that replace
    sizes of inputs.
    """
    given = read_options(
        about,
        [*comparisons, "own", "all"],
        rounds=3,
        inputs=Path("artifacts/inputs"),
        json=Path(f"artifacts/{package}.jsonl"),
        **overrides,
    )
    sizes = {name: size for name in overrides if (size := getattr(given, name)) is not None}
    for name, comparison in comparisons.items():
        if not {name, "all", "own" if name.startswith("own-") else "all"} & {*given.row}:
            continue
        print(f"\n{name}: {comparison.about}", flush=True)
        runs: dict[int, list[Measurement]] = {}
        for turn in range(given.rounds):
            for i, party in in_turns(list(enumerate(comparison.parties)), turn):
                source = make(given.inputs, **_resized(party, comparison.parties[0], sizes))
                done = measure(party.program, source, module=f"benchmarks.{package}.programs")
                runs.setdefault(i, []).append(done)
                done.tell(turn, comparison.epoch_ms(done))
        append_json(given.json, _summary(name, comparison, runs))


def _resized(party: Party, subject: Party, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return a party's input with other sizes; one with fewer epochs gets no more than it had."""
    source = {**party.source, **sizes}
    if party.source.get("epochs") != subject.source.get("epochs"):
        source["epochs"] = min(source["epochs"], party.source["epochs"])
    return source


def _summary(
    name: str, comparison: Comparison, runs: Mapping[int, Sequence[Measurement]]
) -> dict[str, Any]:
    """Print the ratios of the rivals to the subject, and return all figures."""
    subject, *rivals = comparison.parties
    times = {i: [comparison.epoch_ms(run) for run in of] for i, of in runs.items()}
    result: dict[str, Any] = {
        "row": name,
        "epoch_ms": {"subject": times[0]},
        "last_epoch": runs[0][-1].epochs[-1],
    }
    for i, rival in enumerate(rivals, 1):
        ratios = [theirs / own for own, theirs in zip(times[0], times[i], strict=True)]
        memory = median(r.peak_bytes / o.peak_bytes for o, r in zip(runs[0], runs[i], strict=True))
        print(
            f"  {rival.program} / {subject.program}: {median(ratios):.2f} in time "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {memory:.2f} in peak memory"
        )
        result[rival.program] = {"time_ratios": ratios, "memory_ratio": memory}
    return result
