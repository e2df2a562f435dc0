"""Graph of the traffic between key groups, and its balanced partitions by METIS (through pymetis).

Used by paper 2 §4.3.2 step 2 (ALBIC) and §5.3 (COLA).

Invariant: every part has at least one key group, whatever METIS returns; the result depends on the
input only (a fixed seed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pymetis
from scipy import sparse

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray, IndexArray, IntArray
    from godwit.placement.problem import Problem

_SCALE = 1_000_000
"""METIS takes whole numbers: the heaviest vertex or edge gets this weight."""


class KeyGroupGraph:
    """Undirected traffic between different key groups, both directions added up."""

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
    def has_traffic(self) -> bool:
        """True if any two different key groups exchange rows."""
        return self._heaviest > 0

    def between_units(self, unit_of: IntArray, units: int) -> sparse.csr_matrix:
        """Return the traffic between units (sets of key groups): symmetric, ``(units, units)``."""
        m = len(unit_of)
        member = sparse.csr_matrix((np.ones(m), (np.arange(m), unit_of)), shape=(m, units))
        traffic = sparse.csr_matrix(member.T @ self._matrix @ member)
        traffic.setdiag(0.0)
        traffic.eliminate_zeros()
        return traffic

    def partition(self, members: IndexArray, weight: FloatArray, parts: int) -> IntArray:
        """Partition key groups into balanced parts with little traffic between them.

        `members`: at least `parts` key groups. `weight`: load of all key groups of the problem.
        Returns the part of each member.
        """
        size = len(members)
        if parts <= 1:
            return np.zeros(size, np.int32)
        if parts >= size:
            return np.arange(size, dtype=np.int32)
        mine = weight[members]
        inner = self._matrix[members][:, members]
        if inner.nnz == 0:
            return _partition_by_weight(mine, parts)
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
        return part if len(np.unique(part)) == parts else _partition_by_weight(mine, parts)


def traffic_with_executors(
    traffic: sparse.csr_matrix, place: IntArray, executors: int
) -> FloatArray:
    """Return each unit's traffic with the units on each executor, shape ``(units, executors)``."""
    units = len(place)
    holds = sparse.csr_matrix((np.ones(units), (np.arange(units), place)), (units, executors))
    return np.asarray((traffic @ holds).todense(), np.float64)


def _partition_by_weight(weight: FloatArray, parts: int) -> IntArray:
    """Return the part of each key group, the heaviest first assigned to the lightest part."""
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
