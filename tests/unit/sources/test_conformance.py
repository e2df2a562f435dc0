"""Every rule of the source contract is checked: a source that breaks one is refused by its name."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = pa.schema({"n": pa.int64(), "even": pa.bool_(), "at": pa.timestamp("us", tz="UTC")})
COUNT = [40]  # rows there are, in this process; a test may add some


class Numbers(Source):
    """A source that keeps every rule; those below break one each."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def identity(self) -> str:
        return "numbers"

    def start(self) -> Any:
        return {"next": 0}

    def latest(self, position: Any, *, limit: int | None = None, until: Any = None) -> Any:
        ends = [COUNT[0]]
        ends += [] if limit is None else [position["next"] + limit]
        ends += [] if until is None else [until["next"]]
        return {"next": max(position["next"], min(ends))}

    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        first, stop = begin["next"], end["next"]
        edges = [first + (stop - first) * n // parallelism for n in range(parallelism + 1)]
        return [
            Split(rows=b - a, size_bytes=8 * (b - a), what=f"from {a}", payload=(a, b))
            for a, b in itertools.pairwise(edges)
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        numbers = list(range(*split.payload))
        yield self.batch(numbers, columns)

    def batch(self, numbers: list[int], columns: Sequence[str]) -> pa.RecordBatch:
        made = {"n": numbers, "even": [n % 2 == 0 for n in numbers], "at": numbers}
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        arrays = [pa.array(made[f.name], pa.int64() if f.name == "at" else f.type) for f in schema]
        return pa.RecordBatch.from_arrays(
            [a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
        )


class SchemaOfNoColumns(Numbers):
    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])


class SchemaThatIsNone(Numbers):
    @property
    def schema(self) -> Any:
        return {"n": "bigint"}


class SchemaThatVaries(Numbers):
    asked = 0

    @property
    def schema(self) -> pa.Schema:
        self.asked += 1
        return SCHEMA if self.asked % 2 else pa.schema({"n": pa.int64()})


class NoIdentity(Numbers):
    @property
    def identity(self) -> str:
        return ""


class IdentityOfTheObject(Numbers):
    @property
    def identity(self) -> str:
        return f"numbers {id(self)}"


class ArrivalOfNoTimestamp(Numbers):
    arrival_time = "n"


class CannotBePickled(Numbers):
    def __init__(self) -> None:
        self.function = lambda: None


class PositionOfTuples(Numbers):
    def start(self) -> Any:
        return (0, 1)


class PositionOfObjects(Numbers):
    def start(self) -> Any:
        return {"next": object()}


class PositionThatIsChanged(Numbers):
    def latest(self, position: Any, **options: Any) -> Any:
        position["next"] += 0
        position["asked"] = True
        return super().latest({"next": position["next"]}, **options)


class NothingToRead(Numbers):
    def latest(self, position: Any, **options: Any) -> Any:
        return dict(position)


class SplitsThatOverlap(Numbers):
    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        splits = super().splits(begin, end, parallelism)
        return [*splits, splits[0]] if parallelism == 3 else splits


class SplitsOutOfOrder(Numbers):
    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        return list(reversed(super().splits(begin, end, parallelism)))


class SplitsThatMiscount(Numbers):
    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        return [
            Split(rows=99, size_bytes=None, what=split.what, payload=split.payload)
            for split in super().splits(begin, end, parallelism)
        ]


class SplitsOfNoName(Numbers):
    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        return [
            Split(rows=None, size_bytes=None, what="", payload=split.payload)
            for split in super().splits(begin, end, parallelism)
        ]


class SplitsThatCannotBePickled(Numbers):
    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        return [
            Split(rows=None, size_bytes=None, what=s.what, payload=lambda s=s: s.payload)
            for s in super().splits(begin, end, parallelism)
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield self.batch(list(range(*split.payload())), columns)


class RowsThatGoOnCounting(Numbers):
    reads = 0

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        first, stop = split.payload
        if self.reads > 30:
            first, stop = first + 1, stop + 1
        yield self.batch(list(range(first, stop)), columns)


class RowsOfWhatWasOpened(Numbers):
    first = 0

    def open(self, position: Any) -> None:
        self.first = 100

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield self.batch([self.first + n for n in range(*split.payload)], columns)


class ColumnsInAnOrderOfItsOwn(Numbers):
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield self.batch(list(range(*split.payload)), sorted(columns))


class ColumnsOfOtherTypes(Numbers):
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in super().read(split, columns):
            small = [c.cast(pa.int32()) if c.type == pa.int64() else c for c in batch.columns]
            yield pa.RecordBatch.from_arrays(small, batch.schema.names)


class TablesForBatches(Numbers):
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[Any]:
        yield pa.Table.from_batches(list(super().read(split, columns)))


class ColumnsThatDependOnOthers(Numbers):
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        numbers = list(range(*split.payload))
        yield self.batch(numbers if len(columns) > 1 else [n * 2 for n in numbers], columns)


class LimitsThatAreIgnored(Numbers):
    def latest(self, position: Any, **options: Any) -> Any:
        return super().latest(position, until=options.get("until"))


class LimitsThatStopIt(Numbers):
    def latest(self, position: Any, *, limit: int | None = None, until: Any = None) -> Any:
        return super().latest(position, limit=None if limit is None else limit // 2, until=until)


class EndsThatMove(Numbers):
    def latest(self, position: Any, *, limit: int | None = None, until: Any = None) -> Any:
        return super().latest(position, limit=limit)


class RowsThatAreNotFoundLater(Numbers):
    seen = -1

    def latest(self, position: Any, **options: Any) -> Any:
        self.seen = COUNT[0] if self.seen < 0 else self.seen
        after = super().latest(position, **options)
        return {"next": min(after["next"], max(self.seen, position["next"]))}


class TakesEveryPositionForEarlier(Numbers):
    def precedes(self, position: Any, other: Any) -> bool:
        return bool(position["next"] <= other["next"])


class ForgetsItsPosition(Numbers):
    done = False

    def open(self, position: Any) -> None:
        self.done = position is not None

    def splits(self, begin: Any, end: Any, parallelism: int) -> Sequence[Split]:
        return super().splits({"next": 0} if self.done else begin, end, parallelism)


class LagOfNoKind(Numbers):
    def lag(self, position: Any) -> Any:
        return 3


class LagBelowZero(Numbers):
    def lag(self, position: Any) -> Lag:
        return Lag(rows=-1)


class DescribesNothing(Numbers):
    def describe(self, position: Any) -> Any:
        return "far"


class RaisesInCommitted(Numbers):
    def committed(self, position: Any) -> None:
        raise KeyError(position["next"])


class CannotBeClosedAgain(Numbers):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


def add() -> None:
    COUNT[0] += 5


@pytest.fixture(autouse=True)
def _forty_rows() -> Iterator[None]:
    yield
    COUNT[0] = 40


def test_a_source_that_keeps_all_rules_passes() -> None:
    gw.testing.check_source(Numbers(), add=add)
    gw.testing.check_source(Numbers(), max_rows=7)


@pytest.mark.parametrize(
    ("broken", "rule", "said"),
    [
        (SchemaOfNoColumns, "schema", "none, or duplicates"),
        (SchemaThatIsNone, "schema", "not a pa.Schema"),
        (SchemaThatVaries, "schema", "a second call returns another"),
        (NoIdentity, "identity", "not a string"),
        (IdentityOfTheObject, "identity", "pickled copy"),
        (ArrivalOfNoTimestamp, "arrival time", "'n'"),
        (CannotBePickled, "copies", "cannot be pickled"),
        (PositionOfTuples, "positions", "when stored and loaded"),
        (PositionOfObjects, "positions", "cannot be stored"),
        (PositionThatIsChanged, "positions", "modifies its argument position"),
        (NothingToRead, "rows", "no rows to read"),
        (SplitsThatOverlap, "splits", "other rows than a single one"),
        (SplitsOutOfOrder, "splits", "other rows than a single one"),
        (SplitsThatMiscount, "splits", "declares 99 rows, but returns"),
        (SplitsOfNoName, "splits", "what="),
        (SplitsThatCannotBePickled, "splits", "cannot be pickled"),
        (RowsThatGoOnCounting, "the rule", "differs"),
        (RowsOfWhatWasOpened, "the rule", "never opened"),
        (ColumnsInAnOrderOfItsOwn, "columns", "read yields"),
        (ColumnsOfOtherTypes, "columns", "int32"),
        (TablesForBatches, "columns", "not a RecordBatch"),
        (ColumnsThatDependOnOthers, "columns", "differs from that of all columns"),
        (LimitsThatAreIgnored, "limits", "gives 40 rows"),
        (LimitsThatStopIt, "limits", "gives none"),
        (EndsThatMove, "until", "earlier end"),
        (RowsThatAreNotFoundLater, "latest", "not found"),
        (TakesEveryPositionForEarlier, "positions", "goes back from"),
        (ForgetsItsPosition, "continuing", "after a restart"),
        (LagOfNoKind, "lag", "int"),
        (LagBelowZero, "lag", "negative"),
        (DescribesNothing, "describe", "not a dict"),
        (RaisesInCommitted, "committed", "raised KeyError"),
        (CannotBeClosedAgain, "close", "closed already"),
    ],
)
def test_a_rule_that_is_broken_is_named(broken: type[Source], rule: str, said: str) -> None:
    with pytest.raises(gw.errors.SourceError, match=said) as failed:
        gw.testing.check_source(broken(), add=add)
    assert failed.value.context["rule"] == rule
    assert broken.__name__ in failed.value.message
    assert failed.value.remedy


def test_a_value_that_is_no_source_is_refused() -> None:
    with pytest.raises(gw.errors.SourceError, match="value of type list"):
        gw.testing.check_source([1])  # type: ignore[arg-type]
