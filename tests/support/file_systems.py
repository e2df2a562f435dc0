"""File systems that fail: a driver that dies at the n-th operation, and an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

if TYPE_CHECKING:
    from pathlib import Path


class CrashError(OSError):
    """The driver died here."""


class FaultyHandler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A local directory that stops working before operation number ``fail_at``, permanently.

    With ``renames`` false it behaves like an object store: directories cannot be moved.  With
    ``moves_into`` it behaves like HDFS: a directory that is renamed to one that exists is moved
    into it.
    """

    def __init__(self, root: Path, *, renames: bool = True, moves_into: bool = False) -> None:
        self._inner = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
        self._renames = renames
        self._moves_into = moves_into
        self.fail_at = -1
        self.operations: list[str] = []

    def restart(self, fail_at: int = -1) -> None:
        self.operations = []
        self.fail_at = fail_at

    def _reach(self, operation: str) -> None:
        self.operations.append(operation)
        if 0 <= self.fail_at < len(self.operations):
            raise CrashError(f"crash before {operation}")

    def get_type_name(self) -> str:
        if self._moves_into:
            return "hdfs"
        return "local" if self._renames else "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._reach("get_file_info")
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._reach("get_file_info_selector")
        return self._inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._reach(f"create_dir {path}")
        self._inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._reach(f"delete_dir {path}")
        self._inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._reach(f"delete_dir_contents {path}")
        self._inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._reach(f"delete_file {path}")
        self._inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._reach(f"move {src} {dest}")
        if not self._renames and self._inner.get_file_info(src).type == pafs.FileType.Directory:
            raise NotImplementedError("an object store does not move directories")
        if self._moves_into and self._inner.get_file_info(dest).type == pafs.FileType.Directory:
            dest = f"{dest}/{src.rsplit('/', 1)[-1]}"
        if self._moves_into and self._inner.get_file_info(dest).type == pafs.FileType.File:
            raise OSError(f"there is a file {dest}")
        self._inner.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._reach(f"copy_file {src}")
        self._inner.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        self._reach(f"open_input_stream {path}")
        return self._inner.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        self._reach(f"open_input_file {path}")
        return self._inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._reach(f"open_output_stream {path}")
        return self._inner.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError
