"""Fusion: grouping operators into components that share one exchange and one partitioning.

Greedily for few components and little data between them: paper 3 §4.4.1, Algorithm 1, its
alternative score, and the baseline of §7.6.

Invariant: every operator is in exactly one component, and the operators of a component have a
partition attribute in common.  With ``acyclic`` (the default) the components form no cycle, because
a component runs as one stage; the paper's algorithm does not look at that.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from godwit.placement.arrays import (
    FloatArray,
    IntArray,
    freeze_array,
    require_index,
    require_load,
    set_field,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Score = Literal["traffic", "attributes", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusionProblem:
    """A directed acyclic graph of e streams between operators.

    Raises `InvalidProblemError` if sizes differ, an operator does not exist, a rate is negative, or
    there is a cycle.
    """

    operators: tuple[str, ...]  # distinct names
    # partition attributes of each operator, PA(O_j); none means that it cannot be fused
    attributes: tuple[frozenset[str], ...]
    # shape ``(e,)``: operators at the two ends of each stream
    source: IntArray
    target: IntArray
    rate: FloatArray  # shape ``(e,)``: rows per second on each stream
    # what each attribute counts in the score by attributes; 1 where it is not named
    attribute_values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # what the attributes in common of a component must sum up to; with logarithms of cardinalities
    # as values, the logarithm of the partitions that it needs
    min_value: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "operators", tuple(self.operators))
        set_field(self, "attributes", tuple(frozenset(a) for a in self.attributes))
        if not self.operators or len(set(self.operators)) != len(self.operators):
            raise wrong_value("operators", self.operators, "give one operator or more, each once")
        if len(self.attributes) != len(self.operators):
            raise wrong_value(
                "attributes", f"{len(self.attributes)} sets", f"give {len(self.operators)}"
            )
        freeze_array(self, "source", np.int32, ndim=1)
        freeze_array(self, "target", np.int32, shape=self.source.shape)
        freeze_array(self, "rate", np.float64, shape=self.source.shape)
        require_load(self.rate, "rate")
        for name in ("source", "target"):
            require_index(getattr(self, name), len(self.operators), name, "operators")
        for attribute, value in self.attribute_values.items():
            if not 0 <= value < np.inf:
                raise wrong_value(
                    f"attribute_values[{attribute!r}]", value, "give a finite number ≥ 0"
                )
        size = len(self.operators)
        if len(_topological_order(size, self.source.tolist(), self.target.tolist())) < size:
            raise wrong_value("source, target", "a cycle", "operators must form a DAG")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusionPlan:
    """Operators' components."""

    # shape ``(operators,)``: component of each operator, numbered by their first operators
    component_of: IntArray
    num_components: int  # how many there are
    # partition attributes that all operators of each component have in common
    shared: tuple[frozenset[str], ...]
    communication: float  # share of the rows, in [0, 1], that cross from one component to another


def plan_fusion(
    problem: FusionProblem,
    *,
    score: Score = "traffic",
    acyclic: bool = True,
    rng: np.random.Generator | None = None,
) -> FusionPlan:
    """Plan which operators to fuse, greedily (paper 3 §4.4.1).

    `score` ``"traffic"`` fuses the two connected components with the stream of the highest rate
    first; ``"attributes"`` those with most attribute values in common, needing no rates;
    ``"baseline"`` grows one component at a time from the first operator, then from random ones.
    `acyclic`: components must not form cycles. Ties: the first stream. O(streams · log(streams) +
    operators²) time where few fusions are forbidden, at most O(operators · streams · log(streams)).
    """
    if score not in {"traffic", "attributes", "baseline"}:
        raise wrong_value("score", score, "give traffic, attributes or baseline")
    components = _Components(problem, acyclic=acyclic)
    if score == "baseline":
        _fuse_one_by_one(components, np.random.default_rng(0) if rng is None else rng)
    else:
        _merge_greedily(components, score)
    return components.plan()


