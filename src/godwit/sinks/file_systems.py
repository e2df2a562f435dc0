"""File systems of sinks: opening by path, capabilities, durability.

**Durability** on a local disk, over a loss of power.  A file that was closed is still only in
memory, and so is its name.  Forced from the inside out (files, then the directories that name
them), and before the rename that shows them, no name ever stands for a file whose bytes are lost
(Pillai et al., "All file systems are not created equal", OSDI 2014).  Object stores and HDFS see to
this themselves when a file is closed.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from godwit.model.errors import SinkError
from godwit.model.locations import check_location, spelled_location
from godwit.model.locations import local_path as local_path_of
from godwit.model.secrets import HIDDEN, Secrets, shown_uri

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.model.errors import GodwitError

_AZURE: Final = {"abfs", "az", "azure", "adl", "wasb", "wasbs"}
_ACCOUNT: Final = (
    "azure_storage_account_name",
    "account_name",
)  # options of stores
_ENDPOINT: Final = (
    *("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"),
)
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


def open_file_system(
    path: str, filesystem: pafs.FileSystem | None = None
) -> tuple[pafs.FileSystem, str]:
    """Open the file system of a path or URI; return it, and the path within it."""
    opened, inner = open_any(path, filesystem, error=SinkError)
    return opened, inner.rstrip("/")


def open_any(
    path: str, filesystem: pafs.FileSystem | None, *, error: type[GodwitError]
) -> tuple[pafs.FileSystem, str]:
    """Open the file system of a path or URI; return it, and the path within it.

    Raises `error` if no such file system exists.
    """
    if filesystem is not None:
        return filesystem, path.rstrip("/") or path
    check_location(path, error)
    if (local := local_path_of(path)) is not None:
        return pafs.LocalFileSystem(), local
    uri = spelled_location(path, error=error)
    try:
        opened, inner = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as cause:
        secrets = Secrets.of_uri(path) | Secrets.of_uri(uri)
        raise error(
            f"Cannot open {shown_uri(path)}: {secrets.hide(str(cause))}.",
            remedy="Give a local path or a URI of pyarrow.fs: file, s3, gs, abfs, hdfs; in user "
            "and password, / is written %2F, @ %40 and : %3A.",
            path=shown_uri(path),
        ) from secrets.cause(cause)
    return opened, inner.rstrip("/")


def destination_of(path: str) -> str:
    """Return a canonical name of the directory that a path or URI denotes; opens nothing.

    For a URI: the store, the bucket and the path in it. User, password and parameters are left out,
    except the address of a server, since they change while the directory stays the same.

    Examples
    --------
    >>> destination_of("s3a://AKIA:secret@bucket/out/?region=eu")
    's3://bucket/out'
    """
    if (local := local_path_of(path)) is not None:
        return local
    base, _, query = shown_uri(path).partition("?")
    scheme, _, location = base.partition("://")
    name = _SCHEMES.get(scheme.lower(), scheme.lower())
    place = location.removeprefix(f"{HIDDEN}@").rstrip("/")
    if name in _AZURE:
        # Before the @ of Azure stands the container, unless it is only a password.
        user_part, sign, _ = path.partition("://")[2].partition("@")
        container = user_part.partition(":")[0] if sign else ""
        place = f"{container}@{place}" if container else place
    server = [field for field in query.split("&") if field.startswith("endpoint_override=")]
    return "?".join([f"{name}://{place}", *server])


def place_of(destination: str, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a name of a directory that is the same for all ways to write it; opens nothing.

    Azure's URIs name account and container before or behind the host, or leave the account to an
    option; a server of S3's protocol is named by the URI, by an option or in the environment.

    `destination`: see `destination_of`. `options`: of the object store: name → value.

    Examples
    --------
    >>> place_of("abfs://out@lake.dfs.core.windows.net/a"), place_of(
    ...     "az://out/a", {"account_name": "lake"}
    ... )
    ('azure://lake/out/a', 'azure://lake/out/a')
    """
    base, _, query = destination.partition("?")
    scheme, _, location = base.partition("://")
    if scheme == "s3":
        server = query.partition("=")[2] or _setting(_ENDPOINT, options)
        host = re.sub("^https?://|/+$", "", unquote(server))
        is_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        return base if not host or is_aws else f"{base}?{host}"
    if scheme not in _AZURE:
        return destination
    authority, _, path = location.partition("/")
    user, _, host = authority.rpartition("@")
    account, _, domain = host.partition(".")
    if domain.startswith(("dfs.", "blob.")):
        container = user
    elif domain or ":" in host:
        account, container = user, ""
    else:
        account, container = user or _setting(_ACCOUNT, options), host
    return f"azure://{account}/{container and f'{container}/'}{path}".rstrip("/")


