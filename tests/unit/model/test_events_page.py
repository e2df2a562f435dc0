"""The page on events has a row for every event there is, with its fields."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from godwit.model import events

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "events.md"
ROW = re.compile(r"\| `(\w+)` \| ([^|]+) \|([^|]*)\|")


def test_every_event_is_documented_with_its_fields_and_no_other_is() -> None:
    rows = {
        name: (told, re.findall(r"`(\w+)`", own))
        for name, told, own in ROW.findall(PAGE.read_text())
    }
    kinds = {
        name: kind
        for name in events.__all__
        if isinstance(kind := getattr(events, name), type) and kind is not events.Event
    }
    assert rows.keys() == kinds.keys()
    for name, kind in kinds.items():
        told, own = rows[name]
        assert told.strip()
        assert own == [f.name for f in fields(kind) if f.name not in {"epoch", "at_s"}], name
