"""Which queries may have resident lanes, by their settings and Spark's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError
from godwit.spark import opening
from godwit.spark.opening import open_run

ON = "spark.network.crypto.enabled"


def context(cores: int, **conf: str) -> Any:
    """Stand in for a SparkContext in local mode."""
    summaries = SimpleNamespace(apply=lambda _: SimpleNamespace(totalCores=lambda: cores))
    jsc = SimpleNamespace(
        isLocal=lambda: True,
        statusStore=lambda: SimpleNamespace(executorList=lambda _: summaries),
    )
    return SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: jsc),
        master=f"local[{cores}]",
        applicationId="app",
        _conf={name.replace("_", "."): value for name, value in conf.items()},
    )


def prepared(spark: Any, resident: Any) -> Any:
    """Return the cluster of a query for whose lanes all is set up."""
    cluster = SimpleNamespace(
        executors={},
        program=None,
        location_of=None,
        stop_waiting_reason=None,
        resident=None,
        not_resident="off",
    )
    opener = SimpleNamespace(
        _spark=SimpleNamespace(sparkContext=spark),
        _options=SimpleNamespace(lanes=gw.Lanes(resident=resident)),
        _run_id="run",
        _closing={},
    )
    coordinator: Any = SimpleNamespace(announce=None)
    opening._Opener._prepare_lanes(cast("Any", opener), cast("Any", cluster), coordinator, "flow")
    for close in opener._closing.values():
        close()
    return cluster


@pytest.mark.parametrize("resident", ["auto", True])
def test_resident_lanes_are_set_up_unless_the_user_turns_them_off(resident: Any) -> None:
    assert prepared(context(3), resident).resident is not None
    assert prepared(context(3), False).resident is None


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        (context(3, spark_network_crypto_enabled="true"), f"{ON} asks Spark to encrypt"),
        (context(3, spark_speculation="true"), "spark.speculation lets Spark run a task a second"),
    ],
)
def test_where_a_setting_of_spark_rules_them_out_auto_says_so_and_true_is_refused(
    spark: Any, text: str
) -> None:
    cluster = prepared(spark, "auto")
    assert cluster.resident is None
    assert text in cluster.not_resident
    refused(spark, text)


def test_auto_takes_a_session_with_one_slot_and_true_is_refused() -> None:
    assert prepared(context(1), "auto").resident is not None  # its slots are counted later
    refused(context(1), "local.1. has too few cores")


def refused(spark: Any, text: str) -> None:
    """Check that a query that asks for resident lanes does not start."""
    with pytest.raises(InvalidFlowError, match=text):
        open_run(
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            cast("Any", SimpleNamespace(lanes=gw.Lanes(resident=True))),
            cast("Any", SimpleNamespace(sparkContext=spark)),
            dispatcher=cast("Any", None),
            gate=cast("Any", None),
        )
