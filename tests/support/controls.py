"""Settings of a controller from one flat list of names, for tests that vary a few of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from godwit.control.settings import Cadence, Control, Search, Worth

__all__ = ["control_of"]

_GROUPS: dict[str, Any] = {"cadence": Cadence, "search": Search, "worth": Worth}


def control_of(**settings: Any) -> Control:
    """Make a `Control`; settings of its groups may be given by their own names."""
    grouped: dict[str, Any] = {}
    for group, kind in _GROUPS.items():
        names = {field.name for field in fields(kind)} & settings.keys()
        if names:
            grouped[group] = kind(**{name: settings.pop(name) for name in names})
    return Control(**settings, **grouped)