def _setting(names: Sequence[str], options: Mapping[str, str]) -> str:
    """Return a storage option, or the environment's variable of that name; empty without both."""
    known = {name.upper(): value for name, value in options.items()}
    texts = (known.get(name.upper()) or os.environ.get(name.upper(), "") for name in names)
    return str(next(filter(None, texts), ""))


def renames_directories(filesystem: pafs.FileSystem) -> bool:
    """Return whether a file system renames a directory in one step."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return renames_directories(filesystem.base_fs)
    return filesystem.type_name.removeprefix("py::") in {"local", "hdfs"}


def exists(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether there is a file or directory at `path`."""
    return bool(filesystem.get_file_info(path).type != pafs.FileType.NotFound)


def try_directory(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a directory exists; raise `OSError` if it cannot be there or be written to.

    On a local disk a directory is made in it, or in the nearest one above it, and removed at once.
    Elsewhere only the bucket is looked up: a trial could leave names behind.
    """
    local = local_path(filesystem, path)
    if local is None:
        kind = filesystem.get_file_info(path).type
        if kind is pafs.FileType.File:
            raise NotADirectoryError(errno.ENOTDIR, "a file of this name is there", path)
        bucket = path.partition("/")[0]
        if filesystem.type_name in {"s3", "gcs"} and not exists(filesystem, bucket):
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", bucket)
        return bool(kind is pafs.FileType.Directory)
    local = local.absolute()
    existing_parent = next(path for path in (local, *local.parents) if os.path.lexists(path))
    try:
        Path(tempfile.mkdtemp(prefix=".godwit-", dir=existing_parent)).rmdir()
    except NotADirectoryError as error:
        raise NotADirectoryError(
            error.errno, "this is not a directory", str(existing_parent)
        ) from None
    except OSError as error:
        problem = f"no directory can be made here ({error.strerror})"
        raise OSError(error.errno, problem, str(existing_parent)) from None
    return existing_parent == local


# Of network file systems, and of those that nothing is written to.
_CANNOT_FORCE_DIRECTORIES: Final = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS}


def local_path(filesystem: pafs.FileSystem, path: str) -> Path | None:
    """Return a path on this machine's disks; ``None`` if it is elsewhere or cannot be known."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return local_path(filesystem.base_fs, f"{filesystem.base_path}/{path}")
    return Path(path) if isinstance(filesystem, pafs.LocalFileSystem) else None


def force_file(path: Path) -> None:
    """Make the bytes of a file durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_tree(directory: Path) -> None:
    """Make all files and names under a directory durable (fsync), but not its own name."""
    for inner, _, names in os.walk(directory, topdown=False):
        for name in names:
            force_file(Path(inner, name))
        force_names([Path(inner)])


def force_names(directories: Iterable[Path]) -> None:
    """Make the names of the files in these directories durable (fsync)."""
    for directory in directories:
        try:
            force_file(directory)
        except OSError as error:
            if error.errno not in _CANNOT_FORCE_DIRECTORIES:
                raise
