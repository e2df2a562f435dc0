"""A number of key groups is too small for the lanes, or for one key group's load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import godwit as gw
from godwit.cli.main import main
from godwit.placement.metrics import too_few_key_groups

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("groups", "lanes", "load", "suggested"),
    [
        (256, 64, 0.0, None),
        (256, 65, 0.0, 2048),
        (1, 1, 0.0, 16),
        (256, 8, 1.0, None),
        (256, 8, 1.01, 2048),
        (256, 8, 1e9, 32_768),
        (32_768, 32_768, 9.0, None),
    ],
)
def test_a_number_is_too_small_for_many_lanes_or_a_load_beyond_one(
    groups: int, lanes: int, load: float, suggested: int | None
) -> None:
    advice = too_few_key_groups(groups, lanes, load)
    assert (None if advice is None else advice.suggested) == suggested


def test_the_command_line_says_of_a_checkpoint_what_to_start_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def flow(groups: int) -> gw.Flow:
        made = gw.Flow("sums", num_key_groups=groups)
        keyed = made.source("rows", gw.testing.stream("k string")).key_by("k")
        made.sink("out", keyed.compute(name="sums", n=gw.count()), gw.sinks.noop())
        return made

    path = str(tmp_path / "ck")
    with gw.testing.cluster(flow(8), checkpoint=path, executors={"1": 2, "2": 2}) as played:
        played.epoch({"rows": [{"k": "a"}]})
        assert main(["advise", path, "--json"]) == 0
        advice = json.loads(capsys.readouterr().out)["components"]["sums"]
        assert advice["suggested"] == 64
        played.restart(flow(advice["suggested"]), repartition=True)
        played.epoch({"rows": [{"k": "a"}]})
    assert main(["advise", path]) == 0
    assert "They suffice" in capsys.readouterr().out
