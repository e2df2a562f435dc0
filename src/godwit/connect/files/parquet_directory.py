"""Directory of a Parquet sink, on any file system."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.types import is_text
from godwit.connect.files.parquet_files import LONGEST_NAME, NULL_PARTITION, escaped_in_paths
from godwit.model.frames import user_call
from godwit.sinks.file_systems import (
    destination_of,
    exists,
    force_file,
    force_names,
    local_path,
    open_file_system,
    renames_directories,
)
from godwit.sinks.target_sink import point_without_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from godwit.model.errors import SinkError

_ATTEMPTS: Final = 5
_LAST: Final = "_delivered.json"
_MARKER: Final = "_godwit.json"
_EPOCH: Final = re.compile(r"epoch=(0|[1-9][0-9]*)")
_FILE: Final = re.compile(r"part-(rest-)?[0-9]+(-[0-9]+)?\.parquet")
_LISTS: Final = 8
_CANNOT_LINK: Final = {errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS}


_MakeError: TypeAlias = "Callable[[str, str], SinkError]"
"""Makes an error from problem and remedy."""


def check_columns(schema: pa.Schema, partition_by: Sequence[str], error: _MakeError) -> None:
    """Raise `error` for columns that Parquet files, or directory names, cannot hold."""
    if any(name.lower() == "epoch" for name in schema.names):
        raise error(
            "a column is called 'epoch', which is the name of the directories",
            "Rename the column before the sink.",
        )
    for name in partition_by:
        # Readers pass over what begins with "_" or ".", and take %XX for a character.
        hidden, null = name.startswith(("_", ".")), f"{name}={NULL_PARTITION}"
        if (
            not name
            or hidden
            or escaped_in_paths(name) != name
            or len(null.encode()) > LONGEST_NAME
        ):
            raise error(
                f"column {name!r} cannot be part of directory names",
                "Rename the column before the sink.",
            )
        if not _can_partition(schema.field(name).type):
            raise error(
                f"column {name!r} of type {schema.field(name).type} cannot be part of directory "
                "names",
                "Partition by strings, integers, dates or booleans.",
            )
    if len(set(partition_by)) >= len(schema.names):
        raise error(
            "partition_by= has all columns, so the files would have none",
            "Leave at least one column out of partition_by=.",
        )


@dataclass(frozen=True, slots=True)
class ParquetDirectory:
    """Directory of a Parquet sink: its owner, its epochs, its staging area."""

    filesystem: pafs.FileSystem
    root: str

    def claim(self, mine: dict[str, Any], error: _MakeError) -> bool:
        """Write the owner file, or check that it names this sink; return whether it is new.

        `mine`: this sink's owner file. Epoch numbers start again with every checkpoint: without
        this check, the epochs of an older query would pass for delivered epochs of this one, and
        rows would be lost. Of two queries that begin a directory at once, one is refused: here on a
        local disk, where creating the file is exclusive, and elsewhere here or in `check`, before
        it has written a row.
        """
        if self._read_marker(mine, error) is not None:
            return False
        if self._was_begun(error) and self._finish_marker():
            return self.claim(mine, error)
        # Columns are written down with their first rows: a start that fails leaves no mark.
        rival = self._write_claim({**mine, "columns": {}})
        if self._read_marker(mine, error) is None:
            raise error(
                f"another query is about to use the directory: {rival}",
                "Give each query its own directory. If there is no other query, remove that file.",
            )
        return True

    def check_claim(self, mine: dict[str, Any], error: _MakeError) -> None:
        """Raise if the existing directory cannot be claimed by a sink; nothing is written.

        `mine`: the sink's owner file.
        """
        if self._read_marker(mine, error) is None:
            self._was_begun(error)

    def _was_begun(self, error: _MakeError) -> bool:
        """Return whether a directory without owner file has entries; raise if they are foreign."""
        infos = self.filesystem.get_file_info(pafs.FileSelector(self.root))
        names = sorted(info.base_name for info in infos)
        strangers = [name for name in names if not name.startswith(("_", "."))]
        if strangers and not any(self._temporary_markers()):  # as a crashed writer leaves them
            raise error(
                f"the directory already holds {', '.join(strangers[:5])}, which this sink has "
                "not written",
                "Give the sink its own directory.",
            )
        return bool(strangers)

    def check(self, mine: dict[str, Any], error: _MakeError) -> None:
        """Check that the owner file still names this sink (`mine`), and add new columns to it.

        Columns may be added and dropped between runs, since every file says which it has; one that
        changed its type would keep readers from reading the directory as a whole.
        """
        marker = self._read_marker(mine, error)
        if marker is None:  # the directory was emptied
            self.claim(mine, error)
            marker = {"columns": {}}
        columns = {**marker["columns"], **mine["columns"]}
        if columns != marker["columns"]:
            _publish_marker(
                self.filesystem, self._write_temporary_marker({**mine, "columns": columns})
            )

    def _read_marker(self, mine: dict[str, Any], error: _MakeError) -> dict[str, Any] | None:
        """Return the owner file; ``None`` if there is none; raise if it names another sink."""
        marker = f"{self.root}/{_MARKER}"
        if not exists(self.filesystem, marker):
            return None
        with self.filesystem.open_input_stream(marker) as stream:
            text = stream.read()
        try:
            stored = json.loads(text)
        except ValueError as cause:
            raise error(
                f"{marker} cannot be read: {cause}",
                "Use another path, or remove the directory to write it again.",
            ) from cause
        if not isinstance(stored, dict) or not isinstance(stored.get("columns"), dict):
            raise _foreign_directory({}, mine, error)
        stored_columns, own_columns = stored["columns"], mine["columns"]
        if {**stored, "columns": own_columns} != mine or any(
            stored_columns.get(name, dtype) != dtype for name, dtype in own_columns.items()
        ):
            raise _foreign_directory(stored, mine, error)
        return stored

    def ignores_case(self) -> bool:
        """Return whether the file system ignores case in names."""
        return exists(self.filesystem, f"{self.root}/{_MARKER.upper()}")

    def _write_claim(self, mine: dict[str, Any]) -> str | None:
        """Write the owner file; return the path of another sink's claim if there is one.

        On a local disk a file is linked to a name that must not exist. Elsewhere every claimant
        writes a file of its own before it looks for those of others: of two that come at once, one
        sees the other, and is refused.
        """
        own_marker = self._write_temporary_marker(mine)
        local = local_path(self.filesystem, own_marker)
        if local is not None:
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(local, local.with_name(_MARKER))
                _force_parents(local.parent)
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
            else:
                local.unlink()
                return None
        rivals = [
            path
            for path, marker in self._temporary_markers()
            if not belongs_to(json.dumps(marker).encode(), mine["query_id"], mine["sink"])
        ]
        if rivals or exists(self.filesystem, f"{self.root}/{_MARKER}"):
            self.filesystem.delete_file(own_marker)
            return next(iter(rivals), None)
        _publish_marker(self.filesystem, own_marker)
        return None

    def _write_temporary_marker(self, mine: dict[str, Any]) -> str:
        """Write the owner file under a temporary name; return its path."""
        path = f"{self.root}/{_MARKER}.{uuid.uuid4().hex}"
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(json.dumps(mine, indent=1).encode())
        if local := local_path(self.filesystem, path):
            force_file(local)
        return path

    def _temporary_markers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield path and content of owner files under temporary names."""
        for info in self.filesystem.get_file_info(pafs.FileSelector(self.root)):
            if not info.base_name.startswith(f"{_MARKER}."):
                continue
            try:
                with self.filesystem.open_input_stream(info.path) as stream:
                    marker = json.loads(stream.read())
            except (FileNotFoundError, ValueError):
                continue  # it is in its place by now, or its writer died
            yield info.path, marker

    def _finish_marker(self) -> bool:
        """Rename an owner file that a crashed writer left; return whether there was one."""
        for path, _ in self._temporary_markers():
            _publish_marker(self.filesystem, path)
            return True
        return False

    def epochs_begun(self) -> list[int]:
        """Return the epochs that have a directory, ascending."""
        names = (
            info.base_name for info in self.filesystem.get_file_info(pafs.FileSelector(self.root))
        )
        return sorted(int(match[1]) for name in names if (match := _EPOCH.fullmatch(name)))

    def delivered_epochs(self) -> list[int]:
        """Return the epochs whose directories have a ``_SUCCESS`` file, ascending."""
        epochs = self.epochs_begun()
        infos = self.filesystem.get_file_info(
            [f"{self.root}/epoch={epoch}/_SUCCESS" for epoch in epochs]
        )
        return [
            epoch
            for epoch, info in zip(epochs, infos, strict=True)
            if info.type != pafs.FileType.NotFound
        ]

    def epoch_point(self, epoch: int) -> HistoryPoint:
        """Return a delivered epoch with its history and digest, from its ``_SUCCESS`` file."""
        point = read_point(self.filesystem, f"{self.root}/epoch={epoch}/_SUCCESS")
        if point is None or point.epoch != epoch:  # it was damaged
            return point_without_history(epoch)
        return point

    def last_point(self) -> HistoryPoint | None:
        """Return the last delivered epoch, even if its directory was removed since.

        Lists the directory once, and reads only epochs later than the recorded one.
        """
        noted = read_point(self.filesystem, f"{self.root}/{_LAST}")
        for epoch in reversed(self.epochs_begun()):
            if noted is not None and epoch <= noted.epoch:
                break
            if exists(self.filesystem, f"{self.root}/epoch={epoch}/_SUCCESS"):
                return self.epoch_point(epoch)
        return noted

    def remove_epoch(self, epoch: int) -> None:
        """Remove the directory of an epoch, so that no reader takes part of it as delivered.

        Where directories are renamed in one step, it is moved away first, so that a removal that is
        cut short leaves nothing where another history's epoch of this number is to be. Elsewhere
        its mark goes first.
        """
        directory = f"{self.root}/epoch={epoch}"
        if renames_directories(self.filesystem):
            aside = f"{self.root}/_staging/_{epoch}-{uuid.uuid4().hex}"
            self.filesystem.create_dir(f"{self.root}/_staging", recursive=True)
            self.filesystem.move(directory, aside)
            directory = aside
        elif exists(self.filesystem, f"{directory}/_SUCCESS"):
            self.filesystem.delete_file(f"{directory}/_SUCCESS")
        self.filesystem.delete_dir(directory)

    def record_last(self, point: HistoryPoint) -> None:
        """Record the last delivered epoch in ``_delivered.json``.

        The file is not synced, and is ignored if a crash damaged it: the epochs' own directories
        say the same, unless they were removed.
        """
        path = f"{self.root}/{_LAST}"
        local = local_path(self.filesystem, path)
        if local is None:
            write_point(self.filesystem, path, point)
            return
        temporary = f"{path}.{uuid.uuid4().hex[:12]}"
        write_point(self.filesystem, temporary, point)
        local.with_name(temporary.rpartition("/")[2]).replace(local)

    def remove_staged(self, matches: Callable[[str], bool]) -> None:
        """Remove the entries of ``_staging`` for whose names `matches` is true."""
        selector = pafs.FileSelector(f"{self.root}/_staging", allow_not_found=True)
        for info in self.filesystem.get_file_info(selector):
            if matches(info.base_name):
                # Another delivery may have been first; and a file more does no harm.
                with contextlib.suppress(OSError):
                    self.filesystem.delete_dir(info.path)


