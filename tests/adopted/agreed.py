"""Comparisons with native Spark that were made before: the lines of ``agreed.txt``.

To run a query natively takes longer than to run it adopted, and gives the same rows every time.  So
a line is the digest of a comparison in which both agreed: of Spark's version and settings, the plan
of the query, its input, and the batches that it gave.  Where an adopted run leads to a line that is
there, Spark has given these batches for this query; after any other outcome, for any other query,
and in another environment (`_environment`), Spark runs the query, too.

Python functions and data that are in no plan (`createDataFrame`) are in the digest as the text of
the test's file.  Not in it: data behind the path of a table, the format of files and how
`tests.support.native` writes them, and versions of Python's packages.  Where these change, a wrong
result passes only if Spark gave it before.

``GODWIT_AGREED=write`` adds the missing lines of the tests that run.  With ``GODWIT_LONG=1``, all
queries run natively.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from godwit.adopt.plan import to_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_LINES = Path(__file__).with_suffix(".txt")
_FUNCTIONS = Path(__file__).with_name("functions_with_state.py")
_PROCESSORS = _FUNCTIONS.with_name("processors.py")
_CHANCE = re.compile(
    r'"jvmId":"[^"]*"|(?<="createTime":)\d+|(?<=#)\d+|(?<="id":)\d+'
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=_)[0-9a-f]{32}|@[0-9a-f]{5,}"
    r"|/[^\s\"\],]*/(?:native|pytest)-[^/\"\]]*(?:/popen-gw\d+)?"
)
"""Parts of a plan's text that differ from run to run."""
_USUAL = {"java": "17", "zone": "UTC", "python": "UTC", "SPARK_ANSI_SQL_MODE": ""}
"""Environment in which the lines were written; a digest has any other."""
_ELSEWHERE = ("spark.sql.warehouse.dir", "spark.sql.artifact", "spark.sql.ui.")


def comparison(query: DataFrame, build: Callable[..., Any], *further: object) -> str:
    """Return what determines the batches that Spark gives for a query, as text.

    `build`: made the query, with the Python functions that its plan does not show. `further`:
    input, output mode, and what else is done.
    """
    plan: Any = query._jdf.queryExecution().analyzed()
    numbers: dict[str, str] = {}  # in the order of appearance: equal ones remain equal

    def numbered(part: re.Match[str]) -> str:
        return numbers.setdefault(part[0], f"#{len(numbers)}")

    text = _CHANCE.sub(numbered, f"{plan.toString()} {plan.toJSON()} {query.schema}")
    if "LocalRelation" in text:  # the texts of a plan leave its rows out
        leaves = to_list(plan.collectLeaves())
        text += " ".join(
            leaf.data().mkString(" ") for leaf in leaves if leaf.nodeName() == "LocalRelation"
        )
    sources = ""
    if re.search("Py|Pandas|LogicalRDD|udf|UDF|transformWithState", text):
        file = inspect.getsourcefile(inspect.unwrap(_function(build)))
        sources = _source(file) + _source(str(_FUNCTIONS))
        if file is not None and Path(file).parent == _FUNCTIONS.parent:
            sources += _source(str(_PROCESSORS))
    settings, elsewhere = _session(query.sparkSession)
    return repr((pyspark.__version__, text, settings, sources, (*further, *elsewhere)))


def evaluation(spark: SparkSession, *what: object) -> str:
    """Return what determines the values that Spark computes in a session, as text."""
    return repr((pyspark.__version__, *_session(spark), what))


def _session(spark: SparkSession) -> tuple[list[tuple[str, str]], list[dict[str, str]]]:
    """Return the settings of a session, and its environment if that is not the usual one."""
    every: Any = spark.conf.getAll
    settings = sorted(
        (key, value)
        for key, value in every.items()
        if key.startswith("spark.sql.")
        and not key.startswith(_ELSEWHERE)
        and value != _default(spark._jvm, key)
    )
    environment = _environment(spark)
    return settings, [] if environment == _USUAL else [environment]


@cache
def _default(jvm: Any, key: str) -> str | None:
    """Return the default value of a setting."""
    # As one name: Java would look for a class of the name of each package in all of Spark's jars.
    entry = getattr(jvm, "org.apache.spark.internal.config.ConfigEntry").findEntry(key)
    return None if entry is None else str(entry.defaultValueString())


def _environment(spark: SparkSession) -> dict[str, str]:
    """Return what else results of Spark depend on, apart from the session's settings."""
    jvm: Any = spark._jvm
    zone = getattr(jvm, "java.time.ZoneId").systemDefault().normalized().getId()
    return {
        "java": getattr(jvm, "java.lang.System").getProperty("java.specification.version"),
        "zone": "UTC" if zone == "Z" else zone,
        "python": "/".join(dict.fromkeys(time.tzname)),
        "SPARK_ANSI_SQL_MODE": os.environ.get("SPARK_ANSI_SQL_MODE", ""),
    }


def agreed(compared: str, outcome: object) -> bool:
    """Return whether Spark has given this outcome for a `comparison` before."""
    return "GODWIT_LONG" not in os.environ and _digest(compared, outcome) in _lines()


def remember(compared: str, outcome: object, name: str) -> None:
    """Note that Spark gives this outcome, if such notes are asked for."""
    if os.environ.get("GODWIT_AGREED") == "write":
        line = f"{_digest(compared, outcome)} {name[:80]}\n"
        with _LINES.open("a") as file:
            file.write(line)


def check_with_spark(
    compared: str, outcome: object, native: Callable[[], object], name: str
) -> None:
    """Assert that Spark gives an outcome; `native` asks it, unless it has given this before."""
    if not agreed(compared, outcome):
        assert outcome == native(), name
        remember(compared, outcome, name)


def _digest(compared: str, outcome: object) -> str:
    return hashlib.sha256(f"{compared} {_rounded(outcome)!r}".encode()).hexdigest()[:24]


def _rounded(value: Any) -> Any:
    """Return a value without the last bits of floats, which a sum may have in several ways."""
    if isinstance(value, float):
        return f"{value + 0.0:.11e}"
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(_rounded, value)]
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in sorted(value.items())}
    return value


def _function(build: Any) -> Any:
    """Return the function in a partial one."""
    return getattr(build, "func", build)


@cache
def _lines() -> frozenset[str]:
    """Return the digests that are noted."""
    return frozenset(line.split(" ", 1)[0] for line in _LINES.read_text().splitlines())


@cache
def _source(file: str | None) -> str:
    assert file is not None
    return Path(file).read_text()
