"""Executors that join count once they have rehearsed, and at once where there is no other."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.engine.cluster import Executor
from godwit.spark.platform import executors as executor_watch
from godwit.spark.platform.executors import ExecutorWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PATIENCE_S = 120.0


class Cluster:
    """Executors that come and go by hand, and rehearse for as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: list[str] = ["1"]
        self.lost: list[str] = []
        self.seen: list[set[str]] = []
        self.rehearsals: list[tuple[str, Any]] = []
        self.may_end = threading.Event()
        self.fails = False
        self.failures: list[tuple[str, str]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(executor_watch, "live_executors", lambda _, **_spare: self._live())
        monkeypatch.setattr(
            executor_watch, "registered_executors", lambda _: {e.name for e in self._live()}
        )
        monkeypatch.setattr(executor_watch, "is_one_process", lambda _: False)
        monkeypatch.setattr(executor_watch, "context_is_stopped", lambda _: False)
        monkeypatch.setattr(executor_watch, "run_trial_epoch", self._rehearse)
        monkeypatch.setattr(executor_watch, "inheritable_thread_target", lambda _: lambda run: run)
        monkeypatch.setattr(executor_watch, "_LOOK_S", PATIENCE_S)  # looked at by hand
        self.executors: Mapping[str, Executor] = {e.name: e for e in self._live()}
        self.micro_batches = SimpleNamespace(latest="rows")
        self.watch = ExecutorWatch(
            cast("Any", self),
            coordinator=cast(
                "Any",
                SimpleNamespace(
                    see=self.see,
                    background_failed=lambda what, error: self.failures.append((what, error)),
                ),
            ),
            lost=cast(
                "Any", SimpleNamespace(record_loss=self.lost.append, cancel_jobs=lambda: None)
            ),
            pool=cast("Any", SimpleNamespace(returned=frozenset())),
            spark=cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(_jsc="there"))),
        )

    def see(self, executors: Mapping[str, int], _returned: Iterable[str]) -> list[str]:
        before = self.seen[-1] if self.seen else {"1"}
        self.seen.append(set(executors))
        return sorted(before - set(executors))

    def rehearsed(self) -> None:
        """Let rehearsals end, and wait until they have."""
        self.may_end.set()
        for thread in threading.enumerate():
            if thread.name.startswith("godwit-rehearsal"):
                thread.join(PATIENCE_S)

    def _live(self) -> list[Executor]:
        if self.error is not None:
            raise self.error
        return [Executor(name=name, lanes=2, location=None) for name in self.there]

    def _rehearse(self, executor: Executor, source: Any, _spark: Any) -> None:
        self.rehearsals.append((executor.name, source))
        self.may_end.wait(PATIENCE_S)
        if self.fails:
            raise RuntimeError


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(monkeypatch)
    yield made
    made.rehearsed()
    made.watch.close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_executor_that_joins_counts_once_it_has_rehearsed_or_failed_to(
    cluster: Cluster, fails: bool
) -> None:
    cluster.fails = fails
    cluster.there.append("2")
    cluster.watch.check_executors()
    cluster.watch.check_executors()
    assert cluster.executors.keys() == {"1"}
    cluster.rehearsed()
    cluster.watch.check_executors()
    assert cluster.executors.keys() == {"1", "2"}
    assert cluster.seen == [{"1", "2"}]
    assert cluster.rehearsals == [("2", "rows")]  # once; those that were there do not


def test_an_executor_counts_at_once_where_there_is_no_other(cluster: Cluster) -> None:
    cluster.there[:] = ["2", "3"]
    cluster.watch.check_executors()
    assert cluster.executors.keys() == {"2", "3"}
    assert cluster.lost == ["1"]


def test_an_executor_that_goes_while_another_rehearses_is_told_at_once(cluster: Cluster) -> None:
    cluster.there.append("2")
    cluster.watch.check_executors()
    cluster.rehearsed()
    cluster.watch.check_executors()
    cluster.may_end.clear()
    cluster.there[:] = ["2", "3"]
    cluster.watch.check_executors()
    assert cluster.lost == ["1"]
    assert cluster.executors.keys() == {"2"}


