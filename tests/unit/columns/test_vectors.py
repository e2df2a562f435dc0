"""Vector instructions that NumPy leaves out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from godwit.columns import vectors
from godwit.columns.vectors import avoid_slow_sorts, sorts_slowly

ZEN_4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
flags\t\t: fpu sse avx2 avx512f avx512dq
"""
NUMPY = '"""\nModule\n"""\nversion = "2.4.6"\n__version__ = version\n'


@pytest.mark.parametrize(
    ("processor", "numpy", "slow"),
    [
        (ZEN_4, NUMPY, True),
        (ZEN_4, NUMPY.replace("2.4", "2.10"), True),
        (ZEN_4, NUMPY.replace("2.4", "2.3"), False),  # it has other names there
        (ZEN_4.replace(": 25", ": 26"), NUMPY, False),
        (ZEN_4.replace("AuthenticAMD", "GenuineIntel"), NUMPY, False),
        (ZEN_4.replace(" avx512f avx512dq", ""), NUMPY, False),  # Zen 3
        ("", NUMPY, False),
        (ZEN_4, "", False),
    ],
)
def test_avx512_is_left_out_on_zen_4_alone(processor: str, numpy: str, *, slow: bool) -> None:
    assert sorts_slowly(processor, numpy) is slow


def test_nothing_is_left_out_where_the_user_says_what_is_to_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vectors, "sorts_slowly", lambda *_: True)
    chosen = {"NPY_ENABLE_CPU_FEATURES": "X86_V3"}
    avoid_slow_sorts(chosen)  # NumPy refuses to be imported with both settings
    assert chosen == {"NPY_ENABLE_CPU_FEATURES": "X86_V3"}


@pytest.mark.parametrize("chosen", [None, ""])
def test_numpy_takes_what_is_left_out_without_a_warning(chosen: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "NPY_DISABLE_CPU_FEATURES"}
    if chosen is not None:
        environment["NPY_DISABLE_CPU_FEATURES"] = chosen
    program = (
        "import sys, godwit; assert 'numpy' not in sys.modules; import numpy, os; "
        "print(os.environ.get('NPY_DISABLE_CPU_FEATURES', 'nothing'))"
    )
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() in (
        {""} if chosen == "" else {"nothing", "X86_V4 AVX512_ICL AVX512_SPR"}
    )
