"""Lanes that stay leave a task slot of every executor free, or the start is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.spark.platform.executors import (
    check_spare_slots,
    live_executors,
    wait_for_executors,
)
from godwit.spark.resident.job import check_unencrypted_network

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Seq(list[Any]):
    """As much of a sequence of Scala's as is asked for."""

    def apply(self, index: int) -> Any:
        return self[index]

    def size(self) -> int:
        return len(self)


def context(cores: Sequence[int], *, master: str, parallelism: int = 0, **conf: str) -> Any:
    """Make a context of executors with so many cores; in local mode, of one process."""
    local = master.startswith("local[")
    names = ["driver"] if local else [str(i) for i in range(len(cores))]
    summaries = Seq(
        SimpleNamespace(id=lambda n=n: n, totalCores=lambda c=c: c, hostPort=lambda: "host:7")
        for n, c in zip(names, cores, strict=True)
    )
    jsc = SimpleNamespace(
        isLocal=lambda: local,
        statusStore=lambda: SimpleNamespace(executorList=lambda _: summaries),
        getExecutorIds=lambda: Seq(names),
    )
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: jsc),
        master=master,
        defaultParallelism=parallelism or sum(cores),
        getConf=lambda: cast("Mapping[str, str]", settings),
    )


def lanes(spark: Any, spare: int) -> dict[str, int]:
    return {e.name: e.lanes for e in live_executors(spark, spare_slots=spare)}


def test_an_executor_has_a_lane_less_than_slots() -> None:
    cluster = context([4, 2, 1], master="spark://host:7077")
    assert lanes(cluster, 0) == {"0": 4, "1": 2, "2": 1}
    assert lanes(cluster, 1) == {"0": 3, "1": 1}
    two_each = context([4], master="yarn", spark_task_cpus="2")
    assert lanes(two_each, 1) == {"0": 1}


def test_one_process_has_an_executor_less_than_cores_unless_it_has_fewer_anyway() -> None:
    assert lanes(context([3], master="local[3]"), 0).keys() == {"local-0", "local-1", "local-2"}
    assert lanes(context([3], master="local[3]"), 1).keys() == {"local-0", "local-1"}
    fewer = context([4], master="local[4]", parallelism=2)
    assert lanes(fewer, 1) == lanes(fewer, 0)


@pytest.mark.parametrize(
    ("spark", "executors", "text"),
    [
        (context([1], master="local[1]"), 1, r'Make the session with master\("local\[2\]"\)'),
        (context([2], master="local[2]"), 2, r'Make the session with master\("local\[3\]"\)'),
        (context([2, 1], master="yarn"), 1, "Executor '1' can run one task at a time.*"),
    ],
)
def test_a_session_without_a_spare_slot_is_refused_with_the_setting_to_change(
    spark: Any, executors: int, text: str
) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        check_spare_slots(spark, executors, 1)
    with pytest.raises(InvalidFlowError, match=text):
        wait_for_executors(spark, executors, 0, spare_slots=1)
    check_spare_slots(spark, executors, 0)


@pytest.mark.parametrize(
    "setting",
    [
        "spark.network.crypto.enabled",
        "spark.authenticate.enableSaslEncryption",
        "spark.ssl.rpc.enabled",
    ],
)
def test_lanes_that_stay_are_refused_where_spark_is_to_encrypt(setting: str) -> None:
    plain: dict[str, str] = {setting: "false"}
    check_unencrypted_network(cast("Any", SimpleNamespace(getConf=lambda: plain)))
    secret = {setting: "true"}
    with pytest.raises(InvalidFlowError, match=f"{setting} asks Spark to encrypt"):
        check_unencrypted_network(cast("Any", SimpleNamespace(getConf=lambda: secret)))
