"""Problems and solutions as JSON, for people and for other programs.

A problem's JSON has the fields of the value it becomes, by the same names: an error that names a
field names a place in the file.  Executors may be written by name or by number.  ``kind`` chooses
the type of problem, and ``options`` holds options per method.  The schemas and an example
are in `godwit.planning.json_schema`.

Invariant: ``problem_from_dict(problem_to_dict(p))`` equals ``p`` field by field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning.components.fusion import FusionProblem
from godwit.planning.cores.core_allocation import CoreAllocationProblem
from godwit.planning.cores.core_assignment import CoreAssignmentProblem
from godwit.planning.cores.queueing import QueueingNetwork
from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.solution import Solution

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.planning.split_keys import SplitKeys

__all__ = [
    "KINDS",
    "plain",
    "problem_from_dict",
    "problem_from_json",
    "problem_to_dict",
    "solution_to_dict",
]


Made = TypeVar("Made")


def problem_from_json(text: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Read a problem and its options per method.

    Raises
    ------
    InvalidProblemError
        If the text is not JSON, or the problem is wrong; it names the field and the value.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidProblemError(
            f"The problem is not JSON: {error}.",
            remedy="See `godwit plan schema problem`.",
            field="",
            value=text[:40],
        ) from None
    if not isinstance(values, dict):
        raise _wrong("problem", type(values).__name__, "Give a JSON object.")
    options = values.pop("options", {})
    if not isinstance(options, dict) or not all(isinstance(o, dict) for o in options.values()):
        raise _wrong("options", options, "Give an object of options per method.")
    return problem_from_dict(values), options


def problem_from_dict(values: Mapping[str, Any]) -> Any:
    """Build the problem that `values` describes; its ``kind`` says of which type.

    Raises
    ------
    InvalidProblemError
        Names the field and the value.
    """
    rest = dict(values)
    kind = rest.pop("kind", "assignment")
    if not isinstance(kind, str) or kind not in KINDS:
        raise _wrong("kind", kind, f"Give one of {', '.join(KINDS)}.")
    return KINDS[kind](rest)


def _assignment(values: dict[str, Any]) -> Problem:
    if "executors" not in values:
        raise _wrong("executors", None, "The field is missing.")
    executors = tuple(_list(values["executors"], "executors"))
    if not all(isinstance(name, str) for name in executors):
        raise _wrong("executors", values["executors"], "Give names.")
    place = {name: i for i, name in enumerate(executors)}
    if "current" in values:
        values["current"] = [
            _executor(e, place, f"current[{k}]")
            for k, e in enumerate(_list(values["current"], "current"))
        ]
    draining = _list(values.get("draining", []), "draining")
    if draining and not all(isinstance(d, bool) for d in draining):
        drains = {_executor(e, place, f"draining[{i}]") for i, e in enumerate(draining)}
        values["draining"] = [i in drains for i in range(len(executors))]
    if "limits" in values:
        limits = dict(_object(values["limits"], "limits"))
        if limits.get("max_usage") is not None:
            limits["max_usage"] = tuple(_list(limits["max_usage"], "limits.max_usage"))
        values["limits"] = _build(Limits, limits, "limits.")
    if "traffic" in values:
        values["traffic"] = _build(Traffic, dict(_object(values["traffic"], "traffic")), "traffic.")
    return _build(Problem, values, "")


def _core_allocation(values: dict[str, Any]) -> CoreAllocationProblem:
    if "network" in values:
        network = dict(_object(values["network"], "network"))
        values["network"] = _build(QueueingNetwork, network, "network.")
    return _build(CoreAllocationProblem, values, "")


KINDS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "assignment": _assignment,
    "core_allocation": _core_allocation,
    "core_assignment": lambda values: _build(CoreAssignmentProblem, values, ""),
    "fusion": lambda values: _build(FusionProblem, values, ""),
}
"""How each kind of problem is built from its fields."""


def _build(kind: type[Made], values: dict[str, Any], prefix: str) -> Made:
    assert dataclasses.is_dataclass(kind), "every kind of problem is a dataclass"
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            raise _wrong(prefix + name, value, f"Fields are {', '.join(fields)}.")
    for name, field in fields.items():
        optional = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in values and not optional:
            raise _wrong(prefix + name, None, "The field is missing.")
    for name, value in values.items():
        _refuse_wrong_type(prefix + name, value, fields[name].type)
    arrays = {
        name: _array(value, prefix + name) if "Array" in str(fields[name].type) else value
        for name, value in values.items()
    }
    return kind(**arrays)


def _refuse_wrong_type(name: str, value: object, declared: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = str(declared)
    if text.startswith(("int", "float")) and not number and not (value is None and "None" in text):
        raise _wrong(name, value, "Give a number.")
    if text.startswith("int") and isinstance(value, float) and not value.is_integer():
        raise _wrong(name, value, "Give a whole number.")
    if text == "bool" and not isinstance(value, bool):
        raise _wrong(name, value, "Give true or false.")
    if text.startswith("tuple[str") and not all(isinstance(v, str) for v in _list(value, name)):
        raise _wrong(name, value, "Give texts.")


def _array(value: object, name: str) -> Any:
    items = _list(value, name)
    try:
        array = np.asarray(items)
    except ValueError:
        raise _wrong(name, "rows of different lengths", "Give as many values in each.") from None
    if array.dtype.kind not in "fiub":
        odd = next((v for v in np.ravel(np.asarray(items, object)) if not _is_number(v)), None)
        raise _wrong(name, odd, "Give numbers.")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _executor(value: object, place: Mapping[str, int], name: str) -> int:
    if isinstance(value, str):
        if value not in place:
            raise _wrong(name, value, f"There is no such executor; there are {', '.join(place)}.")
        return place[value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, "Give an executor's name or number.")
    if not 0 <= value < len(place):
        raise _wrong(name, value, f"Executors are numbered 0 to {len(place) - 1}.")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(name, value, "Give a list.")
    return list(value)


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "Give an object.")
    return value


def _wrong(name: str, value: object, remedy: str) -> InvalidProblemError:
    return InvalidProblemError(
        f"{name} = {value!r} is wrong.", remedy=remedy, field=name, value=value
    )


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Return the JSON values of an assignment problem; fields at their default are left out."""
    values: dict[str, Any] = {"kind": "assignment", "executors": list(problem.executors)}
    resource = problem.load[:, 0] if len(problem.resources) == 1 else problem.load
    values["resources"] = list(problem.resources)
    values["load"] = resource.tolist()
    values["state_bytes"] = problem.state_bytes.tolist()
    values["current"] = [problem.executors[e] for e in problem.current.tolist()]
    values["capacity"] = problem.capacity.tolist()
    values["cores"] = problem.cores.tolist()
    values["draining"] = [problem.executors[e] for e in np.flatnonzero(problem.draining).tolist()]
    values["intervals"] = problem.intervals
    limits = {f.name: getattr(problem.limits, f.name) for f in dataclasses.fields(Limits)}
    values["limits"] = {name: plain(v) for name, v in limits.items() if v is not None}
    if len(problem.traffic.rate):
        values["traffic"] = plain(problem.traffic)
    values["operators"] = list(problem.operators)
    values["operator_of"] = problem.operator_of.tolist()
    values["downstream"] = [list(pair) for pair in problem.downstream]
    if len(problem.history):
        values["history"] = problem.history.tolist()
    values["seconds_per_byte"] = problem.seconds_per_byte
    return values


