"""The options of a start open one loop of decisions, or none."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.storage import CheckpointStorage
from godwit.control.opening import Opener
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.model import events, plugins
from godwit.model.errors import PluginError
from godwit.runtime.entry_points import opener_of
from godwit.runtime.run import QueryRun
from godwit.runtime.settings import Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from godwit.control.operators import OperatorPolicies
    from godwit.control.thread import ControllerThread


def options(**given: Any) -> Options:
    return Options(checkpoint="ck", **given)


@contextmanager
def opened(
    directory: Path, options: Options
) -> Iterator[tuple[ControllerThread | None, OperatorPolicies, list[events.Event]]]:
    """Open the controller and the policies of a flow of two operators in a row."""
    flow, told = LogicalFlow("flow", 4), list[events.Event]()
    frame: Any = FakeDataFrame(pa.schema({"k": pa.string(), "v": pa.int64()}))
    a = flow.source("rows", frame).key_by("k").compute(name="a", v=gw.sum("v"))
    flow.sink("out", a.key_by("k").compute(name="b", v=gw.sum("v")), FakeSink())
    run = LocalRun(
        flow.compile(resolver(flow)),
        CheckpointStorage.open(str(directory)),
        executors={"x": 1, "y": 1},
        settings=Lanes(),
        emit=told.append,
    )
    pool: Any = SimpleNamespace()
    controller, policies = Opener(options).open(
        run.epochs,
        coordinator=run.coordinator,
        pool=pool,
        state_bytes={},
        past=[],
        former=None,
        note=lambda *_: None,
        trigger_s=0.0,
        limits_epochs=True,
    )
    try:
        yield controller, policies, told
    finally:
        if controller is not None:
            controller.close()


def respected(told: list[events.Event]) -> list[str]:
    return [e.what for e in told if isinstance(e, events.ManualOverrideRespected)]


CHANGES = ["components of a", "hot keys of a", "scaling"]


def test_controller_and_policies_decide_in_one_loop(tmp_path: Path) -> None:
    cadence = gw.control.Cadence(respect="5 minutes")
    given = options(
        control=gw.Control(cadence=cadence),
        adaptation=gw.control.Adaptation(fusion=gw.control.Fusion()),
    )
    with opened(tmp_path, given) as (controller, policies, told):
        assert controller is not None
        with policies.manual_change(CHANGES) as record:
            record()
        left = controller.policy_loop.overrides.seconds_left(time.time())
        assert sorted(left) == CHANGES
        assert all(200 < seconds <= 300 for seconds in left.values())
        assert respected(told) == CHANGES


@pytest.mark.parametrize(
    ("adaptation", "announced"),
    [(None, []), (gw.control.Adaptation(fusion=gw.control.Fusion()), CHANGES)],
)
def test_manual_changes_are_announced_where_something_could_reverse_them(
    tmp_path: Path, adaptation: gw.control.Adaptation | None, announced: list[str]
) -> None:
    with opened(tmp_path, options(adaptation=adaptation)) as (controller, policies, told):
        assert controller is None
        with policies.manual_change(CHANGES) as record:
            record()
        assert respected(told) == announced


def test_a_start_without_settings_needs_no_controller_to_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(opener_of(options()), Opener)
    monkeypatch.setattr(plugins, "_entry_points_by_name", lambda _group: {})
    plugins.load.cache_clear()
    assert opener_of(options()) is None
    with pytest.raises(PluginError, match=r"controller 'default' is an entry point of godwit-str"):
        opener_of(options(adaptation=gw.control.Adaptation()))


def test_a_run_without_policies_changes_what_users_ask_for() -> None:
    run: Any = SimpleNamespace(policies=None)
    with QueryRun.manual_change(run, ["scaling"]) as record:
        record()
        record("regroup-1")
