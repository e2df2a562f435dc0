"""NEXMark, played in one process: equal to its oracle."""

from __future__ import annotations

import pytest
from lab.examples import nexmark


@pytest.mark.parametrize("name", ["q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11", "q12"])
def test_a_query_of_nexmark_is_that_of_pandas(name: str) -> None:
    assert nexmark.check(name, nexmark.House(events=4000, epochs=5, seed=7), seed=7) > 0