def test_an_executor_that_goes_before_it_has_rehearsed_was_never_there(cluster: Cluster) -> None:
    cluster.there.append("2")
    cluster.watch.check_executors()
    cluster.there.remove("2")
    cluster.rehearsed()
    cluster.watch.check_executors()
    assert cluster.seen == []
    assert cluster.lost == []


def test_a_look_that_fails_is_told_once_and_the_next_one_sees_what_there_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.may_end.set()
    monkeypatch.setattr(executor_watch, "_LOOK_S", 0.001)
    cluster.watch.close()
    cluster.watch = ExecutorWatch(
        cast("Any", cluster),
        coordinator=cluster.watch._coordinator,
        lost=cluster.watch._lost,
        pool=cluster.watch._pool,
        spark=cluster.watch._spark,
    )
    cluster.error = KeyError("x")
    eventually(lambda: bool(cluster.failures))
    cluster.error = None
    cluster.there[:] = ["2"]
    eventually(lambda: cluster.executors.keys() == {"2"})
    assert cluster.failures == [("watching executors", "KeyError: 'x'")]


def test_details_are_asked_for_only_if_others_are_registered_than_are_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.may_end.set()
    looks: list[int] = []
    look = cluster.watch.check_executors

    def counted() -> None:
        looks.append(1)
        look()

    monkeypatch.setattr(cluster.watch, "check_executors", counted)
    cluster.watch._check_if_changed()
    assert not looks
    cluster.there[:] = ["2"]
    cluster.watch._check_if_changed()
    assert len(looks) == 1
    assert set(cluster.executors) == {"2"}
    cluster.watch._check_if_changed()
    assert len(looks) == 1


def test_the_cores_of_one_process_are_looked_at_only_when_their_number_changes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_watch, "is_one_process", lambda _: True)
    context: Any = cluster.watch._spark.sparkContext
    context.defaultParallelism = 1
    cluster.error = ConnectionError("no answer")
    with pytest.raises(ConnectionError):
        cluster.watch._check_if_changed()
    cluster.error = None
    cluster.watch._check_if_changed()  # again, as it has seen nothing yet
    assert cluster.executors.keys() == {"1"}
    cluster.there[:] = ["2"]
    cluster.watch._check_if_changed()
    assert cluster.executors.keys() == {"1"}
    context.defaultParallelism = 2
    cluster.watch._check_if_changed()
    assert cluster.executors.keys() == {"2"}


def test_cores_that_one_process_gets_count_once_they_have_rehearsed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_watch, "is_one_process", lambda _: True)
    context: Any = cluster.watch._spark.sparkContext
    context.defaultParallelism = 1
    cluster.watch._check_if_changed()
    cluster.there.append("2")
    context.defaultParallelism = 2
    cluster.watch._check_if_changed()
    assert cluster.executors.keys() == {"1"}
    cluster.rehearsed()
    cluster.watch._check_if_changed()
    assert cluster.executors.keys() == {"1", "2"}


def test_names_of_registered_executors_come_as_one_text() -> None:
    def names(text: str) -> frozenset[str]:
        ids = SimpleNamespace(mkString=lambda _between: text)
        context = SimpleNamespace(getExecutorIds=lambda: ids)
        spark = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))
        return executor_watch.registered_executors(cast("Any", spark))

    assert names("1\n12") == {"1", "12"}
    assert names("") == set()


def test_a_name_that_is_gone_is_not_remembered(cluster: Cluster) -> None:
    cluster.may_end.set()
    for n in range(2, 20):
        cluster.there[:] = ["1", str(n)]
        cluster.watch.check_executors()
        cluster.rehearsed()
        cluster.watch.check_executors()
        assert cluster.executors.keys() == {"1", str(n)}
    assert len(cluster.watch._rehearsed | cluster.watch._rehearsing) <= 4


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)
