"""Arguments that several commands share: a checkpoint, a bounded number, a picture."""

from __future__ import annotations

import argparse
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.framing import load_record
from godwit.checkpoint.records import IDENTITY, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError, GodwitError

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
            remedy="Run pip install matplotlib",
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):  # of characters that the font lacks
            draw(plots).savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise GodwitError(
            f"{option} {path} cannot be written: {error}.",
            remedy="Give a file ending in .png, .svg or .pdf in an existing directory.",
            path=str(path),
        ) from None


CHECKPOINT_PATH: Final = "a path, or a URI that pyarrow.fs opens (s3://, gs://, hdfs://)"


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a command about one checkpoint, as ``path``."""
    parser.add_argument("path", metavar="CHECKPOINT", help=CHECKPOINT_PATH)


def opened_checkpoint(path: str) -> CheckpointStorage:
    """Return the storage of a checkpoint; raise if the directory is not a checkpoint."""
    storage = CheckpointStorage.open(path)
    if IDENTITY not in storage.list(""):
        raise CheckpointError(
            f"{path!r} is not a checkpoint of Godwit: it has no file {IDENTITY!r}.",
            remedy="Give the directory that was given to flow.start(checkpoint=...).",
            path=path,
        )
    return storage


def flow_name(storage: CheckpointStorage) -> str:
    """Return the name of the flow that a checkpoint belongs to."""
    return load_record(storage, IDENTITY, FlowIdentity).name


def no_journal_error(path: str) -> CheckpointError:
    """Return the error that a checkpoint has no journal yet."""
    return CheckpointError(
        f"The checkpoint {path!r} has no journal that can be read yet.",
        remedy="A query writes it from its start: start the query, then try again.",
        path=path,
    )
