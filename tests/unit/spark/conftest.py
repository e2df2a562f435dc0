"""Stand-ins for DataFrames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Session:
    """As much of a session as a flow looks at."""

    _jsparkSession: object = field(default_factory=object)  # noqa: N815  PySpark's own spelling


@dataclass
class Frame:
    """As much of a DataFrame as a flow looks at before it is compiled."""

    sparkSession: Any = field(default_factory=Session)  # noqa: N815  PySpark's own spelling
    isStreaming: bool = True  # noqa: N815  PySpark's own spelling


@pytest.fixture
def flights() -> Frame:
    return Frame()
