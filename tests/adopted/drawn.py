"""Drawn queries, run natively and adopted: which agree, and which are refused."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from tests.adopted.grammar import case_of, draw_case
from tests.adopted.job_grammar import draw_job
from tests.adopted.written import written as written_queries
from tests.support.native import RefusedBySparkError, compare_all, session_with, written

from godwit.adopt.translate import translate
from godwit.model.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from tests.support.native import Case


@dataclass
class Outcome:
    """Outcome of drawn queries."""

    same: int = 0
    with_rows: int = 0  # of these, queries that gave rows
    by_spark: int = 0  # refused by Spark itself
    failed: dict[str, str] = field(default_factory=dict)  # query → how Spark itself fails
    refused: Counter[str] = field(default_factory=Counter)  # reason → queries
    different: dict[str, str] = field(default_factory=dict)  # query → how it differs

    def __str__(self) -> str:
        return (
            f"{self.same} same ({self.with_rows} with rows), {len(self.different)} different, "
            f"{self.refused.total()} refused, {self.by_spark} refused by Spark itself, "
            f"{len(self.failed)} failed in Spark itself"
        )

    def add(self, name: str, text: str, *, rows: int = 0) -> None:
        """Count a query by its failure, which is empty if it has none; `rows`: that it gave."""
        if not text:
            self.same += 1
            self.with_rows += rows > 0
        elif text.startswith("UnsupportedQueryError"):
            self.refused[re.sub(r"\(.*?\)|'[^']*'", "…", text)[:160]] += 1
        elif text.startswith("RefusedBySparkError"):
            self.by_spark += 1
        elif text.startswith("FailedInSparkError"):
            self.failed[name] = text
        else:
            self.different[name] = text


def drawn_cases(
    seeds: Iterable[int], *, jobs: bool = False, own_sources: bool = False
) -> dict[str, Case]:
    """Draw a query by each seed.

    `jobs`: in SQL, as jobs have them. `own_sources`: three of four seeds read by such.
    """
    draw = draw_job if jobs else draw_case
    drawn = ((seed, *draw(random.Random(seed))) for seed in seeds)
    return {
        f"seed {seed}: {text}": replace(case, own_sources=own_sources and seed % 4 > 0)
        for seed, text, case in drawn
    }


def written_cases(seed: int) -> dict[str, Case]:
    """Return all queries that are written, with input drawn by a seed."""
    draw = random.Random(seed)
    return dict(case_of(draw, text, mode) for text, mode in written_queries())


def refusal_of(spark: SparkSession, case: Case) -> str:
    """Plan a query without running it; return why it is refused, as text for `Outcome.add`."""
    empty = {name: replace(stream, batches=[]) for name, stream in case.streams.items()}
    session = session_with(spark, case.settings) if case.settings else spark
    with written(session, empty) as frames:
        try:
            translate(case.build(**frames), mode=case.mode, name="planned")
        except AnalysisException as error:
            return f"{RefusedBySparkError.__name__}: {error}"
        except UnsupportedQueryError as error:
            own = "RefusedBySparkError" if "Spark refuses" in str(error) else type(error).__name__
            return f"{own}: {error}"
        except Exception as error:  # noqa: BLE001  a fault, which is shown as a difference
            return f"{type(error).__name__}: {error}"
    return ""


def compare_cases(spark: SparkSession, cases: dict[str, Case], *, at_once: int = 4) -> Outcome:
    """Compare Spark's batches with those of the adopted queries."""
    failures = compare_all(spark, cases, at_once=at_once)
    outcome = Outcome()
    for name in cases:
        outcome.add(name, failures.get(name, ""))
    return outcome
