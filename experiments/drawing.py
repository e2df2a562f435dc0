"""One figure into one file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["figure"]


@contextmanager
def figure(path: Path, *, size: tuple[float, float] = (6, 4), panels: int = 1) -> Iterator[Any]:
    """Give axes (one under another where there are several) and write what was drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(panels, 1, figsize=size, sharex=panels > 1)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(drawn)
