"""Balanced partitions of the traffic graph, by METIS.

Problem: cut a set of key groups into parts of about equal weight with little traffic between them.

Invariant: every part has at least one key group, whatever METIS returns; the result depends on the
input only (a fixed seed).

Source: paper 2 §4.3.2 step 2 and §5.3; Karypis and Kumar's multilevel partitioning through pymetis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pymetis
from scipy import sparse

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IndexArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["KeyGroupGraph", "with_executors"]

_SCALE = 1_000_000
"""METIS takes whole numbers: the heaviest vertex or edge gets this weight."""


class KeyGroupGraph:
    """The traffic between key groups as an undirected graph.

    `problem`: its traffic in both directions is added up; traffic of a key group to itself is left
    out.
    """

    def __init__(self, problem: Problem) -> None:
        m, traffic = problem.num_key_groups, problem.traffic
        directed = sparse.coo_matrix(
            (traffic.rate, (traffic.source, traffic.target)), shape=(m, m)
        ).tocsr()
        undirected = sparse.csr_matrix(directed + directed.T)
        undirected.setdiag(0.0)
        undirected.eliminate_zeros()
        self._matrix = undirected
        self._heaviest = float(undirected.data.max(initial=0.0))

    @property
    def talks(self) -> bool:
        """Return whether there is any traffic between key groups."""
        return self._heaviest > 0

    def between(self, unit_of: IntArray, units: int) -> sparse.csr_matrix:
        """Symmetric, shape ``(units, units)``: traffic between units, both directions added up.

        `unit_of`: shape ``(m,)``: the unit of each key group. `units`: how many there are.
        """
        m = len(unit_of)
        member = sparse.csr_matrix((np.ones(m), (np.arange(m), unit_of)), shape=(m, units))
        traffic = sparse.csr_matrix(member.T @ self._matrix @ member)
        traffic.setdiag(0.0)
        traffic.eliminate_zeros()
        return traffic

    def bisect(self, members: IndexArray, weight: FloatArray) -> tuple[IndexArray, IndexArray]:
        """Cut `members` in two parts of about equal weight."""
        part = self.partition(members, weight, 2)
        return members[part == 0], members[part == 1]

    def partition(self, members: IndexArray, weight: FloatArray, parts: int) -> IntArray:
        """Shape ``(members,)``: part of each member, ``0 <= part < parts``, each used.

        `members`: key groups, at least `parts` of them. `weight`: shape ``(m,)``: weight of every
        key group of the problem. `parts`: number of parts.
        """
        size = len(members)
        if parts <= 1:
            return np.zeros(size, np.int32)
        if parts >= size:
            return np.arange(size, dtype=np.int32)
        mine = weight[members]
        inner = self._matrix[members][:, members]
        if inner.nnz == 0:
            return _deal(mine, parts)
        largest = float(mine.max())
        vertex = np.maximum(1, np.rint(mine / largest * _SCALE if largest > 0 else mine + 1))
        edge = np.maximum(1, np.rint(inner.data / self._heaviest * _SCALE))
        _, parts_of = pymetis.part_graph(
            parts,
            pymetis.CSRAdjacency(inner.indptr.tolist(), inner.indices.tolist()),
            vweights=vertex.astype(np.int64).tolist(),
            eweights=edge.astype(np.int64).tolist(),
            recursive=parts <= 8,
            options=pymetis.Options(seed=1),
        )
        part = np.asarray(parts_of, np.int32)
        return part if len(np.unique(part)) == parts else _deal(mine, parts)


def with_executors(traffic: sparse.csr_matrix, place: IntArray, executors: int) -> FloatArray:
    """Shape ``(units, executors)``: traffic between each unit and the units of each executor.

    `traffic`: from `KeyGroupGraph.between`. `place`: shape ``(units,)``: executor of each unit.
    `executors`: how many there are.
    """
    units = len(place)
    holds = sparse.csr_matrix((np.ones(units), (np.arange(units), place)), (units, executors))
    return np.asarray((traffic @ holds).todense(), np.float64)


def _deal(weight: FloatArray, parts: int) -> IntArray:
    """Heaviest first to the lightest part: for graphs without edges, where no cut is better."""
    part = np.empty(len(weight), np.int32)
    load = np.zeros(parts)
    counts = np.zeros(parts, np.int64)
    for k in np.argsort(-weight, kind="stable").tolist():
        # An empty part goes first, so that none stays empty when weights are zero.
        to = int(np.lexsort((load, counts > 0))[0])
        part[k] = to
        load[to] += weight[k]
        counts[to] += 1
    return part
