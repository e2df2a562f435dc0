"""A flow that starts again and again on one checkpoint, its program changed, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.fuzz.variants import chain_again, record_in
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.manual_run import ManualRun

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.framing import encode_record
from godwit.local import lane_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from godwit.api.streams import Stream
    from godwit.engine.event_time import EventTimes

__all__ = ["COLUMNS", "TIME", "Restarted", "Shift", "changed"]

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema([("k", pa.string()), ("ts", TIME), ("v", pa.int64())])


@dataclass(frozen=True)
class Shift:
    """A map that computes event times anew; one by nothing leaves them as they are."""

    by: int = 0

    def __call__(self, frame: Any) -> Any:
        return frame


def _retimed(_source: str, maps: tuple[Any, ...], _column: str) -> int:
    shifts = (number for number, m in enumerate(maps, 1) if isinstance(m, Shift) and m.by)
    return max(shifts, default=0)


def _shifted(_source: str, maps: tuple[Any, ...], table: pa.Table) -> pa.Table:
    by = sum(m.by for m in maps if isinstance(m, Shift))
    moments = pc.add(table["ts"].cast(pa.int64()), by).cast(TIME)
    return table.set_column(table.schema.get_field_index("ts"), "ts", moments)


class Restarted:
    """One run.

    Parameters
    ----------
    root
        Directory of the checkpoint and of the local store, which begins empty.
    build
        Makes of the sources' streams the stream whose output is wanted, or that and others.
    sources
        Name → options and, under ``"columns"``, its columns.

    Maps that are a `Shift` move event times; others leave rows as they are.
    """

    def __init__(
        self,
        root: Path,
        build: Callable[..., Stream | tuple[Stream, ...]],
        sources: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        flow = LogicalFlow("flow", 8)
        sources = {"rows": {}} if sources is None else sources
        self.columns = {n: options.get("columns", COLUMNS) for n, options in sources.items()}
        streams = []
        for name, options in sources.items():
            frame: Any = FakeDataFrame(self.columns[name])
            given = {"event_time": "ts", **options}
            given.pop("columns", None)
            streams.append(flow.source(name, frame, **given))
        made = build(*streams)
        out, *beside = made if isinstance(made, tuple) else (made,)
        flow.sink("out", out, FakeSink())
        for number, stream in enumerate(beside):
            flow.sink(f"beside-{number}", stream, FakeSink())
        self.compiled = flow.compile(resolver(flow), _retimed)
        self.lanes = ManualRun(self.compiled, root, {"a": 2}, retain_epochs=3)

    @property
    def times(self) -> EventTimes:
        """Event time of the run."""
        return self.lanes.epochs.times

    def epoch(self, **rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run an epoch on rows of sources; return what came out, sorted."""
        tables = {
            name: pa.table(list(zip(*of, strict=True)), schema=self.columns[name])
            for name, of in rows.items()
            if of
        }
        fed: Any = lane_inputs(self.compiled, tables, _shifted)
        self.lanes.play(fed)
        return sorted(self.lanes.output(), key=repr)


def changed(root: Path, directory: str, change: Callable[[Any], None]) -> None:
    """Let the newest record of a kind say something else, with every checksum right."""
    path = max((root / "checkpoint" / directory).iterdir())
    record = record_in(path.read_bytes())
    assert record is not None
    blocks, said = record
    change(said)
    path.write_bytes(encode_record(said, blocks))
    checkpoint = root / "checkpoint"
    files = {str(p.relative_to(checkpoint)): p.read_bytes() for p in checkpoint.rglob("*.rec")}
    chain_again(files)
    for name, content in files.items():
        (checkpoint / name).write_bytes(content)
