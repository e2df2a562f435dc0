"""All mistakes, by what they need."""

from __future__ import annotations

from tests.mistakes import building, functions, on_spark, places, running

IN_ONE_PROCESS = (
    *building.MISTAKES,
    *functions.MISTAKES,
    *places.MISTAKES,
    *running.MISTAKES,
)
ON_SPARK = on_spark.MISTAKES
ALL = (*IN_ONE_PROCESS, *ON_SPARK)
