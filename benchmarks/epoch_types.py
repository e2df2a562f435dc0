"""Types on the way of one epoch: the classes that a reader of one small epoch meets.

A class of the package `godwit` counts if, between the moment at which the trigger is due (the
sources are about to be asked for rows) and the end of the epoch's delivery, an instance of it is
made or a method of it runs: as the class of the object or as the class in whose body the method is
written.  A record of msgspec, whose constructor is C, counts if a function of the package is called
with it or returns it.  Modules' functions, type aliases, protocols that nobody derives from and
values that only are in a field count nothing.

The epoch is the third of a flow with one source of Godwit's own, one running aggregate per key and
one sink, so nothing is set up in it: `gw.testing.run` without Spark, or with ``--spark`` the driver
of a real query, whose lanes' and source side's classes are those of the epoch without Spark.

    python -m benchmarks.epoch_types [--spark] [--names] [--files]

``--spark`` needs Java, and counts all threads of the driver that start after the query.

``--files`` counts files of the package instead of types: all in which a function runs, and those
that a row passes.  A row passes a file if a function in it is called with the row, returns or
yields it, whatever its form: as a value of Python or Arrow, in an array, in bytes, or in the
fields and items of an object, to a depth of three.  One key and one number mark the row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import godwit as gw
from godwit.engine.loop import EpochLoop

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

EPOCH = 2
KEY, AMOUNT = "the-row-to-follow", 7_340_033_000_001
_MARKS = (KEY.encode(), AMOUNT.to_bytes(8, "little"))


class TypesMet:
    """Collects the classes that are met while it counts."""

    def __init__(self) -> None:
        self.met: set[type] = set()
        self.files: dict[str, bool] = {}  # each in which a function runs → whether the row passes
        self.counts = False
        self.counts_files = False

    def stop_at_delivery(self, step: str, epoch: int) -> None:
        """Count no more once the epoch is delivered: a hook of the epoch loop."""
        if (step, epoch) == ("delivered", EPOCH):
            self.counts = False

    def profile(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at a call or a return of a function: the profile function of a thread."""
        if not self.counts or event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        made = frame.f_code.co_filename == "<string>"  # a method that a dataclass wrote
        if not module.startswith("godwit.") and not made:
            return
        code = frame.f_code
        if self.counts_files:
            self.files.setdefault(module, False)
            values = [value] if event == "return" else _arguments(frame)
            self.files[module] = self.files[module] or any(map(has_row, values))
        if event == "return":
            self._add_record(value)
            return
        for number, name in enumerate(code.co_varnames[: code.co_argcount]):
            argument = frame.f_locals.get(name)
            if number == 0 and name in ("self", "cls"):
                self._add(argument if isinstance(argument, type) else type(argument))
            else:
                self._add_record(argument)
        owner, _, _ = code.co_qualname.partition(".")
        defined = frame.f_globals.get(owner)
        if isinstance(defined, type) and "." in code.co_qualname:
            self._add(defined)

    def _add_record(self, value: Any) -> None:
        """Count the class of a msgspec record."""
        if isinstance(value, msgspec.Struct):
            self._add(type(value))

    def _add(self, of: type) -> None:
        """Count a class of the package."""
        if of.__module__.startswith("godwit."):
            self.met.add(of)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the arguments of a call, without the object of a method."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]


def has_row(value: Any, depth: int = 3) -> bool:
    """Return whether a value has the row that is followed."""
    if isinstance(value, (str, int)):
        return value in (KEY, AMOUNT)
    if isinstance(value, (bytes, memoryview)):
        return any(mark in bytes(value) for mark in _MARKS)
    if isinstance(value, np.ndarray):
        return value.dtype != object and has_row(value.tobytes())
    if isinstance(value, pa.ChunkedArray):
        return any(map(has_row, value.chunks))
    if isinstance(value, pa.Array):
        return any(has_row(buffer.to_pybytes()) for buffer in value.buffers() if buffer)
    if isinstance(value, (pa.RecordBatch, pa.Table)):
        return any(map(has_row, value.columns))
    return depth > 0 and any(has_row(part, depth - 1) for part in _parts(value))


def _parts(value: Any) -> Iterable[Any]:
    """Return the items of a collection, or the fields of an object of the package."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if not type(value).__module__.startswith("godwit."):
        return ()
    slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    fields = [*slots, *getattr(type(value), "__struct_fields__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in fields)]


def example() -> tuple[gw.Flow, gw.sources.MemorySource]:
    """Return a flow over a source of Godwit's own, and the source."""
    flow, rows = gw.Flow("types"), gw.sources.memory("key string, amount long")
    totals = flow.source("rows", rows).key_by("key").compute(total=gw.sum("amount"))
    flow.sink("totals", totals, gw.sinks.memory())
    return flow, rows


def add_rows(rows: gw.sources.MemorySource, epoch: int) -> None:
    """Give the source the rows of an epoch."""
    rows.add([("a", epoch), (KEY, AMOUNT), ("a", 3)])


def count_local(types: TypesMet) -> None:
    """Count over an epoch in this process."""
    flow, rows = example()
    with gw.testing.cluster(flow) as played:
        for epoch in range(EPOCH):
            add_rows(rows, epoch)
            played.epoch()
        add_rows(rows, EPOCH)
        driver = played._driver  # noqa: SLF001  the calls of a test around the epoch do not count
        driver.loop.at_step = types.stop_at_delivery
        sys.setprofile(types.profile)
        types.counts = True
        driver.read_epoch()
        sys.setprofile(None)


def count_driver(types: TypesMet) -> None:
    """Count over an epoch of a query on Spark, on the driver."""
    from pyspark.sql import SparkSession

    from godwit.runtime.source_loop import SourceLoop

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    threading.setprofile(types.profile)
    asked = SourceLoop._run_input_epoch  # noqa: SLF001  here the trigger is due

    def counted(loop: SourceLoop) -> bool:
        """Count from the moment at which the sources of the counted epoch are asked."""
        types.counts = types.counts or loop._run.log.latest_epoch == EPOCH - 1  # noqa: SLF001
        return asked(loop)

    EpochLoop.at_step = staticmethod(types.stop_at_delivery)
    SourceLoop._run_input_epoch = counted  # type: ignore[assignment,method-assign]  # noqa: SLF001
    flow, rows = example()
    with tempfile.TemporaryDirectory() as directory:
        query = flow.start(checkpoint=directory)
        for epoch in range(EPOCH + 1):
            add_rows(rows, epoch)
            query.processAllAvailable()
        query.stop()
    spark.stop()


def main() -> None:
    """Count, and print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--files", action="store_true")
    arguments = parser.parse_args()
    types = TypesMet()
    types.counts_files = arguments.files
    (count_driver if arguments.spark else count_local)(types)
    if arguments.files:
        for module, passed in sorted(types.files.items()) if arguments.names else ():
            print("passed" if passed else "run   ", module)
        print(f"{len(types.files)} files run, a row passes {sum(types.files.values())}")
        return
    modules = Counter(of.__module__.removeprefix("godwit.").partition(".")[0] for of in types.met)
    if arguments.names:
        for of in sorted(types.met, key=lambda of: (of.__module__, of.__qualname__)):
            print(f"{of.__module__}.{of.__qualname__}")
    print(f"{len(types.met)} types: {dict(modules.most_common())}")


if __name__ == "__main__":
    main()
