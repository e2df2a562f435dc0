"""Tests of minutes each, which the campaigns leave out unless they are asked for."""

from __future__ import annotations

import os

import pytest

minutes_long = pytest.mark.skipif(
    "GODWIT_LONG" not in os.environ, reason="takes minutes; GODWIT_LONG=1 ./run campaigns runs it"
)
