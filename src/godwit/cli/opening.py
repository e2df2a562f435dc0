"""The checkpoint that a command is about: its argument, its storage, its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.checkpoint.framing import load_record
from godwit.checkpoint.records import IDENTITY, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    import argparse

CHECKPOINT_PATH: Final = "a path, or a URI that pyarrow.fs opens (s3://, gs://, hdfs://)"


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a command about one checkpoint, as ``path``."""
    parser.add_argument("path", metavar="CHECKPOINT", help=CHECKPOINT_PATH)


def opened_checkpoint(path: str) -> CheckpointStorage:
    """Return the storage of a checkpoint; raise if the directory is none."""
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
        remedy="A query writes it from its first second on: start one, and look again.",
        path=path,
    )
