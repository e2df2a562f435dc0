"""Types on the way of one epoch: the classes that a reader of one small epoch meets.

A class of the package `godwit` counts if, between the moment at which the trigger is due (the
sources are about to be asked for rows) and the end of the epoch's delivery, an instance of it is
made or a method of it runs: as the class of the object or as the class in whose body the method is
written.  A record of msgspec, whose constructor is C, counts if a function of the package is called
with it or returns it.  Modules' functions, type aliases, protocols that nobody derives from and
values that only lie in a field count nothing.

The epoch is the third of a flow with one source of Godwit's own, one running aggregate per key and
one sink, so nothing is set up in it: `gw.testing.run` without Spark, or with ``--spark`` the driver
of a real query, whose lanes' and source side's classes are those of the epoch without Spark.

    python -m benchmarks.epoch_types [--spark] [--names]

``--spark`` needs Java, and counts all threads of the driver that start after the query.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

import godwit as gw
from godwit.engine.loop import EpochLoop

if TYPE_CHECKING:
    from types import FrameType

EPOCH = 2


class TypesMet:
    """Collects the classes that are met while it counts."""

    def __init__(self) -> None:
        self.met: set[type] = set()
        self.counts = False

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
        if event == "return":
            self._add_record(value)
            return
        code = frame.f_code
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


def example() -> tuple[gw.Flow, gw.sources.MemorySource]:
    """Return a flow over a source of Godwit's own, and the source."""
    flow, rows = gw.Flow("types"), gw.sources.memory("key string, amount long")
    totals = flow.source("rows", rows).key_by("key").compute(total=gw.sum("amount"))
    flow.sink("totals", totals, gw.sinks.memory())
    return flow, rows


def add_rows(rows: gw.sources.MemorySource, epoch: int) -> None:
    """Give the source the rows of an epoch."""
    rows.add([("a", epoch), ("b", 2), ("a", 3)])


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
    arguments = parser.parse_args()
    types = TypesMet()
    (count_driver if arguments.spark else count_local)(types)
    modules = Counter(of.__module__.removeprefix("godwit.").partition(".")[0] for of in types.met)
    if arguments.names:
        for of in sorted(types.met, key=lambda of: (of.__module__, of.__qualname__)):
            print(f"{of.__module__}.{of.__qualname__}")
    print(f"{len(types.met)} types: {dict(modules.most_common())}")


if __name__ == "__main__":
    main()
