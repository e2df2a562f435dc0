"""Files for Kubernetes agree with each other, and what of them can run does."""

from __future__ import annotations

import configparser
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

import godwit as gw
from godwit.cli.main import parser
from godwit.ops.health import ANSWERS

health: Any = gw.types.Query.health

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy/kubernetes"
OBJECTS: dict[str, Any] = {
    one["kind"]: one for one in yaml.safe_load_all((PLACE / "godwit.yaml").read_text())
}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
DRIVER = POD["containers"][0]
LINTERS = {name: Path(sys.executable).with_name(name) for name in ("hadolint", "shellcheck")}
JOB = runpy.run_path(str(PLACE / "job.py"))


def settings() -> dict[str, str]:
    environment = {one["name"]: one.get("value", "ticks-1") for one in DRIVER["env"]}
    found: dict[str, str] = JOB["settings"](environment)
    return found


def test_the_driver_has_the_rights_ports_and_names_that_its_settings_speak_of() -> None:
    spark = settings()
    ports = {one["name"]: one["port"] for one in OBJECTS["Service"]["spec"]["ports"]}
    assert ports == {one["name"]: one["containerPort"] for one in DRIVER["ports"]}
    assert spark["spark.driver.port"] == str(ports["driver"])
    assert spark["spark.driver.blockManager.port"] == str(ports["blocks"])
    assert spark["spark.driver.host"].split(".")[0] == OBJECTS["Service"]["metadata"]["name"]
    account = spark["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert account == POD["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert OBJECTS["RoleBinding"]["subjects"][0]["name"] == account
    assert OBJECTS["RoleBinding"]["roleRef"]["name"] == OBJECTS["Role"]["metadata"]["name"]
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    secrets = [v for name, v in spark.items() if "secretKeyRef" in name]
    assert {s.split(":")[0] for s in secrets} == {DRIVER["envFrom"][0]["secretRef"]["name"]}


def test_one_driver_runs_and_none_beside_it() -> None:
    deployment = OBJECTS["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert settings()["spark.executor.instances"] == "2"


def test_image_and_version_are_those_of_the_package() -> None:
    image = f"godwit:{gw.__version__}"
    assert DRIVER["image"] == settings()["spark.kubernetes.container.image"] == image
    dockerfile = (PLACE / "Dockerfile").read_text()
    assert f"-t {image} ." in dockerfile
    [user] = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("USER")]
    assert POD["securityContext"]["runAsUser"] == int(user)
    copied = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY")]
    assert all((ROOT / path).exists() for path in copied if not path.startswith("dist/"))


def test_of_both_wheels_the_image_installs_the_one_of_godwit() -> None:
    assert "/tmp/dist/godwit_streams-*.whl" in (PLACE / "Dockerfile").read_text()


def test_the_example_counts_its_rows() -> None:
    rows = [{"timestamp": "2024-05-01", "value": n, "key": n % 2} for n in range(6)]
    played = gw.testing.run(JOB["build"](), {"ticks": rows})
    assert sorted(row["ticks"] for row in played.rows("counts").to_pylist()) == [3, 3]


def command_lines() -> dict[str, list[str]]:
    """Return the command lines of the files that call `godwit`."""
    text = (ROOT / "deploy/systemd/godwit.service").read_text()
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read_string(text)
    service = unit["Service"]
    stop = DRIVER["lifecycle"]["preStop"]["exec"]["command"]
    assert stop[:2] == ["sh", "-c"]
    return {
        "start of the unit": shlex.split(service["ExecStart"]),
        "stop of the unit": shlex.split(service["ExecStop"].removeprefix("-")),
        "start of the pod": DRIVER["args"],
        "stop of the pod": shlex.split(stop[2]),
    }


@pytest.mark.parametrize("which", command_lines())
def test_commands_are_ones_that_godwit_takes(which: str) -> None:
    program, *arguments = command_lines()[which]
    assert Path(program).name == "godwit"
    args = parser((arguments[0],)).parse_args(arguments)
    assert args.command == ("run" if which.startswith("start") else "drain")
    if which == "stop of the pod":
        assert args.timeout < POD["terminationGracePeriodSeconds"]
        assert args.path.removeprefix("$") in {one["name"] for one in DRIVER["env"]}


def test_probes_ask_the_port_of_the_metrics() -> None:
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    asked = [urlsplit(DRIVER[kind]["httpGet"]["path"]) for kind in kinds]
    assert [url.path for url in asked] == ["/livez", "/livez", "/readyz"]
    assert {url.path for url in asked} == set(ANSWERS)
    assert {DRIVER[kind]["httpGet"]["port"] for kind in kinds} == {"metrics"}
    assert all(name in health.__kwdefaults__ for url in asked for name in parse_qs(url.query))


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Run the entry point with a stand-in for the program that it hands over to."""
    stand_in = tmp_path / "tini"
    stand_in.write_text('#!/bin/sh\nfor one in "$@"; do printf "%s\\n" "$one"; done\n')
    stand_in.chmod(0o755)

    def run(*arguments: str, **variables: str) -> list[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(
            [PLACE / "entrypoint.sh", *arguments],
            env={"PATH": path, **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines()

    return run


def test_the_entry_point_runs_a_command_as_it_is(start: Any) -> None:
    assert start("python", "a job.py") == ["-s", "--", "python", "a job.py"]


def test_the_entry_point_starts_an_executor_with_all_that_spark_says(start: Any) -> None:
    said = start(
        "executor",
        SPARK_JAVA_OPT_0="-Da=b c",
        SPARK_JAVA_OPT_1="-Dd=*",
        SPARK_EXECUTOR_MEMORY="2g",
        SPARK_HOME="/spark",
        SPARK_DRIVER_URL="spark://driver:7078",
        SPARK_EXECUTOR_ID="3",
        SPARK_EXECUTOR_CORES="2",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="10.0.0.7",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="pod",
    )
    assert said[:5] == ["-s", "--", "java", "-Da=b c", "-Dd=*"]
    assert said[said.index("-cp") + 1] == "/spark/jars/*"
    assert said[said.index("--executor-id") + 1] == "3"
    assert said[-2:] == ["--podName", "pod"]


def test_an_executor_without_its_variables_does_not_start(start: Any) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        start("executor", SPARK_HOME="/spark")


def test_the_job_names_the_variables_that_its_pod_lacks() -> None:
    assert set(JOB["NEEDED"]) <= {one["name"] for one in DRIVER["env"]}
    environment = {"PATH": os.environ["PATH"], "POD_NAME": "driver-0"}
    ran = subprocess.run(
        [sys.executable, PLACE / "job.py"],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    missing = [name for name in JOB["NEEDED"] if name != "POD_NAME"]
    assert ran.stderr.strip().startswith(f"Not set: {', '.join(missing)}.")


@pytest.mark.parametrize(
    ("linter", "files"),
    [
        ("hadolint", ["deploy/kubernetes/Dockerfile"]),
        ("shellcheck", ["deploy/kubernetes/entrypoint.sh", "run", ".ci/run"]),
    ],
)
def test_a_linter_finds_nothing(linter: str, files: list[str]) -> None:
    if not LINTERS[linter].exists():
        pytest.skip(f"needs {linter}")
    done = subprocess.run(
        [LINTERS[linter], *files], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
