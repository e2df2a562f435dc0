"""A flow whose function does to several named states what its rows say, and a model of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame
from tests.support.timed_run import TimedRun

from godwit.api.flow import LogicalFlow
from godwit.operators.declared import ListState, MapState, ValueState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["MINUTE", "STATES", "Model", "Row", "StatesRun", "obey"]

ROWS = pa.schema(
    [("k", pa.string()), ("op", pa.string()), ("item", pa.string()), ("n", pa.int64())]
)
MINUTE = 60_000_000
Row = tuple[str, str, str, int]

STATES: dict[str, Any] = {
    "total": ValueState(int, ttl="3 minutes"),
    "log": ValueState(list[int]),
    "recent": ListState(int, ttl="2 minutes"),
    "notes": ListState(dict[str, int]),
    "per_item": MapState(str, int, ttl="4 minutes"),
    "groups": MapState(tuple[str, int], list[int]),
}


def obey(key: Any, rows: Any, states: Any) -> Any:
    """Do what rows say, and tell what was found."""
    for row in rows:
        for told in _obey(row.op, row.item, row.n, states):
            yield key[0], row.op, json.dumps(told)
        if row.op == "drop":
            rows.drop_state()


def _obey(op: str, item: str, n: int, states: Any) -> Any:
    if op == "add":
        states.total.value += n
    elif op == "total":
        yield [states.total.exists, states.total.value]
    elif op == "forget":
        states["total"].clear()
        states.log.clear()
    elif op == "log":
        states.log.value.append(n)
        yield states.log.value
    elif op == "push":
        states.recent.extend([n] * (1 + n * n))
        states.notes.append({item: n})
    elif op == "note":
        for note in states.notes:
            note[item] = n
    elif op == "list":
        yield [bool(states.recent), list(states.recent), states.notes[:]]
    elif op == "replace":
        states.recent.replace([n, n + 1])
        states.notes.clear()
    elif op == "put":
        states.per_item[item] = states.per_item.get(item, 0) + n
        states.groups.setdefault((item, n), []).append(n)
    elif op == "many":
        for number in range(n * 20):
            states.per_item[f"{item}{number}"] = number
    elif op == "few":
        for number in range(n * 20):
            states.per_item.pop(f"{item}{number}", None)
    elif op == "pop":
        states.per_item.pop(item, None)
        yield [item in states.per_item, (item, n) in states.groups]
        states.groups.pop((item, n), None)
    elif op == "map":
        yield [list(states.per_item.items()), len(states.groups), list(states.groups.items())]
    elif op == "empty":
        states.per_item.clear()
    else:
        assert op in ("nothing", "drop")


class StatesRun(TimedRun):
    """Lanes of that flow, in one process."""

    def __init__(
        self,
        root: Path,
        *,
        executors: Mapping[str, int] | None = None,
        function: Any = obey,
        states: Any = None,
        **options: Any,
    ) -> None:
        flow = LogicalFlow("flow", 8)
        frame: Any = FakeDataFrame(ROWS)
        stream = (
            flow.source("rows", frame)
            .key_by("k")
            .process(
                function,
                state=STATES if states is None else states,
                output="k string, op string, told string",
                name="obeying",
                **options,
            )
        )
        super().__init__(flow, stream, root, executors=executors)

    def epoch(self, rows: Iterable[Row], minutes: float = 0) -> list[tuple[Any, ...]]:
        """Run an epoch, some minutes after the last; return what came out, sorted by key."""
        self.run.clock_us += int(minutes * MINUTE)
        columns = list(zip(*rows, strict=True))
        batches = {}
        if columns:
            arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=ROWS)
            batches = {0: [batch.select(list(self.compiled.inputs[0].columns))]}
        self.play(batches)
        return sorted(self.output("out", ordered=False), key=lambda row: row[0])

    def entries(self, state: str) -> int:
        """Entries of a state in the checkpoint."""
        return len(self.run.held(state=state))


class _Value:
    def __init__(self, new: Any) -> None:
        self._new = new
        self._held: Any = None
        self._expires = 0.0
        self.clock = 0.0
        self.ttl = float("inf")

    @property
    def exists(self) -> bool:
        return self._held is not None and self._expires > self.clock

    @property
    def value(self) -> Any:
        if not self.exists:
            return self._new()
        return self._held

    @value.setter
    def value(self, value: Any) -> None:
        self._held, self._expires = value, self.clock + self.ttl

    def clear(self) -> None:
        self._held = None


class _Log(_Value):
    """A value that is changed in place."""

    @property  # type: ignore[misc]
    def value(self) -> Any:
        if self._held is None:
            self._held, self._expires = self._new(), float("inf")
        return self._held


class _Notes(list[Any]):
    def replace(self, elements: Any) -> None:
        self[:] = elements


class _Recent:
    def __init__(self) -> None:
        self._held: list[tuple[Any, float]] = []
        self.clock = 0.0

    def __iter__(self) -> Any:
        return iter([element for element, expires in self._held if expires > self.clock])

    def __bool__(self) -> bool:
        return bool(list(self))

    def extend(self, elements: Any) -> None:
        self._held += [(element, self.clock + 2) for element in elements]

    def replace(self, elements: Any) -> None:
        self._held = []
        self.extend(elements)


class _PerItem(dict[str, Any]):
    """A dict that forgets what was not set for four minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0
        self.expires: dict[str, float] = {}

    def __setitem__(self, item: str, value: Any) -> None:
        super().__setitem__(item, value)
        self.expires[item] = self.clock + 4

    def forget(self) -> None:
        for item in [item for item in self if self.expires[item] <= self.clock]:
            del self[item]


@dataclass
class _States:
    total: _Value = field(default_factory=lambda: _Value(int))
    log: _Log = field(default_factory=lambda: _Log(list))
    recent: _Recent = field(default_factory=_Recent)
    notes: _Notes = field(default_factory=_Notes)
    per_item: _PerItem = field(default_factory=_PerItem)
    groups: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def at(self, clock: float) -> _States:
        self.total.clock = self.recent.clock = self.per_item.clock = clock
        self.total.ttl = 3
        self.per_item.forget()
        return self


class Model:
    """The same rows over dicts and lists."""

    def __init__(self) -> None:
        self._keys: dict[str, _States] = {}
        self._clock = 0.0

    def epoch(self, rows: Iterable[Row], minutes: float = 0) -> list[tuple[Any, ...]]:
        """Give what comes out, sorted by key."""
        self._clock += minutes
        found = []
        dropped = set()
        for key, op, item, n in rows:
            states = self._keys.setdefault(key, _States()).at(self._clock)
            found += [(key, op, json.dumps(told)) for told in _obey(op, item, n, states)]
            if op == "drop":
                dropped.add(key)
        for key in dropped:
            del self._keys[key]
        return sorted(found, key=lambda row: row[0])
