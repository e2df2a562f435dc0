"""A byte that changes, a file that is cut short and a file that is gone are all noticed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.checkpoint_model import make_history, open_log, run_epoch
from tests.oracles.unreliable_disk import UnreliableDisk
from tests.support.rounds import rounds

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.collection import collect_garbage, needed_files
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import BLOCKS, commit_path
from godwit.checkpoint.storage import LocalStorage
from godwit.model.errors import CheckpointError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from godwit.checkpoint.records import BlockRef


def write_checkpoint(root: Path, seed: int) -> CommitLog:
    """Write some epochs and leave nothing that is not needed."""
    root.with_name("graveyard").mkdir()
    log = open_log(LocalStorage(root, disk=UnreliableDisk(root.with_name("graveyard"))))
    for epoch in make_history(seed, 7):
        run_epoch(log, epoch, inline_limit_bytes=Random(seed).choice([0, 2_500]))
    collect_garbage(log)
    return log


def needed(log: CommitLog) -> list[str]:
    return sorted(file for file in needed_files(log) if (Path(log.storage.uri) / file).exists())


def needed_blocks(log: CommitLog, file: str) -> list[BlockRef]:
    """Return the blocks of a file that are referenced; no other part of it is read."""
    blocks = [block for epoch in log.retained_epochs for block in log.chains_at(epoch).blocks()]
    blocks += [block for epoch in log.retained_epochs for block in log.record(epoch).blocks()]
    return [block for block in blocks if block.file == file]


def read_everything(storage: LocalStorage) -> None:
    """Read what the retained epochs need, the way a reader of state does."""
    log = CommitLog.open_read_only(storage)
    for epoch in log.retained_epochs:
        for block in (*log.chains_at(epoch).blocks(), *log.record(epoch).blocks()):
            read_block(storage, block)


def is_noticed_by_reading(storage: LocalStorage) -> bool:
    try:
        read_everything(storage)
    except CheckpointError:
        return True
    return False


@settings(derandomize=True, deadline=None, max_examples=rounds(5, 20))
@given(seed=st.integers(0, 10_000), data=st.data())
def test_a_changed_byte_of_any_file_is_found(seed: int, data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory) / "ck"
        log = write_checkpoint(root, seed)
        file = data.draw(st.sampled_from(needed(log)))
        content = bytearray((root / file).read_bytes())
        ranges = [range(len(content))]
        if file.startswith(BLOCKS):
            ranges = [range(b.offset, b.offset + b.length) for b in needed_blocks(log, file)]
        position = data.draw(st.sampled_from(ranges).flatmap(st.sampled_from))
        content[position] ^= data.draw(st.integers(1, 255))
        (root / file).write_bytes(content)
        report = verify(log.storage)
        assert file in {finding.file for finding in report.findings}
        assert all(finding.problem and finding.remedy for finding in report.findings)


@settings(derandomize=True, deadline=None, max_examples=rounds(5, 20))
@given(seed=st.integers(0, 10_000), data=st.data())
def test_a_file_that_is_cut_short_or_gone_is_found_and_cannot_be_read(
    seed: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory) / "ck"
        log = write_checkpoint(root, seed)
        file = data.draw(st.sampled_from(needed(log)))
        # Without its record, an epoch is one that was never committed.
        if file != commit_path(log.latest_epoch) and data.draw(st.booleans()):
            (root / file).unlink()
        else:
            content = (root / file).read_bytes()
            length = len(content)
            if file.startswith(BLOCKS):
                length = max(block.offset + block.length for block in needed_blocks(log, file))
            (root / file).write_bytes(content[: data.draw(st.integers(0, length - 1))])
        assert file in {finding.file for finding in verify(log.storage).findings}
        assert isinstance(log.storage, LocalStorage)
        # Opening reads only the latest manifest and the records after it.
        if file.startswith(BLOCKS):
            assert is_noticed_by_reading(log.storage)


@settings(derandomize=True, deadline=None, max_examples=rounds(5, 20))
@given(seed=st.integers(0, 10_000), data=st.data())
def test_a_changed_byte_of_a_block_is_noticed_by_whoever_reads_it(
    seed: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory) / "ck"
        log = write_checkpoint(root, seed)
        blocks = list(log.chains.blocks())
        block = data.draw(st.sampled_from(blocks))
        content = bytearray((root / block.file).read_bytes())
        position = block.offset + data.draw(st.integers(0, block.length - 1))
        content[position] ^= data.draw(st.integers(1, 255))
        (root / block.file).write_bytes(content)
        assert isinstance(log.storage, LocalStorage)
        assert is_noticed_by_reading(log.storage)
