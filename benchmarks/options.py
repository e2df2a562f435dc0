"""Options of a benchmark's command line, its file of results, and its temporary directories."""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def read_options(
    about: str | None, several: Iterable[str] = (), **defaults: Any
) -> argparse.Namespace:
    """Read options that are named and typed as their defaults.

    ``False`` makes a flag, a list an option of several values, a tuple one of these values (by
    default the first), and a type an option that may be left out.
    `several`: choices of a positional argument ``row``, of which one or more are given.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if several:
        parser.add_argument("row", nargs="+", choices=list(several))
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, tuple):
            parser.add_argument(flag, choices=default, default=default[0])
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def append_json(path: Path, values: Any) -> None:
    """Append values to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(values, default=str) + "\n")


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Context with a directory, which is removed although a process still writes there."""
    with tempfile.TemporaryDirectory(prefix="godwit-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)
