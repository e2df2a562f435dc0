"""A disk whose process dies at a chosen operation, and reaches no file afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.storage import PosixDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

__all__ = ["DeadError", "dying_at"]

OPERATIONS = ("create", "write", "sync", "link", "replace", "unlink")


class DeadError(BaseException):
    """The process died here."""


@contextmanager
def dying_at(patch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Let every disk die before its operation of this number; yields the operations so far."""
    done: list[str] = []

    def replaced(name: str) -> Any:
        real = getattr(PosixDisk, name)

        def operation(disk: PosixDisk, *arguments: Any, **options: Any) -> Any:
            if len(done) >= number:
                raise DeadError(f"before {name}, operation {number}")
            done.append(name)
            return real(disk, *arguments, **options)

        return operation

    with patch.context() as context:
        for name in OPERATIONS:
            context.setattr(PosixDisk, name, replaced(name))
        yield done
