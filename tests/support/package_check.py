"""Build both distributions, look into them, and try them where nothing of the clone is seen.

``./run package`` calls it.  Godwit's wheel is tried in a new environment that has the packages
which it asks for, without extras, and no others: they are linked from this environment.  Then the
laboratory's wheel is added, with what that asks for.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
LABORATORY = ROOT / "lab"
WANTED = ("/py.typed", "licenses/LICENSE", "entry_points.txt")
UNWANTED = re.compile(r"(^|/)(tests|benchmarks|docs|\.ci|\.venv|__pycache__)/")
FLOW = """
import godwit as gw, sys
assert gw.__file__.startswith(sys.prefix), gw.__file__
flow = gw.Flow("visits")
visits = flow.source("visits", gw.testing.stream("page string"))
flow.sink("n", visits.key_by("page").compute(n=gw.count()), gw.sinks.noop())
[row] = gw.testing.run(flow, {"visits": [("a",), ("a",)]}).rows("n").to_pylist()
assert row == {"page": "a", "n": 2}, row
"""
WITHOUT_EXTRAS = """
import godwit as gw
calls = {
    "delta": lambda: gw.sinks.delta("out"),
    "kafka": lambda: gw.sources.kafka("host:9092", "topic"),
}
for extra, call in calls.items():
    try:
        call()
    except gw.errors.GodwitError as error:
        assert f"pip install 'godwit-streams[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"the library of {extra} is there")
assert {"delta", "iceberg", "kafka", "postgres"} <= {*dir(gw.sinks)}
"""
WITHOUT_THE_LABORATORY = """
import godwit as gw
try:
    gw.Control(planner="albic")
except gw.errors.GodwitError as error:
    assert "pip install godwit-lab" in str(error), error
else:
    raise AssertionError("the laboratory is there")
"""
WITH_THE_LABORATORY = """
import godwit as gw
gw.Control(planner="albic", elasticity="executor_centric")
assert gw.sources.nexmark("bids").schema.names
"""


def call(*command: str | Path, **options: object) -> str:
    """Run a program; return what it prints, or stop with all of it."""
    done = subprocess.run(  # type: ignore[call-overload]
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def check_wheel(wheel: Path, sources: Path) -> None:
    """Insist on what a wheel has and has not, and on links that lead somewhere from anywhere."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [metadata] = [name for name in names if name.endswith("dist-info/METADATA")]
        about = email.message_from_bytes(opened.read(metadata))
    files = {str(f.relative_to(sources)) for f in sources.rglob("*") if f.is_file()}
    lacking = [f for f in files if "__pycache__" not in f and f not in names]
    lacking += [wanted for wanted in WANTED if not any(wanted in name for name in names)]
    assert not lacking, f"the wheel lacks {lacking[:5]}"
    strange = [name for name in names if UNWANTED.search(name)]
    assert not strange, f"the wheel has {strange[:5]}"
    text = str(about.get_payload())
    code_left_out = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    relative = re.findall(r"\]\((?!https?://|#)([^)]+)\)", code_left_out)
    assert "Godwit" in text, "the package's page is empty"
    assert not relative, f"links that lead nowhere on a package's page: {relative[:5]}"
    assert about["License-Expression"] == "Apache-2.0"


def check_sdist(sdist: Path) -> None:
    """Insist that the tests can be run from the source distribution."""
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for needed in (
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "run",
        "conftest.py",
        "docs/conf.py",
    ):
        assert needed in names, f"the source distribution lacks {needed}"


def needed_by(lines: list[str] | None, extras: Iterable[str] = ("",)) -> set[str]:
    """Return the distributions that requirements bring, those of others included.

    `extras`: that are asked for; ``""``: what is needed without any.
    """
    names: set[str] = set()
    for requirement in map(Requirement, lines or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            names |= {requirement.name}
            names |= needed_by(requires(requirement.name), ("", *requirement.extras))
    return names


def link_packages(wheel: Path, packages: Path) -> None:
    """Link the packages that a wheel asks for into an environment, where they are missing."""
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith("dist-info/METADATA")]
        about = email.message_from_bytes(opened.read(metadata))
    for name in needed_by(about.get_all("Requires-Dist")) - {"godwit-streams"}:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(installed.locate_file(top)))


def install(wheel: Path, place: Path) -> None:
    """Install a wheel into an environment, with links to the packages that it asks for."""
    [packages] = place.glob("lib/python*/site-packages")
    link_packages(wheel, packages)
    command = ("-m", "pip", "--python", place / "bin/python", "install", "--no-deps", "-q", wheel)
    call(sys.executable, *command)


def try_wheels(wheel: Path, laboratory: Path, place: Path) -> str:
    """Install Godwit alone into a new environment, and play a flow; then add the laboratory.

    Return Godwit's version.
    """
    venv.create(place, with_pip=False)
    python, godwit = place / "bin/python", place / "bin/godwit"
    install(wheel, place)
    call(python, "-c", FLOW, cwd=place)
    call(python, "-c", WITHOUT_EXTRAS, cwd=place)
    call(python, "-c", WITHOUT_THE_LABORATORY, cwd=place)
    assert "(needs: pip install godwit-lab)" in call(godwit, "--help", cwd=place)
    install(laboratory, place)
    call(python, "-c", WITH_THE_LABORATORY, cwd=place)
    (place / "problem.json").write_text(call(godwit, "plan", "example", "assignment", cwd=place))
    assert "albic" in call(godwit, "plan", "compare", "problem.json", cwd=place)
    assert "paper1/figure12" in call(godwit, "reproduce", "--list", cwd=place)
    return call(godwit, "--version", cwd=place).strip()


def main() -> None:
    """Build and check both distributions."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "dist"
        for project in (ROOT, LABORATORY):
            # From the source distribution, as one who has nothing else would.
            call(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, project)
        [wheel], [sdist] = built.glob("godwit_streams*.whl"), built.glob("godwit_streams*.tar.gz")
        [laboratory] = built.glob("godwit_lab*.whl")
        check_wheel(wheel, ROOT / "src")
        check_wheel(laboratory, LABORATORY / "src")
        check_sdist(sdist)
        version = try_wheels(wheel, laboratory, Path(scratch) / "venv")
        sizes = ", ".join(f"{f.name} {f.stat().st_size / 1e6:.1f} MB" for f in built.iterdir())
        if len(sys.argv) > 1:
            shutil.copytree(built, sys.argv[1], dirs_exist_ok=True)
    sys.stdout.write(f"{version}: {sizes}\n")


if __name__ == "__main__":
    main()
