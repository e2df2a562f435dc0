"""Fixtures of tests that kill processes."""

from __future__ import annotations

from tests.chaos.two_executors import two_executors

__all__ = ["two_executors"]
