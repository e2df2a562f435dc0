"""Everything that opens a checkpoint, and what it may do with one that is not to be trusted.

A reader ends in a result or in a `GodwitError`; whatever else happens is a finding.  Crashes, hangs
and memory are seen from outside, see `tests.fuzz.campaign`.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.oracles.checkpoint_model import IDENTITY, LAYOUT

from godwit.checkpoint.blocks import read_batch, read_block
from godwit.checkpoint.collection import inspect, unneeded_files
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import BatchCache, read_chain
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.ownership import lease_owner
from godwit.checkpoint.records import FlowIdentity
from godwit.checkpoint.repair import plan_log_repair
from godwit.checkpoint.storage import LocalStorage
from godwit.cli.main import main
from godwit.model.errors import GodwitError
from godwit.ops.verification import plan_record_repair, verify
from godwit.plan.staging import decode_files

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from godwit.checkpoint.records import OutputRef

__all__ = ["findings_in"]

_CPU_S = 30.0


class FencedStorage(LocalStorage):
    """Notes every path that is asked for and lies outside."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.outside: list[str] = []

    def _note(self, path: str) -> None:
        full = os.path.normpath(Path(self.uri) / path)
        if not f"{full}/".startswith(f"{self.uri}/"):
            self.outside.append(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        self._note(path)
        return super().read(path, offset, length)

    def list(self, directory: str) -> dict[str, int]:
        self._note(directory)
        return super().list(directory)

    def delete(self, path: str) -> None:
        self._note(path)
        super().delete(path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._note(path)
        super().create_exclusive(path, data)


def findings_in(root: Path, *, printed: bool) -> list[str]:
    """Let every reader open the checkpoint at `root`; say what none of them may do.

    What the command line prints is looked at if `printed`: laying out tables takes its time.
    """
    found = []
    readers = [_verify, _inspect, _owner, _read_state, _collect, _repair, _write]
    for reader in [*readers, _command_line] if printed else readers:
        storage = FencedStorage(root)
        began = time.process_time()
        try:
            reader(storage)
        except GodwitError:
            if reader is _verify:
                found.append(f"_verify raised: {traceback.format_exc(limit=-4)}")
        except BaseException:  # noqa: BLE001  that is what is looked for
            found.append(f"{reader.__name__}: {traceback.format_exc(limit=-6)}")
        if storage.outside:
            found.append(f"{reader.__name__} went outside: {storage.outside}")
        if time.process_time() - began > _CPU_S:
            found.append(f"{reader.__name__} took {time.process_time() - began:.1f} s of CPU")
    return found


def _verify(storage: LocalStorage) -> None:
    for finding in verify(storage).findings:
        assert finding.problem
        assert finding.remedy


def _inspect(storage: LocalStorage) -> None:
    read_tail(storage, 20)
    inspect(storage)


def _owner(storage: LocalStorage) -> None:
    lease_owner(storage)


def _read_state(storage: LocalStorage) -> None:
    log = CommitLog.open_read_only(storage)
    cache = BatchCache(storage)
    log.edits()
    for epoch in log.retained_epochs:
        chains = _ended(partial(log.chains_at, epoch))
        record = _ended(partial(log.record, epoch))
        if chains is not None and epoch in (log.retained_epochs.start, log.latest_epoch):
            _ended(partial(log.versions_since, min(chains.flow, 0)))
            for state in chains.states:
                for key_group in range(chains.num_key_groups):
                    chain = chains.chain(state, key_group)
                    _ended(partial(read_chain, storage, chain, LAYOUT, cache=cache))
            for segment in chains.segments():
                if segment.kind == "waiting":
                    _ended(partial(read_batch, storage, segment.block))
        for output in () if record is None else record.outputs:
            _ended(partial(_read_output, storage, output))


def _read_output(storage: LocalStorage, output: OutputRef) -> None:
    if output.kind == "files":
        decode_files(read_block(storage, output.block))
    else:
        read_batch(storage, output.block).to_pylist()


def _ended(read: Callable[[], Any]) -> Any:
    """Read one thing; an error that Godwit knows is an end as good as another."""
    try:
        return read()
    except GodwitError:
        return None


def _collect(storage: LocalStorage) -> None:
    unneeded_files(CommitLog.open_read_only(storage))


def _repair(storage: LocalStorage) -> None:
    plan = plan_record_repair(storage)
    plan_log_repair(storage, plan.records)


def _command_line(storage: LocalStorage) -> None:
    for action in ("inspect", "verify"):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(["checkpoint", action, storage.uri])
        said = out.getvalue() + err.getvalue()
        assert all(char.isprintable() or char == "\n" for char in said), repr(said[:500])


def _write(storage: LocalStorage) -> None:
    given = FlowIdentity(name=IDENTITY.name, num_key_groups=IDENTITY.num_key_groups)
    log = CommitLog.create_or_open(storage, given, "next", retain_epochs=3, manifest_interval=2)
    unneeded_files(log)
