"""Vector instructions that NumPy is to leave out: AVX-512 where it makes sorts slower.

The problem: a sort partitions by compressing vectors into memory, which AMD's Zen 4 does in
microcode.  There NumPy's sort of AVX-512 takes four times as long as its sort of AVX2 (OpenJDK does
not use it there either), and an epoch's rows are grouped by a sort.  NumPy reads once, when it is
imported, what it is to leave out; so this module imports nothing that imports NumPy, and child
processes such as Spark's Python workers inherit the setting.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_SETTING: Final = "NPY_DISABLE_CPU_FEATURES"
_CONTRARY: Final = "NPY_ENABLE_CPU_FEATURES"  # NumPy cannot be imported with both
_ZEN_3_AND_4: Final = 25
_LEFT_OUT: Final = "X86_V4 AVX512_ICL AVX512_SPR"
_FIRST_NAMED_SO: Final = (2, 4)  # NumPy's version


def avoid_slow_sorts(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set NumPy not to use AVX-512 where it makes sorts slower, unless the user has set that.

    Examples
    --------
    >>> environment = {"NPY_DISABLE_CPU_FEATURES": ""}
    >>> avoid_slow_sorts(environment)
    >>> environment
    {'NPY_DISABLE_CPU_FEATURES': ''}
    """
    if _SETTING in environment or environment.get(_CONTRARY):
        return
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as processors:
            first = processors.read(4096)
        spec = find_spec("numpy")
        assert spec is not None, "it is required"
        version = Path(str(spec.origin)).with_name("version.py").read_text(encoding="utf-8")
    except OSError:  # another system
        return
    if sorts_slowly(first, version):
        environment[_SETTING] = _LEFT_OUT


def sorts_slowly(processors: str, version: str) -> bool:
    """Return whether the processor sorts slowly with AVX-512, and NumPy knows AVX-512 by name.

    `processors`: content of ``/proc/cpuinfo``. `version`: version of NumPy.

    Examples
    --------
    >>> sorts_slowly("vendor_id : GenuineIntel", 'version = "2.4.6"')
    False
    """
    family = re.search(r"^cpu family\s*: (\d+)$", processors, re.MULTILINE)
    number = re.search(r'^version = "(\d+)\.(\d+)', version, re.MULTILINE)
    if family is None or number is None:
        return False
    return (
        "AuthenticAMD" in processors
        and int(family[1]) == _ZEN_3_AND_4
        and " avx512f" in processors
        and (int(number[1]), int(number[2])) >= _FIRST_NAMED_SO
    )
