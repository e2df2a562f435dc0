"""Arguments that several commands have: a number within bounds, a picture."""

from __future__ import annotations

import argparse
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def bounded(kind: type, low: float, high: float = float("inf"), name: str = "number") -> Any:
    """Return an argparse type that accepts numbers from `low` to `high`.

    `name`: of the type, for argparse's message about other texts.
    """

    def parsed(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            bounds = f"less than {low}" if high == float("inf") else f"not between {low} and {high}"
            raise argparse.ArgumentTypeError(f"{text} is {bounds}")
        return value

    parsed.__name__ = name
    return parsed


def save_picture(
    draw: Callable[[Any], Any], path: Path, module: str, option: str = "--plot"
) -> None:
    """Draw a figure, and write it to an image file.

    `draw`: gets `module`, which is imported here, since matplotlib is slow to import; returns the
    figure. `option`: that names the file, for errors.
    """
    try:
        plots = import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise GodwitError(
            f"{option} needs the package matplotlib, which is not installed.",
            remedy="pip install matplotlib",
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):  # of characters that the font lacks
            draw(plots).savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise GodwitError(
            f"{option} {path} cannot be written: {error}.",
            remedy="Give a file ending in .png, .svg or .pdf in a directory that exists.",
            path=str(path),
        ) from None