def belongs_to(marker: bytes, query_id: str, sink: str) -> bool:
    """Return whether the owner file `marker` names the sink `sink` of the query `query_id`."""
    try:
        fields = json.loads(marker)
    except ValueError:
        return False
    owner = (query_id, sink)
    return isinstance(fields, dict) and (fields.get("query_id"), fields.get("sink")) == owner


def _publish_marker(filesystem: pafs.FileSystem, path: str) -> None:
    """Rename an owner file at a temporary path to its final name."""
    replace_file(filesystem, path, f"{path.rsplit('/', 1)[0]}/{_MARKER}")


def replace_file(filesystem: pafs.FileSystem, path: str, final: str) -> None:
    """Rename a file to a name that may exist; on HDFS, neither file exists for a moment."""
    for attempt in range(_ATTEMPTS):
        try:
            filesystem.move(path, final)
            break
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
            # HDFS renames onto nothing that is there, and another delivery may be doing the same.
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_file(final)
    if here := local_path(filesystem, final):
        _force_parents(here.parent)


def _force_parents(path: Path) -> None:
    """Force the names of a directory and those above it to the disk."""
    # The directories above may be new. They need not be readable, but those that are not were not
    # made here.
    force_names(above for above in (path, *path.parents) if os.access(above, os.R_OK))


