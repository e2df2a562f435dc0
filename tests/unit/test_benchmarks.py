"""Benchmarks that make their flows by hand go by the calls of today: small runs, no Spark."""

import sys
from importlib import import_module

import pytest

_SMALL = {
    "driver": "--settings 64x2x2 --rows 20 --keys 5 --epochs 2",
    "lane": "--key-groups 64 --rows 20 --keys 5 --epochs 2",
}


@pytest.mark.parametrize("name", _SMALL)
def test_a_small_run_prints_what_each_part_took(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *_SMALL[name].split()])
    import_module(f"benchmarks.{name}").main()
    assert "commit" in capsys.readouterr().out
