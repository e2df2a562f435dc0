"""Fixtures of a flow under test: its DataFrames, a sink, and a resolver of schemas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_flow import FLIGHTS, ORDERS, FakeDataFrame, FakeSink, Resolve, resolver

from godwit.api.flow import LogicalFlow as Flow


@pytest.fixture
def flow() -> Flow:
    return Flow("delays", num_key_groups=64)


@pytest.fixture
def flights() -> Any:
    return FakeDataFrame(FLIGHTS)


@pytest.fixture
def orders() -> Any:
    return FakeDataFrame(ORDERS)


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def resolve(flow: Flow) -> Resolve:
    return resolver(flow)
