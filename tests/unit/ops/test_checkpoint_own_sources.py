"""Checkpoints of flows over Godwit's own sources have no log of Spark's, and need none."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ROWS = [{"k": f"k{i % 3}", "v": i} for i in range(10)]


def flow_over(rows: int) -> gw.Flow:
    flow = gw.Flow("own", num_key_groups=4)
    source = gw.sources.memory("k string, v long", ROWS[:rows], max_rows_per_epoch=2)
    total = flow.source("rows", source).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", total, gw.sinks.noop())
    return flow


def totals(checkpoint: Path, rows: int) -> dict[str, int]:
    gw.testing.run(flow_over(rows), checkpoint=checkpoint)
    found = gw.testing.run(flow_over(rows), checkpoint=checkpoint).state("t")
    assert found is not None
    return {row["k"]: row["total"] for row in found.to_pylist()}


def test_they_are_verified_repaired_copied_and_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, copy = tmp_path / "ck", tmp_path / "copy"
    gw.testing.run(flow_over(6), checkpoint=checkpoint)
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    assert main(["checkpoint", "repair", str(checkpoint)]) == 0
    assert main(["checkpoint", "copy", str(checkpoint), str(copy)]) == 0
    assert not (copy / "spark").exists()
    assert verify(CheckpointStorage.open(copy)).ok
    capsys.readouterr()
    shutil.rmtree(checkpoint)
    assert totals(copy, 10) == {"k0": 18, "k1": 12, "k2": 15}


def test_inspect_says_in_words_which_files_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, files = tmp_path / "ck", tmp_path / "in"
    files.mkdir()
    for name in "ab":
        lines = "".join(json.dumps(row) + "\n" for row in ROWS)
        (files / f"{name}.json").write_text(lines)
    flow = gw.Flow("own", num_key_groups=4)
    source = gw.sources.json(files, schema="k string, v long", max_rows_per_epoch=13)
    rows = flow.source("rows", source).key_by("k")
    flow.sink("out", rows.compute(n=gw.count()), gw.sinks.noop())
    gw.testing.run(flow, epochs=1, checkpoint=checkpoint)
    size = len(lines)
    at = sum(len(json.dumps(row)) + 1 for row in ROWS[:3])
    assert main(["checkpoint", "inspect", str(checkpoint)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"read 1 file whole, b.json at byte {at} of {size}" in told
    assert main(["checkpoint", "inspect", str(checkpoint), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)["sources"]["rows"]["position"]
    assert described == {"files": 1, "reading": f"b.json at byte {at} of {size}"}
    gw.testing.run(flow, checkpoint=checkpoint)
    assert main(["checkpoint", "inspect", str(checkpoint)]) == 0
    assert "read 2 files" in " ".join(capsys.readouterr().out.split())