def solution_to_dict(solution: Any) -> dict[str, Any]:
    """Return the JSON values of a solution; numbers that people need are spelled out."""
    if not isinstance(solution, Solution):
        return dict(plain(solution))
    executors = solution.problem.executors
    return {
        "method": solution.method,
        "status": solution.status.value,
        "reason": solution.reason,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "elapsed_s": solution.elapsed_s,
        "load_distance": solution.load_distance,
        "variance": solution.variance,
        "moved_bytes": solution.moved_bytes,
        "migration_cost_s": solution.migration_cost_s,
        "collocation_factor": solution.collocation_factor,
        "num_moves": solution.num_moves,
        "load_index": dict(zip(executors, solution.load_index.tolist(), strict=True)),
        "assignment": [executors[e] for e in solution.assignment.tolist()],
        "moves": [plain(move) for move in solution.moves],
        "details": plain(solution.details),
        "split": None if solution.split is None else _split(solution.split, executors),
    }


def plain(value: Any) -> Any:
    """Turn values, arrays, sets and mappings into what `json.dumps` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def _split(split: SplitKeys, executors: tuple[str, ...]) -> dict[str, Any]:
    return {
        "first": [executors[e] for e in split.first.tolist()],
        "second": [executors[e] for e in split.second.tolist()],
        "share": split.share.tolist(),
    }
