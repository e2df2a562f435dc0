"""Names that ``import godwit`` brings: those of the guide, and nothing large that may wait."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

import godwit
from godwit.model import plugins

LOADED_LATER = {
    *("pyspark", "py4j", "pandas", "pyarrow.dataset", "scipy", "highspy", "matplotlib", "rich"),
    *("confluent_kafka", "deltalake", "psycopg", "pyiceberg"),
    *("godwit.control", "godwit.placement.registry", "godwit.testing"),
}


def test_importing_the_package_and_building_a_flow_loads_no_spark_and_little_else() -> None:
    program = (
        "import sys, godwit as gw\n"
        "gw.Flow('delays'), gw.sinks.parquet('out/'), gw.migration.Bounds(max_moves=3), dir(gw)\n"
        f"print(sorted({LOADED_LATER} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_lane_imports_neither_what_builds_flows_nor_what_adapts_them() -> None:
    program = (
        "import sys, godwit\n"
        "print([name for name in sys.modules if name.startswith('godwit.')])\n"
        "import godwit.engine.lane.lane\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('godwit.')}\n"
        "print(sorted({'api', 'sinks', 'runtime', 'spark', 'control', 'testing', 'cli'} & rooms))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    loaded = ["godwit.columns", "godwit.columns.vectors"]
    assert (done.stdout, done.stderr) == (f"{loaded}\n[]\n", "")


def test_the_package_lists_its_public_names_and_has_all_of_them() -> None:
    assert dir(godwit) == sorted({*godwit.__all__, "sum", "min", "max"})
    for name in dir(godwit):
        assert getattr(godwit, name) is not None
    assert {"Flow", "Lanes", "control", "errors", "events", "read_state"} <= set(dir(godwit))
    # four of them adopt queries of Spark's
    assert len(godwit.__all__) <= 45


def test_importing_everything_hides_none_of_pythons_own_names() -> None:
    assert not set(godwit.__all__) & set(dir(builtins))


@pytest.mark.parametrize(
    "room", ["control", "formats", "migration", "sinks", "sources", "testing", "types"]
)
def test_a_room_shows_what_users_call_and_nothing_else(room: Any) -> None:
    module = getattr(godwit, room)
    added = [
        name for group in get_args(plugins.Group) if group == room for name in plugins.names(group)
    ]
    assert dir(module) == sorted({*module.__all__, *added})
    assert all(inspect.getdoc(getattr(module, name)) for name in dir(module))


def test_errors_and_events_can_be_caught_and_told_apart_by_name() -> None:
    assert issubclass(godwit.errors.InvalidFlowError, godwit.errors.GodwitError)
    assert issubclass(godwit.events.MigrationFinished, godwit.events.Event)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'godwit' has no attribute 'sumn'"):
        godwit.sumn  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("room", ["control", "errors", "migration", "types"])
def test_a_name_of_a_room_is_refused_elsewhere_with_its_spelling(room: str) -> None:
    for name in getattr(godwit, room).__all__:
        with pytest.raises(AttributeError, match=rf"Use gw\.{room}\.{name}\."):
            getattr(godwit, name)
    with pytest.raises(AttributeError, match=r"Use gw\.testing\.LocalCluster\."):
        godwit.LocalCluster  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"Use gw\.mean\."):
        godwit.avg  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"Use gw\.Control\."):
        godwit.control.Control  # type: ignore[attr-defined]  # noqa: B018


def test_the_distribution_has_a_name_of_its_own_and_the_packages_version() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == ("godwit-streams", godwit.__version__)
    assert list(project["scripts"]) == ["godwit"]
    needed = [line for extra in project["optional-dependencies"].values() for line in extra]
    of_its_own = [line for line in needed if line.startswith("godwit")]
    assert of_its_own
    assert all(line.startswith("godwit-streams[") for line in of_its_own)


def test_tests_of_the_product_import_nothing_of_the_laboratory() -> None:
    files = (path for path in Path(__file__).parents[1].rglob("*.py") if path != Path(__file__))
    imports = re.compile(r"^\s*(?:from|import) (?:godwit_lab|lab)\b", re.MULTILINE)
    assert [str(path) for path in files if imports.search(path.read_text())] == []


def test_no_text_says_to_install_the_package_of_another_project() -> None:
    root = Path(__file__).parents[2]
    texts = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("src/**/*.py")]
    wrong = re.compile(r"pip install +['\"]?godwit(?!-streams|-lab)|godwit\[")
    assert [str(path) for path in texts if wrong.search(path.read_text())] == []
