"""Plays a golden flow up to the middle of its rows, and from there to the end."""

from __future__ import annotations

import datetime as dt
import io
import lzma
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.golden.flows import FLOWS, START

import godwit as gw

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.testing import Run

__all__ = [
    "Played",
    "pack",
    "play_all",
    "play_first",
    "play_query",
    "play_second",
    "stored",
    "unpack",
]

FOLDER = Path(__file__).parent
MINUTE = dt.timedelta(minutes=1)
SUFFIX = ".tar.xz"
INTERNAL = {"parts"}  # states that are read together with another one


@dataclass
class Played:
    """What a play of the second half shows: rows by sink, entries by state."""

    output: dict[str, Counter[str]] = field(default_factory=dict)
    states: dict[str, list[str]] = field(default_factory=dict)

    def add(self, rows: dict[str, pa.Table]) -> None:
        for sink, table in rows.items():
            self.output.setdefault(sink, Counter()).update(map(repr, table.to_pylist()))


def play_first(name: str, checkpoint: Path) -> None:
    """Play the first half of the epochs of a flow, as its stored checkpoint has them."""
    with _start(name, checkpoint, resumed=False) as run:
        _play_first(name, run)


def play_query(name: str, root: Path) -> None:
    """Play the first half by a query on Spark, with blocks in files of their own."""
    from pyspark.sql import SparkSession

    on_spark = FLOWS[name].on_spark
    assert on_spark is not None
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    query = on_spark(root / "sink").start(
        checkpoint=root / "checkpoint",
        session=session,
        trigger={"availableNow": True},
        lanes=gw.Lanes(inline_bytes=0),
    )
    query.awaitTermination()
    session.stop()


def play_second(name: str, checkpoint: Path, *, num_key_groups: int | None = None) -> Played:
    """Play the second half on the checkpoint of the first, in another number of key groups."""
    with _start(name, checkpoint, resumed=True) as run:
        if num_key_groups is not None:
            flow = FLOWS[name].build()
            flow.num_key_groups = num_key_groups
            run.restart(flow, repartition=True, components=FLOWS[name].components)
        return _play_second(name, run)


def play_all(name: str, checkpoint: Path) -> Played:
    """Play both halves in one run; return what the second one shows."""
    with _start(name, checkpoint, resumed=False) as run:
        _play_first(name, run)
        return _play_second(name, run)


def _start(name: str, checkpoint: Path, *, resumed: bool) -> Run:
    golden = FLOWS[name]
    build = golden.build if resumed or golden.first is None else golden.first
    return gw.testing.cluster(
        build(),
        executors={"1": 2, "2": 1},
        checkpoint=checkpoint,
        now=START + (golden.num_epochs // 2 if resumed else 0) * MINUTE,
        components=golden.components,
    )


def _play_first(name: str, run: Run) -> None:
    golden = FLOWS[name]
    for number, rows in enumerate(golden.epochs()[: golden.num_epochs // 2]):
        if number == 2:
            golden.before(run)
        run.epoch(rows)
        run.advance(MINUTE)


def _play_second(name: str, run: Run) -> Played:
    golden, played = FLOWS[name], Played()
    for rows in golden.epochs()[golden.num_epochs // 2 :][: golden.num_continued]:
        played.add(run.epoch(rows))
        played.add(run.advance(MINUTE))
    for operator in run.flow.operators:
        for state in operator.states:
            if state.state not in INTERNAL:
                rows = run.state(operator.name, state.state).to_pylist()
                for row in rows:
                    row.pop("key_group")
                played.states[str(state)] = sorted(map(repr, rows))
    played.add(run.end_input())
    return played


def pack(checkpoint: Path) -> bytes:
    """Return the files of a checkpoint as an archive, the same for the same files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(checkpoint.rglob("*")):
            if path.is_file() and path.name != "lock" and "leases" not in path.parts:
                info = tarfile.TarInfo(str(path.relative_to(checkpoint)))
                info.size = path.stat().st_size
                archive.addfile(info, io.BytesIO(path.read_bytes()))
    return lzma.compress(data.getvalue(), preset=9)


def unpack(archive: bytes, checkpoint: Path) -> None:
    """Put the files of an archive where a checkpoint is to be."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive))) as opened:
        # Python 3.11.3 and older have no filters.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        opened.extractall(checkpoint, **safe)


def stored() -> dict[str, bytes]:
    """Return the archives of stored checkpoints: release/flow → bytes."""
    paths = sorted(FOLDER.glob("*/*.tar.xz"))
    return {f"{p.parent.name}/{p.name.removesuffix(SUFFIX)}": p.read_bytes() for p in paths}