def _foreign_directory(
    theirs: dict[str, Any], mine: dict[str, Any], error: _MakeError
) -> SinkError:
    """Return the error that the owner file names another sink or query: `theirs`, not `mine`."""
    changed = [field for field in mine if theirs.get(field) != mine[field]]
    if "sink" in changed and "query_id" not in changed:
        return error(
            f"the directory belongs to sink {theirs.get('sink')!r} of this query",
            "Use another path; or, if this sink had that name before, pass "
            f"formerly={theirs.get('sink')!r} to flow.sink(...).",
        )
    if "query_id" in changed:
        return error(
            f"the directory belongs to sink {theirs.get('sink')!r} of query "
            f"{theirs.get('query_id')}; this is query {mine['query_id']}",
            "Use another path, or remove the directory to write it again.",
        )
    if changed == ["columns"]:
        stored_columns, own_columns = theirs["columns"], mine["columns"]
        column = next(
            name for name, dtype in own_columns.items() if stored_columns.get(name, dtype) != dtype
        )
        return error(
            f"column {column!r} has type {own_columns[column]}, but had type "
            f"{stored_columns[column]} when the directory was created",
            "Use another path, or rename the column.",
        )
    return error(
        f"{', '.join(changed)} changed since the directory was created: it was "
        f"{theirs.get(changed[0])}, and is {mine[changed[0]]}",
        "Use another path, or the former layout.",
    )


