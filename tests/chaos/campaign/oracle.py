"""Expected results of a history, computed from its rows and from nothing of Godwit's.

The flow's *witness* emits every row with the generation of the flow that processed it.  So it says
which rows each epoch had, and under which flow; everything else follows by plain arithmetic.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from tests.chaos.campaign.histories import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.chaos.campaign.histories import History, Operator

__all__ = ["problems", "rows_of_file"]

KEYS, SHARDS, ROWS = 30, 7, 40
Row = dict[str, int]


def rows_of_file(seed: int, number: int) -> list[Row]:
    """Rows of one input file: those of a key are numbered on from file to file."""
    # Each file has every key once and some keys more often, the same number in every file.
    again = random.Random(seed).choices(range(KEYS), k=ROWS - KEYS)
    per_file = Counter([*range(KEYS), *again])
    seen: Counter[int] = Counter()
    rng = random.Random(seed * 1_000_003 + number)
    rows = []
    for k in [*range(KEYS), *again]:
        rows.append(
            {
                "k": k,
                "shard": k % SHARDS,
                "number": number * per_file[k] + seen[k],
                "v": rng.randint(-50, 50),
            }
        )
        seen[k] += 1
    return rows


def problems(history: History, directory: Path, files: int) -> Iterator[str]:
    """Say everything that is wrong with what a finished history left in ``directory/out``."""
    rows_put = [row for number in range(files) for row in rows_of_file(history.seed, number)]
    put = {(row["k"], row["number"]): (at, row) for at, row in enumerate(rows_put)}
    witnessed = _epochs(directory / "out" / "witness")
    found = Counter((row["k"], row["number"]) for rows in witnessed.values() for row in rows)
    if found != Counter(put.keys()):
        lost = sorted((Counter(put.keys()) - found).elements())[:5]
        doubled = sorted((found - Counter(put.keys())).elements())[:5]
        yield f"rows lost: {lost}, rows doubled: {doubled}"
        return
    model = _Model(history)
    for epoch in sorted(witnessed):
        # The witness emits key by key; here they are in the order in which they came.
        rows = [
            row
            for _, row in sorted(
                (put[w["k"], w["number"]] for w in witnessed[epoch]), key=lambda placed: placed[0]
            )
        ]
        generations = {row["g"] for row in witnessed[epoch]}
        if len(generations) != 1:
            yield f"epoch {epoch} ran under generations {sorted(generations)}"
            return
        expected = model.epoch(generations.pop(), rows)
        for operator, whole in expected:
            wanted = whole
            got, columns = _emitted(directory / "out" / operator.uid, epoch, operator)
            if not got and _may_have_left(history, operator, epoch, witnessed):
                continue
            if columns:  # those that the shape it was delivered in has left
                wanted = Counter(
                    tuple(item for item in row if item[0] in columns) for row in wanted.elements()
                )
            if got != wanted:
                missing = list((wanted - got).elements())[:1]
                extra = list((got - wanted).elements())[:1]
                yield f"epoch {epoch}, {operator.uid}: {missing} expected, {extra} found"
                return


def _may_have_left(
    history: History, operator: Operator, epoch: int, witnessed: dict[int, list[dict[str, Any]]]
) -> bool:
    """True if this is the last epoch of an operator that a later generation does not have.

    If the query ended between commit and delivery, there is no sink to deliver the epoch to.
    """
    generation = witnessed[epoch][0]["g"]
    later = [rows[0]["g"] for number, rows in witnessed.items() if number > epoch]
    following = min(later, default=len(history.generations) - 1)
    return any(
        operator.uid not in {o.uid for o in history.generations[g]}
        for g in range(generation + 1, following + 1)
    )


def _epochs(directory: Path) -> dict[int, list[dict[str, Any]]]:
    return {
        int(epoch.name[6:]): [
            row
            for path in sorted(epoch.glob("*.parquet"))
            for row in pq.ParquetFile(path).read().to_pylist()
        ]
        for epoch in directory.glob("epoch=*")
    }


def _emitted(
    directory: Path, epoch: int, operator: Operator
) -> tuple[Counter[tuple[Any, ...]], set[str]]:
    """Rows of one epoch, and their columns if there are any.

    A sink has a directory for each of the shapes that its rows had.

    An epoch that was committed but not delivered is delivered when the flow starts again, which
    may be in another shape: columns that the epoch did not know yet are null then, and others may
    be gone.
    """
    shapes = sorted(directory.glob("*"), key=lambda shape: shape.name != shape_of(operator))
    known = {operator.by, "v", *(result for result, _ in operator.results)}
    for shape in shapes:
        parts = sorted((shape / f"epoch={epoch}").glob("*.parquet"))
        if parts:
            rows = [row for path in parts for row in pq.ParquetFile(path).read().to_pylist()]
            assert all(row[name] is None for row in rows for name in row.keys() - known)
            columns = {name for row in rows for name in row.keys() & known}
            return Counter(
                tuple(sorted((name, row[name]) for name in row.keys() & known)) for row in rows
            ), columns
    return Counter(), set()


class _Model:
    """Every operator as a dictionary."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._generation = -1
        # (uid, result) → key → values so far; an aggregate that leaves takes its values along.
        self._seen: dict[tuple[str, str], dict[int, list[int]]] = {}

    def epoch(
        self, generation: int, rows: Sequence[Row]
    ) -> list[tuple[Operator, Counter[tuple[Any, ...]]]]:
        """Process an epoch and return what each operator emits in it."""
        operators = self._history.generations[generation]
        # Generations that committed nothing never were.
        if generation != self._generation:
            there = {(o.uid, result) for o in operators for result, _ in o.results}
            self._seen = {key: seen for key, seen in self._seen.items() if key in there}
            self._generation = generation
        return [(operator, self._operator(operator, rows)) for operator in operators]

    def _operator(self, operator: Operator, rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
        if operator.kind == "process":
            return Counter(
                tuple(sorted({operator.by: row[operator.by], "v": row["v"]}.items()))
                for row in rows
            )
        for result, aggregate in operator.results:
            seen = self._seen.setdefault((operator.uid, result), {})
            for row in rows:
                column = "number" if aggregate == "last" else "v"
                seen.setdefault(row[operator.by], []).append(row[column])
        emitted: Counter[tuple[Any, ...]] = Counter()
        for key in {row[operator.by] for row in rows}:
            values = {
                result: _aggregated(aggregate, self._seen[operator.uid, result].get(key, []))
                for result, aggregate in operator.results
            }
            emitted[tuple(sorted({operator.by: key, **values}.items()))] += 1
        return emitted


def _aggregated(aggregate: str, values: Sequence[int]) -> int | float | None:
    match aggregate:
        case "count":
            return len(values)
        case "sum":
            return sum(values) if values else None
        case "min":
            return min(values, default=None)
        case "max":
            return max(values, default=None)
        case "mean":
            return sum(values) / len(values) if values else None
        case _:
            return values[-1] if values else None
