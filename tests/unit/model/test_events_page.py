"""The guide's table names every kind of event once; the reference is generated from the classes."""

from __future__ import annotations

import re
from pathlib import Path

from godwit.model import events

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "events.md"


def test_the_table_of_the_guide_names_every_kind_of_event_once() -> None:
    table = PAGE.read_text().partition("| events about |")[2]
    kinds = {
        name
        for name in events.__all__
        if isinstance(kind := getattr(events, name), type) and kind is not events.Event
    }
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(kinds)
