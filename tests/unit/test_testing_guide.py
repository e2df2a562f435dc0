"""Every block of the guide to testing runs, and needs no Spark; so does the example."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from tests.spark.guides import PAGES, blocks_of

import godwit as gw


def test_every_block_of_the_guide_to_testing_runs() -> None:
    namespace: dict[str, Any] = {"gw": gw}
    blocks = blocks_of("testing")
    assert len(blocks) > 5
    for block in blocks:
        exec(compile(block.code, PAGES["testing"].name, "exec"), namespace)  # the page's own code


@pytest.mark.parametrize(
    "page",
    [
        *("async", "batches", "broadcast", "changes", "feedback", "stateful-processors"),
        "typed-rows",
    ],
)
def test_every_block_of_a_guide_that_needs_no_spark_runs(page: str) -> None:
    namespace: dict[str, Any] = {"gw": gw}
    for block in blocks_of(page):
        exec(compile(block.code, PAGES[page].name, "exec"), namespace)  # the page's own code


def test_the_tests_of_the_example_pass() -> None:
    example = Path(__file__).parents[2] / "examples" / "testing_a_flow.py"
    tests = {n: f for n, f in runpy.run_path(str(example)).items() if n.startswith("test_")}
    assert len(tests) == 2
    for test in tests.values():
        test()
