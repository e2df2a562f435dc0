"""Whatever a checkpoint holds, whoever opens it ends in a result or in an error that says why."""

from __future__ import annotations

from tests.fuzz.campaign import run_campaign

VARIANTS = 300


def test_no_variant_of_a_checkpoint_crashes_hangs_or_leads_outside() -> None:
    campaign = run_campaign(0, VARIANTS)
    assert campaign.findings == {}
    assert campaign.variants == VARIANTS
