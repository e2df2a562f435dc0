"""A crash at any call that changes the disk leaves the previous commit, or the next one, intact."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.oracles.checkpoint_model import (
    Epoch,
    Model,
    assert_equals,
    make_history,
    models,
    open_log,
    run_epoch,
)
from tests.oracles.unreliable_disk import StoppedError, UnreliableDisk
from tests.support.rounds import rounds

from godwit.checkpoint.storage import LocalStorage
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from godwit.checkpoint.commit_log import CommitLog


def attempt(root: Path, disk: UnreliableDisk, epochs: list[Epoch], inline: int) -> None:
    """Open the checkpoint and carry out epochs until the disk stops."""
    try:
        log = open_log(LocalStorage(root, disk=disk))
        for epoch in epochs:
            run_epoch(log, epoch, inline_limit_bytes=inline)
    except StoppedError:
        pass


def assert_recovered(root: Path, expected: list[Model], at_least: int) -> CommitLog:
    """Open the checkpoint anew, compare every retained epoch, and give the log."""
    storage = LocalStorage(root, disk=UnreliableDisk(root.parent / "graveyard"))
    log = open_log(storage, "recovery")
    assert log.latest_epoch in {at_least, at_least + 1}
    for epoch in log.retained_epochs:
        assert_equals(storage, log.chains_at(epoch), expected[epoch])
        assert log.record(epoch).watermarks == {"source": epoch}
    report = verify(storage)
    assert report.findings == ()
    retained = log.retained_epochs
    assert report.epochs == ((retained[0], retained[-1]) if retained else None)
    return log


@pytest.mark.campaign
@settings(derandomize=True, deadline=None, max_examples=rounds(1, 2), phases=[Phase.generate])
@given(
    seed=st.integers(0, 10_000),
    power_loss=st.booleans(),
    inline=st.sampled_from([0, 2_500, 100_000]),
)
def test_a_crash_at_every_single_call_loses_no_committed_epoch(
    seed: int, power_loss: bool, inline: int
) -> None:
    history = make_history(seed, rounds(3, 4))
    expected = models(history)
    with TemporaryDirectory() as directory:
        base = Path(directory) / "whole" / "ck"
        crashed = Path(directory) / "crashed" / "ck"
        (base.parent / "graveyard").mkdir(parents=True)
        for number, epoch in enumerate(history):
            calls = 0
            while True:
                shutil.rmtree(crashed.parent, ignore_errors=True)
                shutil.copytree(base.parent, crashed.parent)
                disk = UnreliableDisk(crashed.parent / "graveyard", stop_at=calls)
                attempt(crashed, disk, [epoch], inline)
                if not disk.stopped:
                    break
                if power_loss:
                    disk.lose(Random(seed + calls))
                log = assert_recovered(crashed, expected, number - 1)
                for later in history[log.latest_epoch + 1 :][:1]:
                    run_epoch(log, later, inline_limit_bytes=inline)
                assert_equals(log.storage, log.chains, expected[log.latest_epoch])
                calls += 1
            assert calls > 8
            attempt(base, UnreliableDisk(base.parent / "graveyard"), [epoch], inline)
            shutil.rmtree(base.parent / "graveyard")
            (base.parent / "graveyard").mkdir()


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 5), phases=[Phase.generate])
@given(seed=st.integers(0, 10_000), inline=st.sampled_from([0, 2_500, 100_000]))
def test_a_stream_that_crashes_again_and_again_ends_like_one_that_never_did(
    seed: int, inline: int
) -> None:
    random = Random(seed)
    history = make_history(seed, 20)
    expected = models(history)
    committed = -1
    with TemporaryDirectory() as directory:
        root = Path(directory) / "ck"
        graveyard = Path(directory) / "graveyard"
        graveyard.mkdir()
        while committed < len(history) - 1:
            disk = UnreliableDisk(graveyard, stop_at=random.randint(0, 150))
            attempt(root, disk, history[committed + 1 :], inline)
            if random.random() < 0.5:
                disk.lose(random)
            shutil.rmtree(graveyard)
            graveyard.mkdir()
            log = open_log(LocalStorage(root, disk=UnreliableDisk(graveyard)))
            assert log.latest_epoch >= committed
            committed = log.latest_epoch
            for epoch in log.retained_epochs:
                assert_equals(log.storage, log.chains_at(epoch), expected[epoch])
            assert verify(log.storage).findings == ()
