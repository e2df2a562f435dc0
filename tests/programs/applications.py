"""The applications of ``examples`` on a cluster of processes, under a controller, with kills.

    python -m tests.programs.applications NAME DIRECTORY [--data DIR] [--rows N]

Two executors are processes of this machine.  The rows come in parts; after every few parts one of
the executors is killed while the next part is on its way, and another one takes its place.  Halfway
the query is stopped and started again.  At the end every result is compared with the application's
oracle.  Without ``--data`` the rows are of the application's generator.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import godwit as gw
from godwit.ops.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    Results = Mapping[str, pa.Table]
    Store = Callable[[str], Any]

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS, KILL_EVERY = 12, 3
PATIENCE_S = 180.0
EVERY_ROW = 10**9


def example(name: str) -> Any:
    """Import an application; what it defines is sent to the executors by value."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True)
class Application:
    """A flow over sources in memory, its rows in parts, and its oracle."""

    module: Any
    sources: Mapping[str, gw.sources.MemorySource]
    build: Callable[[Store], gw.Flow]
    parts: Sequence[Mapping[str, Any]]  # of each: source → rows
    # Fails if a result is wrong; from the results and how many parts of the rows they are of.
    check: Callable[[Results, int], object]
    # Whether open windows have to come out at the end before there is anything to check; else
    # results are checked after every part.
    closes: bool = True


