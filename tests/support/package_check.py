"""Build the distribution, look into it, and try it where nothing of the clone is seen.

``./run package`` calls it.  The wheel is tried in a new environment that has the packages which the
wheel asks for, without extras, and no others: they are linked from this environment.
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

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WANTED = (
    *("godwit/py.typed", "godwit/cli/main.py"),
    *("licenses/LICENSE", "entry_points.txt"),
)
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


def call(*command: str | Path, **options: object) -> str:
    """Run a program; return what it prints, or stop with all of it."""
    done = subprocess.run(  # type: ignore[call-overload]
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def check_wheel(wheel: Path) -> None:
    """Insist on what the wheel has and has not, and on links that lead somewhere from anywhere."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [metadata] = [name for name in names if name.endswith("dist-info/METADATA")]
        about = email.message_from_bytes(opened.read(metadata))
    sources = {str(f.relative_to(ROOT / "src")) for f in (ROOT / "src").rglob("*") if f.is_file()}
    lacking = [f for f in sources if "__pycache__" not in f and f not in names]
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


def needed_by(lines: list[str] | None) -> set[str]:
    """Return the distributions that requirements without extras bring, those of others included."""
    asked = [Requirement(line) for line in lines or ()]
    names = {one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})}
    return names.union(*(needed_by(requires(name)) for name in names))


def link_packages(wheel: Path, packages: Path) -> None:
    """Link the packages that a wheel asks for into an environment."""
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith("dist-info/METADATA")]
        about = email.message_from_bytes(opened.read(metadata))
    for name in needed_by(about.get_all("Requires-Dist")):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(str(installed.locate_file(top)))


def try_wheel(wheel: Path, place: Path) -> str:
    """Install the wheel alone into a new environment, and play a flow; return its version."""
    venv.create(place, with_pip=False)
    [packages] = place.glob("lib/python*/site-packages")
    link_packages(wheel, packages)
    python = place / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "-q", wheel)
    call(python, "-c", FLOW, cwd=place)
    call(place / "bin" / "godwit", "--help", cwd=place)
    return call(place / "bin" / "godwit", "--version", cwd=place).strip()


def main() -> None:
    """Build and check both distributions."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "dist"
        # From the source distribution, as whoever has nothing else would.
        call(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, ROOT)
        [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        version = try_wheel(wheel, Path(scratch) / "venv")
        sizes = ", ".join(f"{f.name} {f.stat().st_size / 1e6:.1f} MB" for f in (wheel, sdist))
        if len(sys.argv) > 1:
            shutil.copytree(built, sys.argv[1], dirs_exist_ok=True)
    sys.stdout.write(f"{version}: {sizes}\n")


if __name__ == "__main__":
    main()
