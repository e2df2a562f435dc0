"""Rules that every refusal of a flow follows."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.model.errors import InvalidFlowError

__all__ = ["assert_refused"]


def assert_refused(call: Any, *parts: str) -> InvalidFlowError:
    """Check that the error says what, where and what to do."""
    with pytest.raises(InvalidFlowError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert caught.value.remedy
    return caught.value
