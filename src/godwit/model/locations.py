"""Locations as users write them: a path of this machine, or a URI; one rule for all who open them.

A text that begins with a scheme and ``:/`` is a URI, and the ``%XX`` of its path stand for
characters, as in ``pyarrow.fs`` and ``pathlib.Path.as_uri``. Any other text is a path of this
machine, in which no character has a meaning but ``/``. Hadoop, through which Spark opens
directories, decodes nothing; `hadoop_location` says the same place in its spelling.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from godwit.model.naming import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.errors import GodwitError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_LOCAL = re.compile(
    r"file:(?://(?P<host>[^/]*)|(?!//))(?P<path>/.*|(?<!:)$)", re.IGNORECASE | re.DOTALL
)
_IN_URIS: Final = "%:/?#@!$&'()*+,;="
_HOME = re.compile(r"~[^/]*(/|$)")

ARROW: Final[Mapping[str, str]] = {
    **{scheme: scheme for scheme in ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs")},
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "mock": "mock",  # for tests
}
"""Scheme of a location → how ``pyarrow.fs`` spells it."""


def is_uri(location: str) -> bool:
    """Return whether a location begins with a scheme, such as ``s3://``."""
    return _URI.match(location) is not None


def is_remote(location: str) -> bool:
    """Return whether a location is a URI of another file system than this machine's."""
    return is_uri(location) and _LOCAL.match(location) is None


def check_location(location: object, error: type[GodwitError]) -> None:
    """Raise `error` for a location that is not a path, or has an unknown or misspelled scheme."""
    problem = remedy = ""
    location = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(location, str) or not location:
        shown = type_name(location) if location else "empty"
        raise error(
            f"A location must be a path or a URI, but is {shown}.",
            remedy='Give a directory, as in "checkpoints/delays"; "." is the working directory.',
        )
    local = _LOCAL.match(location)
    if "\0" in location or (is_uri(location) and "%00" in location):
        problem, remedy = "has a zero byte in it", "Give a path or a URI without it."
    elif location != location.encode(errors="replace").decode():
        problem, remedy = "has characters that are no UTF-8", "Give the directory another name."
    elif _HOME.match(location):
        problem = "begins with ~, which only a shell replaces by a home directory"
        remedy = f"Give os.path.expanduser({location!r}), or ./{location} for a directory called ~."
    elif local is not None:
        if (local["host"] or "").lower() not in ("", "localhost"):
            problem = "names another machine, and file: is of this machine alone"
            remedy = "Give file:///path with three slashes, or a plain path."
        elif not local["path"]:
            problem, remedy = "has no path behind file:", "Give file:///path, or a plain path."
        elif "?" in local["path"] or "#" in local["path"]:
            problem = "has a ? or # in it, which ends the path in a URI"
            remedy = "Write %3F for ? and %23 for #, or give a plain path without file:."
        elif "\ufffd" in unquote(local["path"]) and "%EF%BF%BD" not in local["path"].upper():
            problem, remedy = "has %XX in it that are no UTF-8", "Give a plain path without file:."
    elif is_uri(location) and {".", ".."} & {*location.partition("?")[0].split("/")}:
        problem = "has a part . or .. in it, which stores of objects take for a name"
        remedy = "Give the whole path without them."
    if problem:
        from godwit.model.secrets import shown_uri  # noqa: PLC0415  it remembers secrets

        raise error(f"The location {shown_uri(location)!r} {problem}.", remedy=remedy)


def local_path(location: str) -> str | None:
    """Return the absolute path of a location on this machine; ``None`` if it is elsewhere.

    Links are not followed, but before ``..``, as everywhere else; ``file:`` URIs are decoded.

    Examples
    --------
    >>> local_path("/data/my%20dir"), local_path("file:///data/my%20dir"), local_path("s3://b/x")
    ('/data/my%20dir', '/data/my dir', None)
    """
    if (local := _LOCAL.match(location)) is not None:
        location = unquote(local["path"])
    elif is_uri(location):
        return None
    parent, has_parent, below = f"{location}/".rpartition("/../")
    if has_parent:  # the parent of what a link leads to
        location = f"{os.path.realpath(f'{parent}/..')}/{below}"
    path = os.path.abspath(location)  # noqa: PTH100 - Path would resolve links
    return re.sub("^//", "/", path)  # which POSIX leaves to systems, and Linux takes for one


def hadoop_location(location: str) -> str:
    """Return a location in the spelling of Hadoop, which takes ``%20`` for three characters.

    Spark takes a path without a scheme for one of its default file system, which may be HDFS.

    Examples
    --------
    >>> hadoop_location("/data/my dir/50%"), hadoop_location("hdfs://node:8020/my%20dir/")
    ('file:///data/my dir/50%', 'hdfs://node:8020/my dir')
    """
    if (path := local_path(location)) is not None:
        return f"file://{path}"
    scheme, _, rest = location.partition("://")
    host, slash, inner = rest.partition("/")
    return f"{scheme}://{host}{slash}{unquote(inner)}".rstrip("/")


def spelled_location(
    location: str, *, error: type[GodwitError], schemes: Mapping[str, str] = ARROW
) -> str:
    """Return a path, or a URI as the library spells it that knows `schemes`.

    A scheme that is another name of a store becomes the name that the library knows. Raises `error`
    for one that it does not know; no server is asked.

    Examples
    --------
    >>> from godwit.model.errors import SinkError
    >>> spelled_location("s3a://bucket/out", error=SinkError)
    's3://bucket/out'
    """
    match = _URI.match(location)
    if match is None or not is_remote(location):
        return location
    scheme, after_scheme = match[1].lower(), location[match.end(1) :]
    if scheme in schemes:
        host, slash, path = after_scheme.removeprefix("://").partition("/")
        if slash and after_scheme.startswith(
            "://"
        ):  # blanks and letters beyond ASCII as URIs write them
            after_scheme = f"://{host}/{quote(path, safe=_IN_URIS)}"
        return f"{schemes[scheme]}{after_scheme}"
    from godwit.model.secrets import shown_uri  # noqa: PLC0415  it remembers secrets

    known = sorted(name for name, spelling in schemes.items() if name == spelling != "mock")
    raise error(
        f"Cannot open {shown_uri(location)}: its scheme {scheme!r} is of no file system that is "
        "known here.",
        remedy=f"{_spelling_hint(scheme, after_scheme)}Supported are local paths, "
        "and URIs that begin with "
        f"{', '.join(f'{name}://' for name in known)}.",
    )


def _spelling_hint(scheme: str, rest: str) -> str:
    """Return a sentence with the right spelling of a location, if there is one."""
    if scheme == "dbfs":
        path = "/dbfs/" + rest.lstrip(":/")
        return f"Databricks mounts it as a local path: write {path}. "
    if scheme in {"wasb", "wasbs", "az", "azure", "adl"}:
        match = re.match(r"://[^@/]+@([^./]+)\.[^/]*/?([^?]*)", rest)
        account, path = ("ACCOUNT", "PATH") if match is None else match.groups()
        uri = f"abfss://CONTAINER@{account}.dfs.core.windows.net/{path}"
        return f"Azure's storage is written {uri}. "
    return ""
