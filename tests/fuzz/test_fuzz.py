"""Whatever a checkpoint holds, whoever opens it ends in a result or in an error that says why."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.fuzz.campaign import run_campaign
from tests.fuzz.starts import findings_of_start
from tests.support.rounds import rounds

STARTS = 30
READ = rounds(55, 260)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), pytest.param(40, READ, marks=pytest.mark.campaign)]
)
def test_no_variant_of_a_checkpoint_crashes_hangs_or_leads_outside(first: int, count: int) -> None:
    campaign = run_campaign(first, count)
    assert campaign.findings == {}
    assert campaign.variants == count


def test_no_start_on_a_variant_of_a_checkpoint_ends_in_anything_but_an_epoch_or_an_error() -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory) / "variant"
        found = {number: findings_of_start(number, root) for number in range(STARTS)}
    assert {number: what for number, what in found.items() if what} == {}
