"""Registering what runs flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from godwit.dataflow import runtime
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from godwit.dataflow.flow import Flow


@pytest.fixture
def _no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_load", None)
    monkeypatch.setattr(runtime, "_runtime", None)


class RecordingRuntime:
    """A runtime that says what it was asked."""

    def __init__(self) -> None:
        self.started: list[tuple[Flow, dict[str, Any]]] = []

    def compile(self, flow: Flow) -> Any:
        raise NotImplementedError

    def explain(self, flow: Flow) -> str:
        return f"how {flow.name} runs"

    def start(self, flow: Flow, **options: Any) -> str:
        self.started.append((flow, options))
        return "a query"


@pytest.mark.usefixtures("_no_runtime")
def test_without_a_runtime_a_flow_does_not_start(flow: Flow) -> None:
    with pytest.raises(InvalidFlowError, match=r"no runtime.*import godwit"):
        flow.start()
    with pytest.raises(InvalidFlowError, match=r"no runtime.*import godwit"):
        flow.explain()


@pytest.mark.usefixtures("_no_runtime")
def test_the_registered_runtime_is_made_once_and_starts_and_explains_flows(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[RecordingRuntime] = []

    def load() -> RecordingRuntime:
        made.append(RecordingRuntime())
        return made[-1]

    runtime.register(load)
    assert not made
    assert flow.start(checkpoint="ck/") == "a query"
    flow.explain()
    assert capsys.readouterr().out == "how delays runs\n"
    assert [r.started for r in made] == [[(flow, {"checkpoint": "ck/"})]]
