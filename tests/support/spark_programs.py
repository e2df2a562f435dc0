"""Environment of programs that start Spark as a reader does, spared what they do not show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["environment_of_readers"]

# What a cluster's administrator would write. A page per session and 200 partitions of a few rows
# each take longer than what most of these programs do.
_DEFAULTS = """
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 4
"""


def environment_of_readers(directory: Path) -> dict[str, str]:
    """Return the environment for a program; Spark's defaults are written to `directory`."""
    (directory / "spark-defaults.conf").write_text(_DEFAULTS)
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(directory)}
