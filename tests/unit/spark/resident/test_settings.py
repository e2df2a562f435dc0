"""Lanes that stay leave a task slot of every executor free, or the start is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.spark.platform.executors import (
    check_spare_slots,
    live_executors,
    slots_of_process,
)
from godwit.spark.resident.job import check_settings

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
        _conf=cast("Mapping[str, str]", settings),
    )


def test_one_process_has_a_slot_a_core_and_a_cluster_a_slot_a_lane() -> None:
    assert slots_of_process(context([3], master="local[3]", parallelism=2)) == 3
    assert slots_of_process(context([4], master="local[4]", spark_task_cpus="2")) == 2
    cluster = context([4, 2, 1], master="spark://host:7077")
    assert slots_of_process(cluster) is None
    assert {e.name: e.lanes for e in live_executors(cluster)} == {"0": 4, "1": 2, "2": 1}


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        (context([1], master="local[1]"), r'Create the session with master\("local\[2\]"\)'),
        (context([2, 1], master="yarn"), r"Executor '1' can run one task at a time.*"),
    ],
)
def test_a_session_without_a_spare_slot_is_refused_with_the_setting_to_change(
    spark: Any, text: str
) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        check_spare_slots(spark)
    check_spare_slots(context([2], master="local[2]"))
    check_spare_slots(context([2, 2], master="yarn"))


@pytest.mark.parametrize(
    "setting",
    [
        "spark.network.crypto.enabled",
        "spark.authenticate.enableSaslEncryption",
        "spark.ssl.rpc.enabled",
        "spark.speculation",
    ],
)
def test_lanes_that_stay_are_refused_where_spark_encrypts_or_runs_tasks_twice(setting: str) -> None:
    off: dict[str, str] = {setting: "false"}
    check_settings(cast("Any", SimpleNamespace(_conf=off)))
    on = {setting: "true"}
    with pytest.raises(InvalidFlowError, match=f"{setting} (asks Spark to encrypt|lets Spark)"):
        check_settings(cast("Any", SimpleNamespace(_conf=on)))
