"""Tests of minutes each, and cases beside similar ones, which run only where they are asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_T = TypeVar("_T")

minutes_long = pytest.mark.skipif(
    "GODWIT_LONG" not in os.environ, reason="takes minutes; GODWIT_LONG=1 ./run campaigns runs it"
)


def chosen(cases: Mapping[str, _T], *, only_long: Collection[str]) -> dict[str, _T]:
    """Return the cases to run: without those of `only_long`, except where tests may take minutes.

    `only_long`: names of cases beside others that use the same code.
    """
    unknown = {*only_long} - cases.keys()
    assert not unknown, f"no such cases: {sorted(unknown)}"
    long = "GODWIT_LONG" in os.environ
    return {name: case for name, case in cases.items() if long or name not in only_long}
