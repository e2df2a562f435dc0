"""Fusion: which operators share one component, and so one exchange and one partitioning.

Problem: few components and little data between them.

Invariant: every operator is in exactly one component, and the operators of a component have a
partition attribute in common.  With ``acyclic`` (the default) the components form no cycle, because
a component runs as one stage; the paper's algorithm does not look at that.

Source: paper 3 §4.4.1, Algorithm 1, its alternative score, and the baseline of §7.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from godwit.planning.arrays import freeze_array, require_load, set_field, wrong_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FusionPlan", "FusionProblem", "plan_fusion"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Score = Literal["traffic", "attributes", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusionProblem:
    """A directed acyclic graph of operators.

    Attributes
    ----------
    operators
        Distinct names.
    attributes
        Partition attributes of each operator, PA(O_j); none means that it cannot be fused.
    source, target
        Shape ``(e,)``: operators at the two ends of each stream.
    rate
        Shape ``(e,)``: rows per second on each stream.
    attribute_values
        What each attribute counts in the score by attributes; 1 where it is not named.

    Raises
    ------
    InvalidProblemError
        If sizes differ, an operator does not exist, a rate is negative, or there is a cycle.
    """

    operators: tuple[str, ...]
    attributes: tuple[frozenset[str], ...]
    source: IntArray
    target: IntArray
    rate: FloatArray
    attribute_values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        set_field(self, "operators", tuple(self.operators))
        set_field(self, "attributes", tuple(frozenset(a) for a in self.attributes))
        if not self.operators or len(set(self.operators)) != len(self.operators):
            raise wrong_value("operators", self.operators, "name at least one, each once")
        if len(self.attributes) != len(self.operators):
            raise wrong_value(
                "attributes", f"{len(self.attributes)} sets", f"give {len(self.operators)}"
            )
        freeze_array(self, "source", "source", np.int32, ndim=1)
        freeze_array(self, "target", "target", np.int32, shape=self.source.shape)
        freeze_array(self, "rate", "rate", np.float64, shape=self.source.shape)
        require_load(self.rate, "rate")
        for name in ("source", "target"):
            ends = getattr(self, name)
            bad = (ends < 0) | (ends >= len(self.operators))
            if bad.any():
                e = int(bad.argmax())
                raise wrong_value(
                    f"{name}[{e}]",
                    int(ends[e]),
                    f"operators are numbered 0 to {len(self.operators) - 1}",
                )
        for attribute, value in self.attribute_values.items():
            if not 0 <= value < np.inf:
                raise wrong_value(
                    f"attribute_values[{attribute!r}]", value, "give a finite number ≥ 0"
                )
        if _has_cycle(np.arange(len(self.operators)), self.source, self.target, loops=True):
            raise wrong_value("source, target", "a cycle", "operators must form a DAG")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusionPlan:
    """Operators' components.

    Attributes
    ----------
    component_of
        Shape ``(operators,)``: component of each operator, numbered by their first operators.
    num_components
        How many there are.
    shared
        Partition attributes that all operators of each component have in common.
    communication
        Share of the rows, in [0, 1], that cross from one component to another.
    """

    component_of: IntArray
    num_components: int
    shared: tuple[frozenset[str], ...]
    communication: float


def plan_fusion(
    problem: FusionProblem,
    *,
    score: Score = "traffic",
    acyclic: bool = True,
    rng: np.random.Generator | None = None,
) -> FusionPlan:
    """Fuse operators greedily (paper 3 §4.4.1).

    Parameters
    ----------
    problem
        Operators, attributes and rates.
    score
        ``"traffic"`` fuses the two connected components with the stream of the highest rate first;
        ``"attributes"`` those with most attribute values in common, needing no rates;
        ``"baseline"`` grows one component at a time from the first operator, then from random ones.
        Ties: the first stream.
    acyclic
        Whether fusions that make components wait for each other are left out.
    rng
        Picks the baseline's next operator; by default one with seed 0.

    Returns
    -------
    FusionPlan
        O(operators · streams · (operators + streams)) time.
    """
    if score not in {"traffic", "attributes", "baseline"}:
        raise wrong_value("score", score, "give traffic, attributes or baseline")
    components = _Components(problem, acyclic=acyclic)
    if score == "baseline":
        _grow(components, np.random.default_rng(0) if rng is None else rng)
    else:
        _merge_greedily(components, score)
    return components.plan()


class _Components:
    """Operators' components while they grow; a component is named after its lowest operator."""

    def __init__(self, problem: FusionProblem, *, acyclic: bool) -> None:
        self.problem, self.acyclic = problem, acyclic
        self.of = np.arange(len(problem.operators))
        self.shared = list(problem.attributes)
        self.streams = list(
            zip(
                problem.source.tolist(), problem.target.tolist(), problem.rate.tolist(), strict=True
            )
        )

    def common(self, a: int, b: int) -> frozenset[str]:
        """Attributes common to two components."""
        return self.shared[a] & self.shared[b]

    def value(self, attributes: frozenset[str]) -> float:
        """Sum what attributes count."""
        values = self.problem.attribute_values
        return float(sum(values.get(a, 1.0) for a in sorted(attributes)))

    def may_fuse(self, a: int, b: int) -> bool:
        """Whether two components may become one."""
        if a == b or not self.common(a, b):
            return False
        if not self.acyclic:
            return True
        trial = np.where(self.of == max(a, b), min(a, b), self.of)
        return not _has_cycle(trial, self.problem.source, self.problem.target)

    def fuse(self, a: int, b: int) -> int:
        """Make two components one."""
        low, high = min(a, b), max(a, b)
        self.shared[low] = self.common(a, b)
        self.of[self.of == high] = low
        return low

    def plan(self) -> FusionPlan:
        names, component_of = np.unique(self.of, return_inverse=True)
        rate = self.problem.rate
        crossing = self.of[self.problem.source] != self.of[self.problem.target]
        total = float(rate.sum())
        return FusionPlan(
            component_of=component_of.astype(np.int32),
            num_components=len(names),
            shared=tuple(self.shared[c] for c in names.tolist()),
            communication=float(rate[crossing].sum()) / total if total else 0.0,
        )


