"""Every test of columns runs with machine code and with NumPy alone."""

from __future__ import annotations

import pytest

from godwit.store.compiled import LOADER


@pytest.fixture(autouse=True, params=["now", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use machine code from the first row, or none."""
    monkeypatch.setattr(LOADER, "mode", request.param)