class _Components:
    """Operators' components while they grow; a component is named after its lowest operator.

    Which components wait for which is kept as bit sets, so that a fusion is checked for cycles by
    one intersection: ``_before[c]`` and ``_after[c]`` are all components that c waits for and that
    wait for c, ``_next[c]`` those that c sends to.
    """

    def __init__(self, problem: FusionProblem, *, acyclic: bool) -> None:
        self.problem, self.acyclic = problem, acyclic
        size = len(problem.operators)
        self.labels = list(range(size))
        self.members = [[o] for o in range(size)]
        self.shared = list(problem.attributes)
        self.source, self.target = problem.source.tolist(), problem.target.tolist()
        self.rate = problem.rate.tolist()
        self._next = [0] * size
        for i, j in zip(self.source, self.target, strict=True):
            self._next[i] |= 1 << j
        self._after, self._before = list(self._next), [0] * size
        order = _topological_order(size, self.source, self.target)
        for o in reversed(order):
            for after in _set_bits(self._next[o]):
                self._after[o] |= self._after[after]
        for o in order:
            for after in _set_bits(self._after[o]):
                self._before[after] |= 1 << o

    def common(self, a: int, b: int) -> frozenset[str]:
        """Return the partition attributes that the components numbered a and b have in common."""
        return self.shared[a] & self.shared[b]

    def value(self, attributes: frozenset[str]) -> float:
        """Return the sum of the values of partition attributes, by which fusions are compared."""
        values = self.problem.attribute_values
        return float(sum(values.get(a, 1.0) for a in sorted(attributes)))

    def waits_between(self, a: int, b: int) -> bool:
        """Return whether a third component lies on a path from `a` to `b`: fusing makes a cycle."""
        return self.acyclic and bool(self._next[a] & ~(1 << b) & self._before[b])

    def fuse(self, first: int, second: int) -> int:
        """Fuse the components numbered a and b; return the number of the fused one."""
        low, high = min(first, second), max(first, second)
        self.shared[low] = self.common(first, second)
        for operator in self.members[high]:
            self.labels[operator] = low
        self.members[low] += self.members[high]
        if self.acyclic:
            self._merge_links(low, high)
        return low

    def _merge_links(self, low: int, high: int) -> None:
        """Add the upstream and downstream components of `high` to those of `low`."""
        high_bit, low_bit = 1 << high, 1 << low
        other_bits = ~(high_bit | low_bit)
        for sets in (self._next, self._after, self._before):
            sets[low] = (sets[low] | sets[high]) & other_bits
        before, after = self._before[low], self._after[low]
        for component in _set_bits(before):
            if self._next[component] & high_bit:
                self._next[component] = (self._next[component] & ~high_bit) | low_bit
            self._after[component] = ((self._after[component] | after) & ~high_bit) | low_bit
        for component in _set_bits(after):
            self._before[component] = ((self._before[component] | before) & ~high_bit) | low_bit

    def plan(self) -> FusionPlan:
        """Return the components as a plan, with the rows exchanged between them."""
        labels = np.array(self.labels)
        names, component_of = np.unique(labels, return_inverse=True)
        rate = self.problem.rate
        crossing = labels[self.problem.source] != labels[self.problem.target]
        total = float(rate.sum())
        return FusionPlan(
            component_of=component_of.astype(np.int32),
            num_components=len(names),
            shared=tuple(self.shared[c] for c in names.tolist()),
            communication=float(rate[crossing].sum()) / total if total else 0.0,
        )


def _merge_greedily(components: _Components, score: Score) -> None:
    """Fuse along the best stream, repeatedly.

    A stream that must not be fused waits for a change at either end: a component between two others
    only disappears by becoming part of one of them.
    """

    def score_of(stream: int) -> float:
        common = components.common(labels[source[stream]], labels[target[stream]])
        value = components.value(common)
        if not common or value < components.problem.min_value:
            return 0.0
        return components.rate[stream] if score == "traffic" else value

    source, target, labels = components.source, components.target, components.labels
    heap = [(-score_of(stream), stream) for stream in range(len(source))]
    heapq.heapify(heap)
    waiting: dict[int, list[tuple[float, int]]] = {}
    while heap:
        negative_score, stream = heapq.heappop(heap)
        sender, receiver = labels[source[stream]], labels[target[stream]]
        if sender == receiver or negative_score == 0:
            continue
        present_score = score_of(stream)
        if present_score != -negative_score:  # less is common than when it was scored
            heapq.heappush(heap, (-present_score, stream))
        elif components.waits_between(sender, receiver):
            waiting.setdefault(sender, []).append((negative_score, stream))
            waiting.setdefault(receiver, []).append((negative_score, stream))
        else:
            components.fuse(sender, receiver)
            for entry in waiting.pop(sender, []) + waiting.pop(receiver, []):
                heapq.heappush(heap, entry)


def _fuse_one_by_one(components: _Components, rng: np.random.Generator) -> None:
    """Grow one component at a time, as far as attributes allow (baseline of paper 3 §7.6)."""
    labels, target = components.labels, components.target
    streams_of: list[list[int]] = [[] for _ in labels]
    for stream, operator in enumerate(components.source):
        streams_of[operator].append(stream)
    ungrown = list(range(len(labels)))
    last = ungrown[0]
    while ungrown:
        component, waiting = labels[last], set(ungrown)
        while True:
            best, greatest = -1, 0
            for stream in sorted(
                stream_
                for operator_ in components.members[component]
                for stream_ in streams_of[operator_]
            ):
                candidate = labels[target[stream]]
                if candidate == component or target[stream] not in waiting:
                    continue
                size = len(components.common(component, candidate))
                if size > greatest and not components.waits_between(component, candidate):
                    best, greatest = candidate, size
            if best < 0:
                break
            component = components.fuse(component, best)
        ungrown = [
            operator_
            for operator_ in ungrown
            if labels[operator_] != component and operator_ != last
        ]
        if ungrown:
            last = int(rng.choice(ungrown))


def _set_bits(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits of a number, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _topological_order(size: int, source: list[int], target: list[int]) -> list[int]:
    """Return the operators, each after all that feed it; only some of them if there is a cycle."""
    successors: list[list[int]] = [[] for _ in range(size)]
    num_predecessors = [0] * size
    for sender, receiver in zip(source, target, strict=True):
        successors[sender].append(receiver)
        num_predecessors[receiver] += 1
    order = [operator for operator in range(size) if num_predecessors[operator] == 0]
    for operator in order:
        for successor in successors[operator]:
            num_predecessors[successor] -= 1
            if num_predecessors[successor] == 0:
                order.append(successor)
    return order
