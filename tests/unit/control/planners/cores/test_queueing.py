from __future__ import annotations

import math

import numpy as np
import pytest
from tests.oracles.core_counts import erlang_c, expected_latency_s, mmk_latency_s

from godwit.control.planners.cores.core_allocation import QueueingNetwork, erlang_b
from godwit.model.errors import InvalidProblemError

TABULATED_ERLANG_C = [
    (1.0, 2, 0.3333),
    (2.0, 3, 0.4444),
    (2.0, 4, 0.1739),
    (3.0, 4, 0.5094),
    (4.0, 5, 0.5541),
    (5.0, 6, 0.5875),
    (5.0, 8, 0.1673),
    (8.0, 10, 0.4092),
    (9.0, 10, 0.6687),
    (10.0, 11, 0.6821),
]


def network(**changes: object) -> QueueingNetwork:
    values: dict[str, object] = {
        "arrival_per_s": np.array([10.0, 5.0]),
        "service_per_s": np.array([8.0, 8.0]),
        "input_per_s": 10.0,
    }
    return QueueingNetwork(**{**values, **changes})  # type: ignore[arg-type] # values are mixed


@pytest.mark.parametrize(("offered", "servers", "tabulated"), TABULATED_ERLANG_C)
def test_erlang_c_agrees_with_published_tables(
    offered: float, servers: int, tabulated: float
) -> None:
    assert erlang_c(offered, servers) == pytest.approx(tabulated, abs=5e-5)


def test_one_server_waits_as_often_as_it_is_busy() -> None:
    assert erlang_c(0.7, 1) == pytest.approx(0.7)
    assert mmk_latency_s(7.0, 10.0, 1) == pytest.approx(1 / 3)


def test_thousands_of_servers_neither_overflow_nor_lose_digits() -> None:
    assert 0 < erlang_b(5000.0, 5000) < 0.02
    assert erlang_c(4999.0, 5000) == pytest.approx(1.0, abs=0.03)


def test_latency_is_infinite_without_spare_capacity() -> None:
    assert mmk_latency_s(10.0, 5.0, 2) == math.inf
    assert mmk_latency_s(10.0, 5.0, 0) == math.inf
    assert erlang_c(3.0, 3) == 1.0


def test_flow_latency_weighs_executors_by_their_arrivals() -> None:
    by_hand = (10 * mmk_latency_s(10, 8, 2) + 5 * mmk_latency_s(5, 8, 1)) / 10
    assert expected_latency_s(network(), [2, 1]) == pytest.approx(by_hand)


def test_idle_executor_needs_no_core_and_adds_no_latency() -> None:
    idle = network(arrival_per_s=np.array([10.0, 0.0]))
    assert idle.least_stable_cores.tolist() == [2, 0]
    assert expected_latency_s(idle, [2, 0]) == pytest.approx(mmk_latency_s(10, 8, 2))


def test_whole_number_of_busy_cores_needs_one_more() -> None:
    assert network(arrival_per_s=np.array([16.0, 15.9])).least_stable_cores.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"arrival_per_s": np.array([1.0, -2.0])}, r"arrival_per_s\[1\] = -2"),
        ({"arrival_per_s": np.array([math.nan, 2.0])}, r"arrival_per_s\[0\] = nan"),
        ({"service_per_s": np.array([0.0, 2.0])}, r"service_per_s\[0\] = 0"),
        ({"service_per_s": np.array([1.0])}, r"service_per_s = .shape \(1,\)"),
        ({"input_per_s": 0.0}, "input_per_s = 0"),
    ],
)
def test_wrong_rates_are_named(changes: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidProblemError, match=names):
        network(**changes)