def _merge_greedily(components: _Components, score: Score) -> None:
    while True:
        scored = []
        for at, (i, j, rate) in enumerate(components.streams):
            a, b = int(components.of[i]), int(components.of[j])
            if a != b and components.common(a, b):
                points = rate if score == "traffic" else components.value(components.common(a, b))
                if points > 0:
                    scored.append((-points, at, a, b))
        for _, _, a, b in sorted(scored):
            if components.may_fuse(a, b):
                components.fuse(a, b)
                break
        else:
            return


def _grow(components: _Components, rng: np.random.Generator) -> None:
    alone = list(range(len(components.problem.operators)))
    at = alone[0]
    while alone:
        c = int(components.of[at])
        while True:
            best, most = -1, 0
            for i, j, _ in components.streams:
                a, b = int(components.of[i]), int(components.of[j])
                size = len(components.common(a, b))
                if a == c and j in alone and size > most and components.may_fuse(a, b):
                    best, most = b, size
            if best < 0:
                break
            c = components.fuse(c, best)
        alone = [o for o in alone if components.of[o] != c and o != at]
        if alone:
            at = int(rng.choice(alone))


def _has_cycle(
    group: npt.NDArray[np.int64], source: IntArray, target: IntArray, *, loops: bool = False
) -> bool:
    """Whether groups of operators wait for each other in a circle (Kahn's algorithm)."""
    edges = set(zip(group[source].tolist(), group[target].tolist(), strict=True))
    if loops and any(a == b for a, b in edges):
        return True
    following: dict[int, list[int]] = {}
    waits: dict[int, int] = {}
    for a, b in edges:
        if a != b:
            following.setdefault(a, []).append(b)
            waits[b] = waits.get(b, 0) + 1
            waits.setdefault(a, 0)
    ready = [g for g, count in waits.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for b in following.get(ready.pop(), []):
            waits[b] -= 1
            if waits[b] == 0:
                ready.append(b)
    return done < len(waits)
