"""Findings of a type checker in a user's program."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]

PROGRAM = """
from pyspark.sql import DataFrame, SparkSession, functions as F
import godwit as gw


def long_ones(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("arr_delay") > 60)


def build(spark: SparkSession) -> gw.Flow:
    flow = gw.Flow("delays")
    flights = flow.source("flights", spark.readStream.parquet("in/"))
    late = flights.map(long_ones).key_by("tailnum").compute(n=gw.count())
    flow.sink("late", late, gw.sinks.parquet("out/"))
    return flow


def run(flow: gw.Flow) -> gw.Query:
    query = flow.start(checkpoint="ck/", trigger={"availableNow": True}, executors=2)
    moving = query.migrate({0: "1"}, component="late", bounds=gw.Bounds(max_moves=2))
    print(moving.done, query.components, query.events)
    return query


def wrong(flow: gw.Flow, query: gw.Query) -> None:
    flow.start(checkpont="ck/")  # WRONG
    flow.start(checkpoint="ck/", trigger="1 second")  # WRONG
    flow.start(checkpoint="ck/", trigger={"availablenow": True})  # WRONG
    flow.start(checkpoint="ck/", executors="2")  # WRONG
    flow.start(checkpoint="ck/", lanes=gw.Lanes(compression="gzip"))  # WRONG
    query.migrate({0: 1})  # WRONG
    query.migrate({0: "1"}, bounds=3)  # WRONG
    query.migrate({0: "1"}, strategy="gentle")  # WRONG
    gw.Flow(3)  # WRONG
    gw.sumn("arr_delay")  # WRONG
    flow.source("flights", None).compute(n=gw.count())  # WRONG
    flow.sink("late", "stream", gw.sinks.noop())  # WRONG
"""


def test_a_right_program_passes_and_every_wrong_line_is_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # The project's own configuration is strict, and its cache knows PySpark already.
    config = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    said, errors, _ = api.run([*config, "--no-error-summary", "--hide-error-context", str(program)])
    assert not errors
    found = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    lines = PROGRAM.splitlines()
    assert found == {n for n, line in enumerate(lines, 1) if line.endswith("# WRONG")}, said
