"""The file systems that sinks write to: how a path opens one, and what it can do."""

from __future__ import annotations

import os
import re
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from godwit.model.errors import SinkError
from godwit.model.secrets import HIDDEN, Secrets, shown_uri

__all__ = ["destination_of", "exists", "open_file_system", "renames_directories"]

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


def open_file_system(
    path: str, filesystem: pafs.FileSystem | None = None
) -> tuple[pafs.FileSystem, str]:
    """Open the file system that `path` is on; return it with the path inside it.

    Raises
    ------
    SinkError
        If the URI is of no known kind, or its file system cannot be reached.
    """
    if filesystem is not None:
        return filesystem, path.rstrip("/")
    if not _is_uri(path):
        return pafs.LocalFileSystem(), os.path.abspath(path)  # noqa: PTH100 - Path would resolve links
    uri = re.sub(r"^s3[an]://", "s3://", path)  # Spark's word for S3 is s3a
    try:
        found, inner = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as error:
        secrets = Secrets.of_uri(path) | Secrets.of_uri(uri)
        raise SinkError(
            f"Cannot open {shown_uri(path)}: {secrets.hide(str(error))}.",
            remedy="Give a local path or a URI of pyarrow.fs: file, s3, gs, abfs, hdfs; in user "
            "and password, / is written %2F, @ %40 and : %3A.",
            path=shown_uri(path),
        ) from secrets.cause(error)
    return found, inner.rstrip("/")


def destination_of(path: str) -> str:
    """Name the place that a path or URI leads to, however it is written, without opening anything.

    Of a URI that is the store, the bucket and the path in it. User, password and parameters change
    while the place stays, save for the address of a server.

    Examples
    --------
    >>> destination_of("s3a://AKIA:secret@bucket/out/?region=eu")
    's3://bucket/out'
    """
    if path.startswith("file:"):
        return open_file_system(path)[1]
    if not _is_uri(path):
        return os.path.abspath(path)  # noqa: PTH100 - Path would resolve links
    base, _, query = shown_uri(path).partition("?")
    scheme, _, rest = base.partition("://")
    name = _SCHEMES.get(scheme.lower(), scheme.lower())
    place = rest.removeprefix(f"{HIDDEN}@").rstrip("/")
    if name == "abfs":
        # What comes before the @ of Azure is the container, unless it is a password only.
        before, at, _ = path.partition("://")[2].partition("@")
        container = before.partition(":")[0] if at else ""
        place = f"{container}@{place}" if container else place
    server = [field for field in query.split("&") if field.startswith("endpoint_override=")]
    return "?".join([f"{name}://{place}", *server])


def _is_uri(path: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/", path) is not None


def renames_directories(filesystem: pafs.FileSystem) -> bool:
    """Whether `filesystem` renames a directory in one step."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return renames_directories(filesystem.base_fs)
    return filesystem.type_name.removeprefix("py::") in {"local", "hdfs"}


def exists(filesystem: pafs.FileSystem, path: str) -> bool:
    """Whether there is a file or directory at `path`."""
    return bool(filesystem.get_file_info(path).type != pafs.FileType.NotFound)
