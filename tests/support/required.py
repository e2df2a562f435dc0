"""Which tests may be skipped where everything has to be tested, as in CI.

``CI=true`` or ``GODWIT_REQUIRE=all``: every skip is a failure unless its reason is listed in
`OPTIONAL`.  ``GODWIT_REQUIRE=postgres,kafka``: a skip whose reason has one of these names is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["OPTIONAL", "pytest_make_collect_report", "pytest_runtest_makereport"]

OPTIONAL = {
    "GODWIT_LONG=1": "takes minutes; to be run by hand before a release",
    "not the tests' own": "GODWIT_KAFKA names a cluster that others use",
    "only root": "CI need not run as root",
    "unshare(1)": "mounts a small file system, which many containers refuse",
    "may not mount": "mounts a small file system, which many containers refuse",
    "is Linux's": "other systems have other sockets",
    "other C libraries": "sets up glibc",
}
"""Text in the reason of a skip → why the test may be left out."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped where it has to run."""
    report = yield
    _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that is skipped where it has to run."""
    report = yield
    _fail_if_required(report)
    return report


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn the report of a skipped test into one of a failed test, if it has to run."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if _is_required(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped, and has to run here. {reason}\n"
            "Install what it needs, or list the reason in tests/support/required.py."
        )


def _is_required(reason: str) -> bool:
    required = os.environ.get("GODWIT_REQUIRE", "all" if os.environ.get("CI") == "true" else "")
    if required == "all":
        return not any(text in reason for text in OPTIONAL)
    return any(name.strip().lower() in reason.lower() for name in required.split(",") if name)
