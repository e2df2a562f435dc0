"""Fixtures that tests in several places share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# `pytest` alone, unlike `python -m pytest`, does not put the repository's root on the path.
sys.path.insert(0, str(Path(__file__).parent))

from tests.kafka_broker import kafka, kafka_server
from tests.mariadb_server import mariadb, mariadb_server
from tests.postgres_server import postgres, postgres_server
from tests.redis_server import redis, redis_server
from tests.support.class_archive import spare_jvms
from tests.support.files_in_memory import use_memory_for_files
from tests.support.required import pytest_make_collect_report, pytest_runtest_makereport
from tests.support.rounds import rounds
from tests.support.usual_cases import leave_out_long_cases, pytest_report_header

from godwit.store.compiled import LOADER

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

__all__ = [
    "kafka",
    "kafka_server",
    "mariadb",
    "mariadb_server",
    "postgres",
    "postgres_server",
    "pytest_make_collect_report",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "redis",
    "redis_server",
    "spark",
]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background: programs that tests start and interrupt would never hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Also of what tests start as programs. Most JVMs here live for seconds.
spare_jvms()
use_memory_for_files()
# What runs in this process uses machine code from the first row; programs that it starts do not.
LOADER.mode = "now"

# Nothing depends on chance or on how busy the machine is: the same examples everywhere, none of
# them timed.  `@settings` of a test changes what it names and keeps the rest.
settings.register_profile(
    "godwit",
    derandomize=True,
    deadline=None,
    max_examples=rounds(40, 100),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("godwit")

# With the session of a process, and so in a process that has one.
_ON_SPARK = (
    "tests/spark/",
    "tests/contract/test_on_spark.py",
    "tests/streams/test_own_streams.py::test_a_drawn_flow_over_own_sources_on_spark",
)
_PROGRAMS = ("tests/chaos/", "tests/programs/")
# What one run has shown, on a cluster of its own, several tests of such a file look at; or they
# fork their processes from one that takes seconds to start.
_ONE_RUN = tuple(
    f"tests/{file}.py"
    for file in (
        "chaos/test_executor_loss",
        "contract/test_resident",
        "programs/test_advise",
        "programs/test_scale",
    )
)
_TWO_EXECUTORS = ("tests/chaos/test_repartition.py", "tests/chaos/test_resident.py")
# With the servers that the first of them starts, each of which takes seconds.
_ON_SERVERS = (
    "tests/property/test_debezium_streams",
    *(
        f"tests/unit/{place}"
        for place in (
            "connect/kafka/",
            "connect/mariadb/",
            "connect/postgres/",
            "connect/redis/",
            "connect/sql/",
            "sinks/test_checks_by_tests",
            "sinks/test_conformance",
            "sinks/test_deletes",
            "sinks/test_further_columns",
            "sinks/test_time_zones",
            "sinks/test_versions",
            "spark/test_restored_backups",
            "test_kafka_",
        )
    ),
)
# Tests of milliseconds, of which each would cost as much again to be dealt out by itself; and files
# whose tests share a browser, a server or a result, which each process would make again.
_BY_FILE = (
    *(
        f"tests/unit/{place}"
        for place in (
            *("adopt", "api", "arena", "checkpoint", "cli", "columns", "connect/delta/test_on_s3"),
            *("connect/files", "connect/formats", "engine", "library", "migration", "model"),
            *(
                "operators",
                "ops",
                "placement",
                "plan/",
                "runtime",
                "sinks",
                "sources",
                "spark",
                "store",
            ),
            *("test_doc", "test_mistakes", "test_words", "time", "values"),
        )
    ),
    "tests/programs/test_site",
    "tests/property/test_partitioned_keys",
)
# Of campaigns, these take as long as a run on a cluster.
_LONG = ("tests/chaos/test_driver_crash", "tests/programs/test_examples.py::test_the_other")
_LONGEST_FIRST = (
    *_TWO_EXECUTORS,
    _ONE_RUN[0],
    *_LONG,
    *_ONE_RUN[1:],
    *_ON_SPARK,
    *_PROGRAMS,
    *_ON_SERVERS,
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what shares a session or a cluster in one process, where tests are dealt out to several.

    There are three sessions: one for adopted queries, several of which run at once, and two for
    the other tests on Spark, which wait for half of their time.  What starts programs or clusters
    goes test by test, but for files whose tests look at one run; what needs servers goes together,
    since each process would start its own.  All of this is dealt out first, and what takes
    milliseconds last, so that the processes end together.
    """
    config.option.loadscopereorder = False  # else the scopes of most tests come first
    scheduler: Any = import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler


def _scope(test: str) -> str:
    test = test.removeprefix("lab/")
    file = test.partition("::")[0]
    if file in _ONE_RUN:
        return file
    if file in _TWO_EXECUTORS:
        return "cluster of two executors"
    if test.startswith(_ON_SPARK):
        if "/adopt/" in file:
            return "session of adopted queries"
        return "first session" if file.rpartition("/")[2] < "test_on" else "second session"
    if test.startswith(_ON_SERVERS):
        return "servers"
    return file if test.startswith(_BY_FILE) else test


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long cases; begin with what takes longest, where several processes run tests."""
    leave_out_long_cases(config, items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep all that tests import from the garbage collector, now and later.

    To look for garbage among it takes a quarter of the time of importing it, in each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _rank(test: str) -> int:
    test = test.removeprefix("lab/")
    ranks = (n for n, place in enumerate(_LONGEST_FIRST) if test.startswith(place))
    return next(ranks, len(_LONGEST_FIRST))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a campaign where campaigns alone are asked for.

    To import all tests takes longer than many a campaign, in each process.
    """
    if config.option.markexpr != "campaign" or not collection_path.match("test_*.py"):
        return None
    return None if "campaign" in collection_path.read_text() else True


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a Spark session with two cores, loopback only, as plain as can be."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer; none is installed.")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("godwit-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-Xmn400m")  # a quarter of the collections
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        # To compile each query takes longer than to run it once over a few rows.
        .config("spark.sql.codegen.wholeStage", "false")
        # Each task that fails ends its Python process, and the next one would import all anew.
        .config("spark.python.daemon.module", "godwit.spark.platform.python_daemon")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    with warnings.catch_warnings():
        # The gateway leaves its sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
