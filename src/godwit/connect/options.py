"""Checks of options that many sinks take: paths, columns."""

from __future__ import annotations

import os
from collections.abc import Sequence

from godwit.model.errors import SinkError
from godwit.model.locations import check_location


def check_path(sink: str, path: object) -> None:
    """Raise `SinkError` if a sink's path is empty, or is not a path."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise wrong_option(sink, "path", path, 'a directory, as in "out/by_plane", or a URI')
    if not os.fspath(path):
        raise SinkError(
            f"The {sink} sink has an empty path.",
            remedy='Give a directory, as in "out/by_plane", or a URI.',
        )
    check_location(os.fspath(path), SinkError)


def check_columns(sink: str, **options: object) -> None:
    """Raise `SinkError` if an option is neither a column's name nor a sequence of names."""
    for option, columns in options.items():
        is_named = isinstance(columns, Sequence) and all(isinstance(c, str) for c in columns)
        if columns is not None and not is_named:
            raise wrong_option(sink, option, columns, "the name of a column, or a list of names")


def wrong_option(sink: str, what: str, value: object, wanted: str) -> SinkError:
    """Return the error that an argument (`what`) of a sink has a wrong type; `wanted`: examples."""
    article = "a " if what in ("path", "connection", "table") else ""
    return SinkError(
        f"The {sink} sink has {article}{what} of type {type(value).__name__}.",
        remedy=f"Give {wanted}.",
    )
