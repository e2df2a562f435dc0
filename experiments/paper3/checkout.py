"""Way to programs beside the package: figures that are measured by benchmarks need a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from godwit.cli.reproduce.catalogue import home
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from types import ModuleType


def benchmark(name: str) -> ModuleType:
    """Import a benchmark of the checkout.

    Raises `GodwitError` where there is only the installed package.
    """
    root = home().parent
    if not (root / "benchmarks").is_dir():
        raise GodwitError(
            f"This figure is measured by benchmarks.{name}, which the package does not hold.",
            remedy="Run `godwit reproduce` of a checkout of the source.",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return import_module(f"benchmarks.{name}")
