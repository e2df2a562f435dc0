"""Prepared indexes: blocks that are verified and indexed before an epoch needs their entries.

Before a migration on demand switches, a job beside the epochs reads the blocks of the moving key
groups at the destination, and writes the index of their rows to a file of the local store.  The
lanes there, mostly other processes, use it in the first epoch after the switch
(`godwit.checkpoint.stored_chains`).

Invariants: an index serves the key groups whose blocks, up to its epoch, are those that it was made
of; the blocks of others are indexed by the lane.  A block counts as verified while its file is the
same and unchanged.  A file that cannot be read whole is not used.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from godwit.checkpoint.stored_index import KeyGroupRange, SortedRun, in_mapped_file
from godwit.store.image import storage_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage import CheckpointStorage

_NAME: Final = "prepared.npz"
_ARRAYS: Final = ("codes", "starts", "firsts", "owners", "key_groups")
_UNREADABLE: Final = (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile)

Address = tuple[int, int, str, int, int, int]
"""Epoch and lane of a segment (epoch and ``-1 - key_group`` of a snapshot), and of its block the
file, offset, length and checksum."""


class IndexedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block, and the key groups of its rows in the index."""

    address: Address
    key_groups: tuple[int, ...]
    # of the file, when the block was verified; ``None``: it has no file that stays
    identity: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedPart:
    """Index of some key groups (ascending), which have some `num_keys` keys."""

    key_groups: npt.NDArray[np.int64]
    num_keys: int
    run: SortedRun


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a part, whose arrays are stored beside it."""

    num_keys: int
    num_key_groups: int
    first: int
    count: int


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the arrays."""

    epoch: int
    blocks: tuple[IndexedBlock, ...]
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedIndex:
    """Index of all rows that some key groups have in the checkpoint at a committed `epoch`.

    `blocks`: in the order of their numbers in the runs.
    """

    epoch: int
    blocks: Sequence[IndexedBlock]
    parts: Sequence[IndexedPart]

    def save(self, directory: Path) -> None:
        """Write the index to a directory of the local store; it replaces an earlier one.

        Raises `StorageFullError` if the disk is full.
        """
        header = _Header(
            epoch=self.epoch,
            blocks=tuple(self.blocks),
            parts=tuple(
                _Part(
                    num_keys=part.num_keys,
                    num_key_groups=part.run.key_groups.num_key_groups,
                    first=part.run.key_groups.first,
                    count=part.run.key_groups.count,
                )
                for part in self.parts
            ),
        )
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.frombuffer(msgspec.msgpack.encode(header), np.uint8)
        }
        for number, part in enumerate(self.parts):
            run = part.run
            values = (run.codes, run.starts, run.firsts, run.owners, part.key_groups)
            arrays |= {f"{name}{number}": v for name, v in zip(_ARRAYS, values, strict=True)}
        temporary = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                temporary = Path(file.name)
                np.savez(file, allow_pickle=False, **arrays)
            temporary.replace(directory / _NAME)
        except OSError as error:
            raise storage_full(error, directory, sum(a.nbytes for a in arrays.values())) from error
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path, place_in: Path | None = None) -> PreparedIndex | None:
        """Return the index in a directory; ``None`` if there is none that can be read.

        `place_in`: directory of mapped files for the codes; ``None``: they are in memory.
        """
        try:
            with (
                (directory / _NAME).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,  # which verifies checksums
            ):
                header = msgspec.msgpack.decode(stored["header"].tobytes(), type=_Header)
                parts = []
                for number, part in enumerate(header.parts):
                    codes, starts, firsts, owners, part_groups = (
                        stored[f"{array_name}{number}"] for array_name in _ARRAYS
                    )
                    key_groups = KeyGroupRange(
                        num_key_groups=part.num_key_groups, first=part.first, count=part.count
                    )
                    run = SortedRun(
                        key_groups=key_groups,
                        codes=in_mapped_file(codes, place_in),
                        starts=starts,
                        firsts=firsts,
                        owners=owners,
                    )
                    parts.append(
                        IndexedPart(key_groups=part_groups, num_keys=part.num_keys, run=run)
                    )
        except (*_UNREADABLE, msgspec.MsgspecError):
            return None
        return cls(epoch=header.epoch, blocks=header.blocks, parts=parts)

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove the index in a directory, if there is one."""
        with suppress(OSError):
            os.unlink(directory / _NAME)  # noqa: PTH108  of a path that may be gone


class VerifiedBlocks:
    """Blocks that were verified on this machine, in files that have not changed since.

    The files stay mapped.
    """

    def __init__(self, storage: CheckpointStorage, prepared: PreparedIndex) -> None:
        self._storage = storage
        self._identities = {b.address[2:]: b.identity for b in prepared.blocks if b.identity}
        self._files: dict[str, tuple[tuple[int, ...] | None, pa.Buffer]] = {}

    def read(self, ref: BlockRef) -> pa.Buffer | None:
        """Return the bytes of a block; ``None`` if it has to be verified."""
        identity = self._identities.get((ref.file, ref.offset, ref.length, ref.checksum))
        if identity is None:
            return None
        if ref.file not in self._files:
            identity_before, content = (
                self._storage.identity(ref.file),
                self._storage.read(ref.file),
            )
            is_unchanged = identity_before == self._storage.identity(
                ref.file
            )  # while it was mapped
            self._files[ref.file] = identity_before if is_unchanged else None, content
        current_identity, content = self._files[ref.file]
        end = ref.offset + ref.length
        return (
            content[ref.offset : end]
            if current_identity == identity and end <= content.size
            else None
        )
