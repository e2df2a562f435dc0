"""A result is as old as the files that its script imports, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

import godwit
import godwit_lab
from godwit_lab.cli.reproduce import catalogue
from godwit_lab.cli.reproduce.dependencies import find_files

SCRIPT = """
from typing import TYPE_CHECKING

from lib.used import name
from lib.late import Lazy

if TYPE_CHECKING:
    from lib.types import Type

def run():
    import lib.inside
"""
FILES = {
    "figures/figure1.py": SCRIPT,
    "lib/__init__.py": "",
    "lib/used.py": "from lib import deeper\nimport json\n",
    "lib/deeper.py": "",
    "lib/inside.py": "",
    "lib/types.py": "",
    "lib/unused.py": "",
    "lib/late/__init__.py": "from importlib import import_module\n"
    "if not TYPE_CHECKING:\n"
    "    def __getattr__(name):\n"
    "        return getattr(import_module('lib.late.lazy'), name)\n",
    "lib/late/lazy.py": "from lib.of_lazy import x\n",
    "lib/of_lazy.py": "",
    "lib/fitted.json": "{}",
}


@pytest.fixture
def files(tmp_path: Path) -> set[str]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    roots = (("lib", tmp_path / "lib"),)
    found = find_files(tmp_path / "figures/figure1.py", roots)
    return {str(path.relative_to(tmp_path)) for path in found}


def test_what_a_script_imports_counts_and_what_it_imports_in_turn(files: set[str]) -> None:
    assert {"figures/figure1.py", "lib/used.py", "lib/deeper.py", "lib/inside.py"} <= files


def test_a_package_that_imports_by_name_counts_with_all_that_is_in_it(files: set[str]) -> None:
    assert {"lib/late/__init__.py", "lib/late/lazy.py", "lib/of_lazy.py"} <= files


def test_data_beside_a_module_counts(files: set[str]) -> None:
    assert "lib/fitted.json" in files


def test_what_nobody_imports_at_run_time_does_not_count(files: set[str]) -> None:
    assert not {"lib/unused.py", "lib/types.py"} & files


def test_a_figure_of_planners_does_not_depend_on_what_runs_on_spark() -> None:
    package, laboratory = (Path(str(p.__file__)).parent for p in (godwit, godwit_lab))
    (entry,) = catalogue.choose(["1/table3"])
    files = find_files(entry.script, (("godwit", package), ("godwit_lab", laboratory)))
    assert laboratory / "planners/intervals/oms.py" in files
    assert not [path for path in files if (package / "spark") in path.parents]
