"""Stand-ins for DataFrames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest


class _Plan:
    """A plan of one node that streams."""

    def isStreaming(self) -> bool:  # noqa: N802  Spark's own spelling
        return True

    def getClass(self) -> _Plan:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return "StreamingRelation"

    def children(self) -> _Plan:
        return self

    def size(self) -> int:
        return 0


@dataclass
class Session:
    """As much of a session as a flow looks at."""

    _jsparkSession: object = field(default_factory=object)  # noqa: N815  PySpark's own spelling
    _jvm: Any = field(default_factory=MagicMock)


@dataclass
class Frame:
    """As much of a DataFrame as a flow looks at before it is compiled."""

    sparkSession: Any  # noqa: N815  PySpark's own spelling
    isStreaming: bool = True  # noqa: N815
    _jdf: Any = field(default_factory=MagicMock)

    def __post_init__(self) -> None:
        self._jdf.queryExecution().analyzed.return_value = _Plan()


@pytest.fixture
def flights() -> Frame:
    return Frame(Session())


@pytest.fixture
def orders(flights: Frame) -> Frame:
    """Rows of the same session as `flights`."""
    return Frame(flights.sparkSession)