def sliced(rows: Any) -> list[Any]:
    """Cut rows into parts of equal size."""
    share = -(-len(rows) // PARTS)
    return [rows[first : first + share] for first in range(0, len(rows), share)]


def word_count(data: Path | None, rows: int) -> Application:
    """Words of tweets."""
    module = example("word_count")
    made = module.recorded(data / "tweets.parquet", rows) if data else module.invented(rows)
    texts, source = list(made), gw.sources.memory(module.TEXTS)
    return Application(
        module=module,
        sources={"texts": source},
        build=lambda store: module.build(source, store),
        parts=[{"texts": part} for part in sliced(texts)],
        check=lambda found, _: module.check(texts, found["total"], found["per_minute"]),
    )


def frequent_patterns(data: Path | None, rows: int) -> Application:
    """Patterns of tweets, with feedback."""
    module = example("frequent_patterns")
    made = module.recorded(data / "tweets.parquet", rows) if data else module.invented(rows)
    tweets, source = list(made), gw.sources.memory(module.TWEETS)
    question = module.Question()
    if data:
        question = module.Question(window=dt.timedelta(hours=1), support=8)

    parts = sliced(tweets)

    def check(found: Results, played: int) -> int:
        standing = module.standing(found["maximal"].to_pylist())
        so_far = [tweet for part in parts[:played] for tweet in part]
        assert standing == module.counted(so_far, question)
        return len(standing)

    return Application(
        module=module,
        sources={"tweets": source},
        build=lambda store: module.build(source, store("maximal"), question),
        parts=[{"tweets": part} for part in parts],
        check=check,
        closes=False,
    )


def top_edits(data: Path | None, rows: int) -> Application:
    """Real Job 1."""
    module = example("top_edits")
    edits = module.recorded(data / "wiki_edits.parquet", rows) if data else module.invented(rows)
    source = gw.sources.memory(module.EDITS)
    return Application(
        module=module,
        sources={"edits": source},
        build=lambda store: module.build(source, store),
        parts=[{"edits": part} for part in sliced(edits)],
        check=lambda found, _: module.check(
            edits, tuple(found[name].to_pandas() for name in ("cells", "top"))
        ),
    )


def delays(data: Path | None, rows: int) -> Application:
    """Real Job 4, which has Real Jobs 2 and 3 in it."""
    module, job = example("delays"), 4
    made = module.recorded(data) if data else module.invented(rows)
    sources = {
        "flights": gw.sources.memory(module.FLIGHTS, name="flights"),
        "weather": gw.sources.memory(module.WEATHER, name="weather"),
    }
    return Application(
        module=module,
        sources=sources,
        build=lambda store: module.build(job, *sources.values(), store),
        parts=list(made.parts(PARTS)),
        check=lambda found, _: module.check(
            {name: table.to_pandas() for name, table in found.items()}, made, job
        ),
    )


def exchange(data: Path | None, rows: int) -> Application:
    """Orders, trades, six statistics and five kinds of events."""
    module = example("exchange")
    orders = module.recorded(data / "orders.parquet", rows) if data else module.invented(rows)
    limits = module.limits_of(orders)
    sources = {
        "orders": gw.sources.memory(module.ORDERS, name="orders"),
        "limits": gw.sources.memory(module.LIMITS, name="limits"),
    }
    parts: list[dict[str, Any]] = [{"orders": part} for part in sliced(orders)]
    parts[0]["limits"] = [*limits.items()]
    return Application(
        module=module,
        sources=sources,
        build=lambda store: module.build(*sources.values(), store),
        parts=parts,
        check=lambda found, _: module.check(
            {name: table.to_pandas() for name, table in found.items()},
            module.expected(orders, limits),
        ),
    )


APPLICATIONS: Mapping[str, Callable[[Path | None, int], Application]] = {
    made.__name__: made for made in (word_count, frequent_patterns, top_edits, delays, exchange)
}
GENERATED = {"word_count": 4000, "frequent_patterns": 1200, "delays": 20_000}


def play(
    application: Application, cluster: LocalCluster, spark: SparkSession, directory: Path
) -> dict[str, Any]:
    """Run an application to its end; return what happened."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(application.module)  # type: ignore[no-untyped-call]
    dice, killed = random.Random(1), 0
    sinks: dict[str, Any] = {}
    flow = application.build(lambda name: sinks.setdefault(name, gw.sinks.memory()))
    happened: Counter[str] = Counter()

    def start(**settings: Any) -> gw.types.Query:
        query = flow.start(
            checkpoint=directory / "checkpoint",
            executors=2,
            sizing=gw.Sizing(executors_timeout_s=PATIENCE_S),
            control=gw.Control(planner="milp", scaling=gw.control.fixed(2), period="2 seconds"),
            **settings,
        )
        query.add_listener(lambda event: print(event.describe(), file=sys.stderr, flush=True))  # noqa: T201
        return query

    def end(query: gw.types.Query) -> None:
        query.stop()
        happened.update(type(event).__name__ for event in query.events)

    checked: list[object] = []

    def check(played: int) -> None:
        found = {name: sink.table() for name, sink in sinks.items()}
        checked.append(application.check(found, played))

    began, query = time.monotonic(), start()
    for number, part in enumerate(application.parts):
        for name, rows in part.items():
            application.sources[name].add(rows)
        if number % KILL_EVERY == KILL_EVERY - 1:
            pids = cluster.executor_pids(spark.sparkContext.applicationId)
            cluster.kill_executor(dice.choice(sorted(pids)), spark.sparkContext.applicationId)
            killed += 1
        query.processAllAvailable()
        if not application.closes:
            check(number + 1)
        if number == len(application.parts) // 2:
            end(query)
            query = start()
    if application.closes:
        end(query)
        query = start(trigger={"availableNow": True}, close_at_end=True)
        query.awaitTermination()
        check(len(application.parts))
    end(query)
    return {
        "rows": sum(len(rows) for part in application.parts for rows in part.values()),
        "results": sum(len(sink.table()) for sink in sinks.values()),
        "checked": ", ".join(map(str, checked)),
        "killed": killed,
        "lost": happened["ExecutorLost"],
        "migrations": happened["MigrationFinished"],
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Play one application, and print what happened as JSON."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("name", choices=APPLICATIONS)
    options.add_argument("directory", type=Path, help="where it works")
    options.add_argument("--data", type=Path, help="directory with real data")
    options.add_argument(
        "--rows", type=int, help="rows to take; by default all, or a few made ones"
    )
    given = options.parse_args()
    few = EVERY_ROW if given.data else GENERATED.get(given.name, 2000)
    application = APPLICATIONS[given.name](given.data, given.rows or few)
    with LocalCluster(workers=2, memory="1g", work_dir=given.directory / "cluster") as cluster:
        spark = cluster.session(given.name, {"spark.driver.memory": "2g"})
        told = play(application, cluster, spark, given.directory)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
