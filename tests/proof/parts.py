"""The parts of the proof: public names, commands, tests, records of checkpoints, the wheel."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import inspect
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
from tests.streams.playing import play_by_testing
from tests.support.public_api import OBJECTS, members_of

from godwit import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["checkpoint_records", "commands", "public_names", "test_names", "wheel_files"]

ROOT = Path(__file__).parents[2]
_MODULE = re.compile(r"\bgodwit(?:_\w+)?(?:\.\w+)*\.(?=\w)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
NUM_STREAMS = 40


def public_names() -> dict[str, dict[str, Any]]:
    """Return the public names with signatures, bases and fields, without paths of modules."""
    described = {}
    for name, value in OBJECTS.items():
        public = name.startswith("godwit.") and name.count(".") <= 2
        short = name if public else name.rpartition(".")[2]
        described[short] = _described(value)
        for member, attribute in members_of(name).items():
            described[f"{short}.{member.rpartition('.')[2]}"] = _described(attribute)
    return described


def _described(value: Any) -> dict[str, Any]:
    try:
        signature = _without_modules(str(inspect.signature(value)))
    except (TypeError, ValueError):
        signature = ""
    described: dict[str, Any] = {"kind": type(value).__name__, "signature": signature}
    if isinstance(value, property) and value.fget is not None:
        described["signature"] = _without_modules(str(inspect.signature(value.fget)))
    if inspect.isclass(value):
        described["bases"] = [base.__name__ for base in value.__mro__[1:]]
        if dataclasses.is_dataclass(value):
            described["fields"] = [
                f"{field.name}: {_without_modules(str(field.type))}"
                for field in dataclasses.fields(value)
            ]
    return described


def _without_modules(text: str) -> str:
    return _ADDRESS.sub("", _MODULE.sub("", text))


def commands() -> dict[str, str]:
    """Return the help of every command and subcommand."""
    from godwit.cli.main import parser

    with mock.patch.dict(os.environ, COLUMNS="100"):
        return dict(_helps("godwit", parser()))


def _helps(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    yield name, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from _helps(f"{name} {command}", below)


def test_names() -> dict[str, int]:
    """Return the names of tests with their parameters, without files, and how often each occurs."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in collected.stdout.splitlines() if "::" in line]
    return dict(Counter(_test_name(line) for line in lines))


def _test_name(line: str) -> str:
    """Return a test's id without its file; paths and modules in parameters lose their folders."""
    name = line.partition("::")[2]
    return re.sub(r"[\w.-]+/", "", _without_modules(name))


test_names.__test__ = False  # type: ignore[attr-defined]


def checkpoint_records() -> dict[str, dict[str, Any]]:
    """Return what the checkpoints of drawn flows hold: every record, digests of other bytes.

    The flows are played in this process with migrations, losses and restarts.  Random ids come from
    the seed, so the bytes of two plays are the same.
    """
    return {f"flow {seed}": _records_of(seed) for seed in range(NUM_STREAMS)}


def _records_of(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root, _seeded_ids(seed):
        directory = Path(root) / "checkpoint"
        play_by_testing(seed, cluster=_in(directory))
        return {
            str(path.relative_to(directory)): _content(path)
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != "lock" and "leases" not in path.parts
        }


def _in(directory: Path) -> Callable[..., testing.Run]:
    def cluster(flow: Any, **options: Any) -> testing.Run:
        return testing.cluster(flow, checkpoint=directory, **options)

    return cluster


@contextmanager
def _seeded_ids(seed: int) -> Iterator[None]:
    """Take what random ids are made of from a seed."""
    generator = random.Random(seed)
    with mock.patch("os.urandom", generator.randbytes):
        yield


def _content(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    content: dict[str, Any] = {"digest": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    if path.suffix == ".rec":
        _, start, length, _, _ = struct.Struct("<8sQQII").unpack_from(data)
        content["record"] = _plain(msgspec.msgpack.decode(data[start : start + length]))
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes {hashlib.sha256(value).hexdigest()[:16]}"
    return value


def wheel_files() -> dict[str, Any]:
    """Return the files of the wheels: number of modules, names and sizes of all other files."""
    modules, others = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for project in (ROOT, *(file.parent for file in ROOT.glob("*/pyproject.toml"))):
            subprocess.run(
                [
                    *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
                    *("--outdir", f"{scratch}/{project.name}", str(project)),
                ],
                capture_output=True,
                check=True,
            )
        for wheel in sorted(Path(scratch).glob("*/*.whl")):
            for info in zipfile.ZipFile(wheel).infolist():
                path = PurePosixPath(info.filename)
                if path.suffix == ".py":
                    modules[path.name] += 1
                elif ".dist-info" not in info.filename:
                    others[f"{path.name} ({info.file_size} bytes)"] += 1
    return {"modules": dict(modules), "other files": dict(others)}
