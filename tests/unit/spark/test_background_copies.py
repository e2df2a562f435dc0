"""Failures of background copies are reported, and later orders are carried out anyway."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from godwit.migration.messages import DropCopies
from godwit.spark import background_copies
from godwit.spark.background_copies import BackgroundCopies

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

PATIENCE_S = 120.0


class CopiesOnFakeCluster:
    """Background copies on a cluster of which a test says what there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            background_copies, "inheritable_thread_target", lambda _: lambda run: run
        )
        monkeypatch.setattr(BackgroundCopies, "_drop", self._drop)
        self.executors: dict[str, object] = {"1": object(), "2": object()}
        self.background: SimpleQueue[Any] = SimpleQueue()
        self.failures: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.dropped: SimpleQueue[DropCopies] = SimpleQueue()
        self.error: Exception | None = None
        self.copies = BackgroundCopies(
            cast("Any", self),
            coordinator=cast("Any", SimpleNamespace(background_failed=self._failed)),
            instructor=cast("Any", None),
            spark=cast("Any", None),
        )

    def drop(self, executor: str) -> None:
        self.background.put(DropCopies(component="c", executor=executor, key_groups=(1,)))

    def _failed(self, what: str, error: str) -> None:
        self.failures.put((what, error))

    def _drop(self, order: DropCopies) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.dropped.put(order)


@contextmanager
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[CopiesOnFakeCluster]:
    story = CopiesOnFakeCluster(monkeypatch)
    yield story
    story.copies.close()


def test_what_a_copy_raises_is_told_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with copies(monkeypatch) as story:
        story.error = KeyError("x")
        story.drop("1")
        assert story.failures.get(timeout=PATIENCE_S) == ("background copies", "KeyError: 'x'")
        story.drop("1")
        assert story.dropped.get(timeout=PATIENCE_S).executor == "1"


def test_an_executor_that_is_gone_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with copies(monkeypatch) as story:
        for number in range(20):
            story.executors = {str(number): object()}
            story.drop(str(number))
            assert story.dropped.get(timeout=PATIENCE_S).executor == str(number)
        assert len(story.copies._pools) == 1
        for thread in threading.enumerate():
            if thread.name.startswith("godwit-copies-") and not thread.name.startswith(
                "godwit-copies-19"
            ):
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
