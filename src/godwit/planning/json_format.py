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
from godwit.planning.plain_values import (
    ARRAY,
    FLAG,
    NUMBER,
    NUMBERS,
    TEXTS,
    WHOLE,
    WHOLES,
    Plain,
    list_of,
    mapping_of,
    optional,
    wrong_field,
)
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
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise InvalidProblemError(
            f"The problem is not JSON: {error}.",
            remedy="See `godwit plan schema assignment` and `godwit plan example assignment`.",
            field="",
            value=text[:40],
        ) from None
    if not isinstance(values, dict):
        raise wrong_field("problem", type(values).__name__, "Give a JSON object.")
    options = values.pop("options", {})
    if not isinstance(options, dict) or not all(isinstance(o, dict) for o in options.values()):
        raise wrong_field("options", options, "Give an object of options per method.")
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
        raise wrong_field("kind", kind, f"Give one of {', '.join(KINDS)}.")
    return KINDS[kind](rest)


_LIMITS = {
    "max_moves": optional(WHOLE),
    "max_bytes": optional(NUMBER),
    "tau": optional(NUMBER),
    "theta": optional(NUMBER),
    "load_low": optional(NUMBER),
    "load_high": optional(NUMBER),
    "max_usage": optional(NUMBERS),
    "target_executors": optional(WHOLE),
}
_TRAFFIC = {"source": ARRAY, "target": ARRAY, "rate": ARRAY}
_PROBLEM = {
    "executors": TEXTS,
    "load": ARRAY,
    "state_bytes": ARRAY,
    "current": WHOLES,
    "resources": TEXTS,
    "capacity": ARRAY,
    "cores": ARRAY,
    "draining": list_of(FLAG),
    "intervals": FLAG,
    "operators": TEXTS,
    "operator_of": ARRAY,
    "downstream": list_of(WHOLES),
    "history": ARRAY,
    "seconds_per_byte": NUMBER,
}
_NETWORK = {"arrival_per_s": ARRAY, "service_per_s": ARRAY, "input_per_s": NUMBER}
_CORE_ALLOCATION = {"latency_target_s": NUMBER, "available_cores": WHOLE, "idle_cores": WHOLE}
_CORE_ASSIGNMENT = dict.fromkeys(
    ("current", "machine_cores", "cores", "state_bytes", "data_bytes_per_s", "home"), ARRAY
)
_FUSION = {
    "operators": TEXTS,
    "attributes": list_of(TEXTS),
    "source": ARRAY,
    "target": ARRAY,
    "rate": ARRAY,
    "attribute_values": mapping_of(NUMBER),
}


def _assignment(values: dict[str, Any]) -> Problem:
    executors = TEXTS.read(_field(values, "executors"), "executors")
    if not executors:
        raise wrong_field("executors", executors, "Name at least one.")
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
    inner: dict[str, Any] = {}
    if "limits" in values:
        inner["limits"] = _read(Limits, _LIMITS, values.pop("limits"), "limits")
    if "traffic" in values:
        inner["traffic"] = _read(Traffic, _TRAFFIC, values.pop("traffic"), "traffic")
    return _read(Problem, _PROBLEM, values, "", inner)


def _core_allocation(values: dict[str, Any]) -> CoreAllocationProblem:
    network = _field(values, "network")
    del values["network"]
    inner = {"network": _read(QueueingNetwork, _NETWORK, network, "network")}
    return _read(CoreAllocationProblem, _CORE_ALLOCATION, values, "", inner)


KINDS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "assignment": _assignment,
    "core_allocation": _core_allocation,
    "core_assignment": lambda values: _read(CoreAssignmentProblem, _CORE_ASSIGNMENT, values, ""),
    "fusion": lambda values: _read(FusionProblem, _FUSION, values, ""),
}
"""How each kind of problem is built from its fields."""


def _read(
    kind: type[Made],
    fields: Mapping[str, Plain],
    values: object,
    where: str,
    inner: Mapping[str, Any] | None = None,
) -> Made:
    """Read the fields of a value and build it; `inner` are fields that are built already."""
    assert dataclasses.is_dataclass(kind), "every kind of problem is a dataclass"
    if not isinstance(values, Mapping):
        raise wrong_field(where, values, "Give an object.")
    prefix, inner = f"{where}." if where else "", inner or {}
    for name in values:
        if name not in fields:
            known = ", ".join((*fields, *inner))
            raise wrong_field(f"{prefix}{name}", values[name], f"Fields are {known}.")
    for field in dataclasses.fields(kind):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values and field.name not in inner:
            raise wrong_field(prefix + field.name, None, "The field is missing.")
    read = {name: fields[name].read(value, prefix + name) for name, value in values.items()}
    return kind(**read, **inner)


def _field(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise wrong_field(name, None, "The field is missing.")
    return values[name]


def _executor(value: object, place: Mapping[str, int], name: str) -> int:
    if isinstance(value, str):
        if value not in place:
            raise wrong_field(
                name, value, f"There is no such executor; there are {', '.join(place)}."
            )
        return place[value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_field(name, value, "Give an executor's name or number.")
    if not 0 <= value < len(place):
        raise wrong_field(name, value, f"Executors are numbered 0 to {len(place) - 1}.")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong_field(name, value, "Give a list.")
    return list(value)


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