def _can_partition(dtype: pa.DataType) -> bool:
    """Return whether values of a type can name partition directories."""
    return bool(
        is_text(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_boolean(dtype)
    )


@user_call
def latest_epoch(
    path: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None
) -> int | None:
    """Return the number of the newest epoch that a Parquet sink has delivered.

    With ``output="complete"`` the directory ``<path>/epoch=<number>`` has the whole result.

    Parameters
    ----------
    path
        Directory of the sink, as passed to `gw.sinks.parquet`.
    filesystem
        Arrow file system of the sink, if it was given one.

    Returns
    -------
    int or None
        ``None`` before the first epoch, also if the directory does not exist yet.

    Examples
    --------
    >>> gw.sinks.latest_epoch("out/by_plane") is None  # before the first
    True
    """
    opened, root = open_file_system(os.fspath(path), filesystem)
    if not exists(opened, root):
        return None
    return max(ParquetDirectory(opened, root).delivered_epochs(), default=None)


@user_call
def delivered_files(
    path: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None
) -> list[str]:
    """Return the files of all epochs that a Parquet sink has delivered, for any reader.

    Files of an epoch that is being delivered are not among them, also on object stores, where they
    appear one by one. A file that was delivered does not change.

    Parameters
    ----------
    path
        Directory of the sink, as passed to `gw.sinks.parquet`.
    filesystem
        Arrow file system of the sink, if it was given one.

    Returns
    -------
    list of str
        Paths, or URIs without credentials and parameters, in the order of epochs; with
        `filesystem`, paths on it. Empty before the first epoch.

    Examples
    --------
    >>> gw.sinks.delivered_files("out/by_plane")  # before the first epoch
    []
    """
    opened, root = open_file_system(os.fspath(path), filesystem)
    base = root if filesystem is not None else base_uri(destination_of(os.fspath(path)))
    return [f"{base}/{inner}" for _, inner, _ in delivered_in(opened, root)]


def base_uri(destination: str) -> str:
    """Return a path or URI without parameters; a local path may have a ``?``."""
    return destination.partition("?")[0] if "://" in destination else destination


def delivered_in(
    filesystem: pafs.FileSystem, root: str, folder: str = ""
) -> list[tuple[int, str, int]]:
    """Return epoch, path below `root` and size of each delivered file, in order of epochs.

    A list is not of one moment, but of the time that it takes. So there are two, one after the
    other: the second has all epochs up to the last one in the first, with all their files, unless
    some were removed meanwhile. Then it lacks a file of the first, and there is another list.

    `folder`: directory of an epoch, if only its files are asked for.
    """
    directory = f"{root}/{folder}".rstrip("/")
    former, files = _epoch_files(filesystem, root, directory), dict[str, _Listed]()
    for _ in range(_LISTS):
        files = _epoch_files(filesystem, root, directory)
        if former.keys() <= files.keys():
            break
        former = files
    removed = {former[path].epoch for path in former.keys() - files.keys()}
    last = max((listed.epoch for listed in former.values() if listed.is_mark), default=-1)
    delivered = {listed.epoch for listed in files.values() if listed.is_mark} - removed
    return sorted(
        (listed.epoch, path, listed.size)
        for path, listed in files.items()
        if not listed.is_mark and listed.epoch <= last and listed.epoch in delivered
    )


class _Listed(NamedTuple):
    """File of an epoch in a listing: a marker that the epoch is complete, or rows."""

    epoch: int
    size: int  # bytes
    is_mark: bool


def _epoch_files(filesystem: pafs.FileSystem, root: str, directory: str) -> dict[str, _Listed]:
    """Return path below `root` → file, for files in a directory that a sink may have written."""
    files = {}
    for info in _files(filesystem, directory):
        inner = info.path.removeprefix(f"{root}/")
        epoch_directory, _, path_in_epoch = inner.partition("/")
        epoch = _EPOCH.fullmatch(epoch_directory)
        is_mark = path_in_epoch == "_SUCCESS"
        if epoch and (is_mark or _FILE.fullmatch(info.base_name)):
            files[inner] = _Listed(int(epoch[1]), int(info.size), is_mark)
    return files


def write_point(filesystem: pafs.FileSystem, path: str, point: HistoryPoint) -> None:
    """Write an epoch with its history and digest to a JSON file."""
    with filesystem.open_output_stream(path) as stream:
        stream.write(msgspec.json.encode(point))


def read_point(filesystem: pafs.FileSystem, path: str) -> HistoryPoint | None:
    """Return the epoch in a file of `write_point`; ``None`` if it is missing or damaged."""
    try:
        with filesystem.open_input_stream(path) as stream:
            return msgspec.json.decode(stream.read(), type=HistoryPoint)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def files_under(filesystem: pafs.FileSystem, directory: str) -> list[str]:
    """Return the files below a directory by relative path, ascending."""
    return sorted(info.path.removeprefix(f"{directory}/") for info in _files(filesystem, directory))


def _files(filesystem: pafs.FileSystem, directory: str) -> list[pafs.FileInfo]:
    """Return the files below a directory."""
    selector = pafs.FileSelector(directory, recursive=True, allow_not_found=True)
    infos = filesystem.get_file_info(selector)
    return [info for info in infos if info.type == pafs.FileType.File]


def link_or_copy(filesystem: pafs.FileSystem, source: str, target: str) -> None:
    """Hard-link the file `source` as `target`; on object stores, copy it on the server."""
    filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
    old, new = local_path(filesystem, source), local_path(filesystem, target)
    if old is None or new is None:
        filesystem.copy_file(source, target)
        return
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.copyfile(old, new)
