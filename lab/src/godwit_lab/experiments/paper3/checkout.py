"""Way to the benchmarks, which are beside the package: some figures need a checkout."""

from __future__ import annotations

import sys

from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce.catalogue import home


def use_benchmarks() -> None:
    """Let the package ``benchmarks`` of the checkout be imported.

    Raises `GodwitError` where there is only the installed package.
    """
    root = home().parents[3]  # of lab/src/godwit_lab/experiments
    if not (root / "benchmarks").is_dir():
        raise GodwitError(
            "This figure is measured by a benchmark, which the package does not hold.",
            remedy="Run `godwit reproduce` of a checkout of the source.",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
