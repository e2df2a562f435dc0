"""`godwit plan` answers whatever JSON it is given: a plan, or a message that names the field."""

from __future__ import annotations

import copy
import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from godwit.cli.main import main
from godwit.placement.registry import PLANNERS
from godwit_lab.cli.plan_json import EXAMPLES, problem_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 7, 1.5, -0.0, 1e-320, 1e300, 1e400, float("nan"), 2**31, 2**70,
    10**400, "", "a", "q", "\x00", "ünï", [], [[]], [0], [0, 1], [[0, 1]], [["a"]], [None], {},
    {"a": 1}, {"": None}, [[1, 2], [3]], [1e400], "traffic", [True], {"sizes": [1], "log": 2},
)  # fmt: skip
VARIANTS = int(os.environ.get("GODWIT_FUZZ_VARIANTS", "200"))
METHODS = {
    kind: [name for name, entry in PLANNERS.items() if entry.asks is type(problem)]
    for kind in EXAMPLES
    for problem, _ in [problem_from_json(json.dumps(EXAMPLES[kind]))]
}
RICH = EXAMPLES["assignment"] | {
    "intervals": False,
    "traffic": {"source": [0, 1, 2], "target": [3, 4, 5], "rate": [1, 2, 3]},
    "history": [[1] * 12, [2] * 12],
    "resources": ["cpu"],
    "operators": ["x", "y"],
    "operator_of": [0] * 6 + [1] * 6,
    "downstream": [[0, 1]],
    "draining": ["c"],
    "capacity": [1, 1, 1],
    "limits": {"tau": 0.5, "max_usage": [90], "max_moves": 3, "load_low": 1, "load_high": 90},
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def disturbed(rng: random.Random, values: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    for _ in range(rng.randint(1, 3)):
        there = list(places(changed))
        if not there:
            break
        container, key = rng.choice(there)
        what = rng.random()
        if what < 0.7:
            container[key] = copy.deepcopy(rng.choice(ODD))
        elif what < 0.85:
            del container[key]
        elif isinstance(container, dict):
            container[rng.choice(("speed", "tau", "max_usage", ""))] = rng.choice(ODD)
        else:
            container.insert(0, rng.choice(ODD))
    return changed


def options_of(method: str, rng: random.Random) -> list[str]:
    names = [*PLANNERS[method].takes, "rng", "clock", "speed"]
    given = [f"{rng.choice(names)}={json.dumps(rng.choice(ODD))}"] if rng.random() < 0.5 else []
    if rng.random() < 0.02:
        given.append("novalue")
    return [part for setting in given for part in ("--set", setting)]


@pytest.mark.parametrize("part", range(4))
def test_no_input_ends_in_a_traceback(
    part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(part)
    path = tmp_path / "problem.json"
    for at in range(VARIANTS // 4):
        kind = rng.choice(("assignment", "assignment", "assignment", *EXAMPLES))
        base = RICH if kind == "assignment" and rng.random() < 0.7 else EXAMPLES[kind]
        values = disturbed(rng, base)
        path.write_text(json.dumps(values))
        method = rng.choice((*METHODS[kind], "compare")) if at % 9 else rng.choice([*PLANNERS])
        settings = [] if method == "compare" else options_of(method, rng)
        status = main(["plan", method, str(path), *settings, *(["--json"] if at % 2 else [])])
        told = capsys.readouterr()
        assert status in {0, 2, 3}, (values, settings)
        assert status != 2 or told.err.startswith("godwit"), (values, settings)
        assert "Traceback" not in told.err


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "3", '"a"', "{", "[" * 100_000, '{"a": ' * 5_000, "NaN", "\ufeff{}"]
)
def test_what_is_not_a_problem_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(text)
    assert main(["plan", "milp", str(path)]) == 2
    assert capsys.readouterr().err.startswith("godwit plan:")


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_has_a_schema_and_an_example_of_it(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert main(["plan", "example", kind]) == 0
    example = json.loads(capsys.readouterr().out)
    assert set(schema["required"]) <= set(example) <= set(schema["properties"])
