"""Jobs on the copies of an executor change the local store of no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from godwit.checkpoint.records import StateId
from godwit.model.errors import MigrationError
from godwit.spark.stages import warming

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("index_only", [False, True])
def test_a_job_that_runs_on_another_executor_does_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_only: bool
) -> None:
    monkeypatch.setattr(warming, "current_executor", lambda _: "2")
    monkeypatch.setattr(warming, "_run_on_executor", lambda _request, work, _spark: next(work(0)))
    parts: Any = {"schema": None, "location": None, "local_dir": str(tmp_path)}
    request = warming.CopyRequest(
        state=StateId("op", "state"),
        num_key_groups=8,
        executor="1",
        lanes=1,
        run_id="ab-cd",
        **parts,
    )
    nothing: Any = None
    with pytest.raises(MigrationError, match="Spark ran the job on 2"):
        warming.warm_copies(
            request,
            [1],
            nothing,
            layout=nothing,
            storage=nothing,
            committed=3,
            index_only=index_only,
            spark=nothing,
        )
    assert not list(tmp_path.iterdir())
