"""Packages of others that add to Godwit: found by their metadata, and named in errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import godwit as gw
from godwit.model import plugins
from godwit.model.errors import InvalidControlError, InvalidProblemError, PluginError
from godwit.placement import PLANNERS, planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Install = Callable[..., None]

PLANNER = """
from godwit.placement.registry import Planner
from godwit.placement.solution import make_solution

def plan_stays(problem):
    return make_solution(problem, problem.current, method="stays")

stays = Planner(
    name="stays", module="{module}", kind="baseline",
    minimises="moves", constraints="none", cost="O(1)", paper="",
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution of one module and one entry point."""

    def add(package: str, group: str, entry: str, text: str = "") -> None:
        module = package.replace("-", "_")
        metadata = tmp_path / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(f"[godwit.{group}]\n{entry}\n")
        (tmp_path / f"{module}.py").write_text(text)

    def forget() -> None:
        plugins._entry_points_by_name.cache_clear()
        plugins.load.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield add
    forget()


def test_a_planner_of_another_package_is_one_of_the_planners(install: Install) -> None:
    install("stay-put", "planners", "stays = stay_put:stays", PLANNER.format(module="stay_put"))
    assert "stays" in PLANNERS
    assert planner("stays").kind == "baseline"
    assert gw.Control(planner="stays").planner_name == "stays"


def test_a_name_of_two_packages_is_refused_with_both(install: Install) -> None:
    for package in ("one-package", "other-package"):
        module = package.replace("-", "_")
        install(package, "planners", f"stays = {module}:stays", PLANNER.format(module=module))
    with pytest.raises(InvalidProblemError, match=r"several packages: one-package, other-package"):
        planner("stays")


def test_what_cannot_be_imported_is_refused_with_its_package(install: Install) -> None:
    install("broken", "planners", "stays = broken:stays", "import no_such_package_at_all")
    with pytest.raises(InvalidControlError, match=r"the package broken cannot be imported.*at_all"):
        gw.Control(planner="stays")


@pytest.mark.parametrize(
    ("entry", "text"), [("stays", "stays = 3"), ("other", PLANNER.format(module="odd"))]
)
def test_an_entry_point_that_is_no_planner_of_its_name_is_refused(
    install: Install, entry: str, text: str
) -> None:
    install("odd", "planners", f"{entry} = odd:stays", text)
    with pytest.raises(InvalidProblemError, match=r"has to name a .*Planner of the same name"):
        planner(entry)


def test_an_elasticity_of_another_package_is_known_by_its_name(install: Install) -> None:
    text = "from godwit.control.styles import PlacementStyle\nclass Still(PlacementStyle): pass\n"
    install("still-life", "policies", "still = still_life:Still", text)
    assert gw.Control(elasticity="still").elasticity == "still"
    with pytest.raises(InvalidControlError, match=r"'stil'.*resource_centric, static.*still"):
        gw.Control(elasticity="stil")


def test_a_broken_elasticity_is_refused_when_it_is_named(install: Install) -> None:
    install("broken", "policies", "still = broken:Still")
    with pytest.raises(InvalidControlError, match="the package broken cannot be imported"):
        gw.Control(elasticity="still")


def test_a_name_that_no_package_has_is_refused_with_those_there_are(install: Install) -> None:
    install("still-life", "policies", "still = still_life:Still")
    with pytest.raises(PluginError, match=r"There is no policy 'moving'. Known: .*still"):
        plugins.load("policies", "moving")


@pytest.mark.parametrize("group", ["commands", "controllers", "observers"])
def test_errors_know_which_distribution_has_each_name_of_this_one(group: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    own = {n for n, package in plugins._ELSEWHERE[group].items() if package == "godwit-streams"}
    assert own == project["entry-points"][f"godwit.{group}"].keys()
