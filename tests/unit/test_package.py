"""What ``import godwit`` brings: the names of the guide, and no Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

import godwit


def test_importing_the_package_and_building_a_flow_loads_no_spark() -> None:
    program = (
        "import sys, godwit as gw\n"
        "gw.Flow('delays'), gw.sinks.parquet('out/'), gw.Bounds(max_moves=3), dir(gw)\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in {'pyspark', 'py4j'}))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_package_lists_its_public_names_and_has_all_of_them() -> None:
    assert dir(godwit) == sorted(godwit.__all__)
    for name in godwit.__all__:
        assert getattr(godwit, name) is not None
    assert {"Flow", "Query", "Bounds", "errors", "events", "read_state"} <= set(dir(godwit))


def test_errors_and_events_can_be_caught_and_told_apart_by_name() -> None:
    assert issubclass(godwit.errors.InvalidFlowError, godwit.GodwitError)
    assert issubclass(godwit.events.MigrationFinished, godwit.events.Event)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'godwit' has no attribute 'sumn'"):
        godwit.sumn  # type: ignore[attr-defined]  # noqa: B018
