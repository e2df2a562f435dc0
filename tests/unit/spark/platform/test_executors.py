"""Facts about the executors that a query sees, as Spark's status store lists them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from godwit.model.errors import ExecutorEnvironmentError, InvalidFlowError
from godwit.spark.platform.executors import (
    check_executors,
    check_spare_slots,
    live_executors,
    warn_of_settings,
)
from godwit.spark.platform.executors_python import _check_names


def spark_of(cores: dict[str, int], host: str = "127.0.0.1", **registered: bool) -> Any:
    """Stand in for the context of a cluster whose executors have these cores."""
    summaries = [
        SimpleNamespace(
            id=lambda name=name: name,
            hostPort=lambda: f"{host}:7000",
            totalCores=lambda count=count: count,
        )
        for name, count in cores.items()
    ]
    names = [name for name in cores if registered.get(f"has_{name}", True)]

    def sequence(items: list[Any]) -> Any:
        return SimpleNamespace(
            size=lambda: len(items),
            apply=items.__getitem__,
            mkString=lambda between: between.join(items),
        )

    sc = SimpleNamespace(
        isLocal=lambda: False,
        getExecutorIds=lambda: sequence(names),
        statusStore=lambda: SimpleNamespace(executorList=lambda _active: sequence(summaries)),
    )
    return SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: sc),
        master="spark://127.0.0.1:7077",
        _conf=SimpleNamespace(get=lambda _name, default=None: default),
        pythonExec="python3",
    )


def test_executors_have_a_lane_a_core() -> None:
    spark = spark_of({"1": 2, "2": 3, "10": 2, "3": 2}, has_3=False)
    assert [(e.name, e.lanes) for e in live_executors(spark)] == [("1", 2), ("2", 3), ("10", 2)]


@pytest.mark.parametrize("host", ["10.0.0.7", "node_1.docker_net", "[fd00::7]", "node"])
def test_a_location_has_the_executor_after_its_first_underscore_as_spark_takes_it_apart(
    host: str,
) -> None:
    (executor,) = live_executors(spark_of({"7": 2}, host))
    assert executor.location is not None
    kind, place, name = executor.location.split("_", 2)
    assert (kind, place, name) == ("executor", host.replace("_", "-"), "7")


@pytest.mark.parametrize(
    "setting", ["spark.dynamicAllocation.enabled", "spark.excludeOnFailure.enabled"]
)
def test_a_setting_that_takes_executors_away_is_warned_of(
    setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark = spark_of({"1": 2})
    warn_of_settings(spark)
    assert caplog.messages == []
    spark._conf = SimpleNamespace(get=lambda name, _="": "True" if name == setting else None)
    warn_of_settings(spark)
    (warning,) = caplog.messages
    assert warning.startswith(f"{setting}=true: Spark ")
    assert warning.endswith(f"create the session with {setting}=false.")


@pytest.mark.parametrize("names", [["1", "2"], ["1", "99"], ["1", None], []])
def test_processes_that_know_their_executor_or_nothing_are_taken(
    names: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    _check_names(spark_of({"1": 2, "2": 2}), names)
    assert len(caplog.messages) == (None in names)


def test_processes_that_know_a_stand_in_for_their_executor_are_refused() -> None:
    with pytest.raises(ExecutorEnvironmentError, match="--executor-id EXECID") as refused:
        _check_names(spark_of({"1": 2}), ["EXECID", "EXECID"])
    assert "spark.kubernetes.allocation.pods.allocator=direct" in refused.value.remedy


def test_an_executor_whose_cores_are_not_known_yet_is_neither_used_nor_too_small() -> None:
    spark = spark_of({"1": 2, "2": 0})
    assert [e.name for e in live_executors(spark)] == ["1"]
    check_spare_slots(spark)


def test_an_executor_without_a_spare_slot_is_refused_by_name() -> None:
    with pytest.raises(InvalidFlowError, match="Executor '2' can run one task at a time"):
        check_spare_slots(spark_of({"1": 2, "2": 1}))


def session_on(master: str, cores: int = 2, **settings: str) -> Any:
    """A SparkContext as far as the number of its executors is concerned."""
    conf = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return SimpleNamespace(
        master=master,
        defaultParallelism=cores,
        _conf=conf,
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isLocal=lambda: master[:5] == "local")),
    )


@pytest.mark.parametrize(
    ("spark", "remedy"),
    [
        (session_on("local[2]"), r'has 2\. .*master\("local\[3\]"\)'),
        (session_on("yarn", executor_instances="2"), r'"spark\.executor\.instances", "3"'),
        (session_on("k8s://h", executor_instances="2"), r"Give executors=2 or fewer"),
        (session_on("local-cluster[2,1,512]", executor_instances="2"), r"instances"),
    ],
    ids=["local", "yarn", "kubernetes", "local-cluster"],
)
def test_more_executors_than_a_session_can_have_are_refused_at_once(
    spark: Any, remedy: str
) -> None:
    check_executors(spark, 2)
    with pytest.raises(InvalidFlowError, match=remedy):
        check_executors(spark, 3)


@pytest.mark.parametrize(
    "spark",
    [
        session_on("yarn"),
        session_on("spark://h:7077"),
        session_on("yarn", executor_instances="2", dynamicAllocation_enabled="True"),
    ],
    ids=["unsaid", "standalone", "dynamic"],
)
def test_executors_are_waited_for_where_there_may_be_more(spark: Any) -> None:
    check_executors(spark, 99)
