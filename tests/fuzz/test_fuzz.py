"""Whatever a checkpoint holds, whoever opens it ends in a result or in an error that says why."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.campaign import run_campaign
from tests.fuzz.starts import findings_of_start

VARIANTS = 300
STARTS = 30


def test_no_variant_of_a_checkpoint_crashes_hangs_or_leads_outside() -> None:
    campaign = run_campaign(0, VARIANTS)
    assert campaign.findings == {}
    assert campaign.variants == VARIANTS


def test_no_start_on_a_variant_of_a_checkpoint_ends_in_anything_but_an_epoch_or_an_error() -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory) / "variant"
        found = {number: findings_of_start(number, root) for number in range(STARTS)}
    assert {number: what for number, what in found.items() if what} == {}
