"""`godwit advise CHECKPOINT` names what held the query up in most of the last periods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.checkpoints import write_checkpoint
from tests.support.journal_story import event, write

from godwit.cli.main import main
from godwit.model import events

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PERIOD: dict[str, Any] = {
    "period_s": 10.0, "epochs": 10, "missing": 0, "arrival_per_s": 700.0, "epoch_s": 2.0,
    "bottleneck": "time",
}  # fmt: skip


def test_a_slow_sink_is_named_with_what_to_do_about_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, shares = tmp_path / "ck", (("executors", 0.6), ("sink 'table'", 0.97), ("", 0.1))
    entries = [
        event(events.LoadMeasured, after_s=10.0 * n, **PERIOD, held_up_by=part, held_up=share)
        for n, (part, share) in enumerate((*shares, shares[1], shares[1]))
    ]
    write(write_checkpoint(path, name="delays", epochs=1), entries)
    assert main(["advise", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "sink 'table' recently took 97% of the time: more executors do not help a sink" in out
    assert main(["advise", str(path), "--json"]) == 0
    bottleneck = json.loads(capsys.readouterr().out)["bottleneck"]
    assert (bottleneck["part"], bottleneck["share"]) == ("sink 'table'", 0.97)
    assert "make its target faster" in bottleneck["remedy"]


def test_without_a_controller_nothing_is_said_of_a_bottleneck(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "ck", name="delays", epochs=1)
    assert main(["advise", str(tmp_path / "ck")]) == 0
    assert "of the time" not in capsys.readouterr().out
