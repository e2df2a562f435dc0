"""Problems and solutions of `godwit plan` as JSON: their types, schemas, and an example of each.

A problem's JSON has the fields of the value it becomes, by the same names: an error that names a
field names a place in the file.  Executors may be written by name or by number.  ``kind`` chooses
the type of problem, and ``options`` holds options per method.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from godwit.control.planners.cores.core_allocation import CoreAllocationProblem, QueueingNetwork
from godwit.control.planners.fusion import FusionProblem
from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem, Traffic
from godwit.placement.solution import Solution
from godwit_lab.planners.cores.core_assignment import CoreAssignmentProblem

__all__ = ["EXAMPLES", "KINDS", "plain", "problem_from_json", "schema_of", "solution_to_dict"]


def _about(text: str) -> Meta:
    """Return the annotation that gives a field its description in the JSON schema."""
    return Meta(description=text)


_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_Load = Annotated[float, Meta(ge=0)]
_LoadPerResource = list[_Load | list[_Load]]
_Executor = str | _Count


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the objects in a problem's JSON."""

    def given_arguments(self) -> dict[str, Any]:
        """Return the fields that are present in the JSON object, as keyword arguments."""
        names = (name for name in self.__struct_fields__ if name not in {"kind", "options"})
        return {name: v for name in names if (v := getattr(self, name)) is not UNSET}


class ProblemJson(_Struct, frozen=True, kw_only=True):
    kind: str
    options: Annotated[dict[str, dict[str, Any]], _about("Per method: its options.")] = {}


class LimitsJson(_Struct, frozen=True, kw_only=True):
    max_moves: _Count | None = None
    max_bytes: _Load | None = None
    tau: _Load | None = None
    theta: Annotated[float, Meta(ge=1)] | None = None
    load_low: _Load | None = None
    load_high: _Load | None = None
    max_usage: list[_Load] | None = None
    target_executors: Annotated[int, Meta(ge=1)] | None = None


class TrafficJson(_Struct, frozen=True, kw_only=True):
    source: Annotated[list[_Count], _about("Key groups that send.")]
    target: Annotated[list[_Count], _about("Key groups that receive.")]
    rate: Annotated[list[_Load], _about("Rows per second of each pair.")]


class AssignmentJson(ProblemJson, frozen=True, kw_only=True):
    """JSON of an assignment problem: an executor for each key group."""

    kind: Literal["assignment"] = "assignment"
    executors: Annotated[list[str], Meta(min_length=1, description="Names, each once.")]
    load: Annotated[
        _LoadPerResource, _about("Per key group: its load, or its load of each resource.")
    ]
    state_bytes: Annotated[list[_Load], _about("Per key group: bytes of state.")]
    current: Annotated[
        list[_Executor], _about("Per key group: its executor today, by name or number.")
    ]
    resources: Annotated[list[str] | UnsetType, _about("Names; default one, cpu.")] = UNSET
    capacity: Annotated[
        list[float | list[float]] | UnsetType,
        _about("Per executor: speed relative to a standard one (of each resource)."),
    ] = UNSET
    cores: Annotated[list[int] | UnsetType, _about("Per executor.")] = UNSET
    draining: Annotated[
        list[str | bool | _Count],
        _about("Executors marked for removal, or per executor whether it is."),
    ] = []
    intervals: Annotated[bool, _about("Each executor must own one range of key groups.")] = False
    limits: LimitsJson = LimitsJson()
    traffic: TrafficJson | UnsetType = UNSET
    operators: Annotated[list[str] | UnsetType, _about("Names.")] = UNSET
    operator_of: Annotated[list[int] | UnsetType, _about("Per key group: its operator.")] = UNSET
    downstream: Annotated[
        list[Annotated[list[int], Meta(min_length=2, max_length=2)]] | UnsetType,
        _about("Pairs of operators; default: those the traffic shows."),
    ] = UNSET
    history: Annotated[
        list[list[_Load]] | UnsetType, _about("Per past window, oldest first: load per key group.")
    ] = UNSET
    seconds_per_byte: float | UnsetType = UNSET

    def build(self) -> Problem:
        """Return the planning problem that the JSON object describes."""
        values = self.given_arguments()
        index = {name: i for i, name in enumerate(self.executors)}
        values["current"] = [
            _executor_index(e, index, f"current[{k}]") for k, e in enumerate(self.current)
        ]
        if not all(isinstance(d, bool) for d in self.draining):
            drains = {
                _executor_index(e, index, f"draining[{i}]") for i, e in enumerate(self.draining)
            }
            values["draining"] = [i in drains for i in range(len(self.executors))]
        for name in ("load", "capacity", "history"):
            if name in values:
                values[name] = _to_array(name, values[name])
        limits = self.limits.given_arguments()
        usage = limits["max_usage"]
        values["limits"] = Limits(**limits | {"max_usage": None if usage is None else (*usage,)})
        if "traffic" in values:
            values["traffic"] = Traffic(**values["traffic"].given_arguments())
        return Problem(**values)


class NetworkJson(_Struct, frozen=True, kw_only=True):
    arrival_per_s: Annotated[list[_Load], _about("Per executor: rows that reach it.")]
    service_per_s: Annotated[
        list[_Positive], _about("Per executor: rows that one of its cores processes.")
    ]
    input_per_s: Annotated[float, Meta(gt=0, description="Rows that enter the flow from outside.")]


class CoreAllocationJson(ProblemJson, frozen=True, kw_only=True):
    """JSON of a core-allocation problem: enough cores per executor for a latency."""

    kind: Literal["core_allocation"]
    network: NetworkJson
    latency_target_s: _Positive
    available_cores: _Count
    idle_cores: Annotated[
        int,
        Meta(ge=0, description="Cores that an executor keeps although nothing reaches it."),
    ] = 1

    def build(self) -> CoreAllocationProblem:
        """Return the problem that the JSON object describes."""
        return CoreAllocationProblem(
            **self.given_arguments()
            | {"network": QueueingNetwork(**self.network.given_arguments())}
        )


class CoreAssignmentJson(ProblemJson, frozen=True, kw_only=True):
    """JSON of a core-assignment problem: machines for executors' cores."""

    kind: Literal["core_assignment"]
    current: Annotated[
        list[list[_Count]],
        _about("Per machine: cores that each executor holds there today."),
    ]
    machine_cores: Annotated[list[_Count], _about("Per machine.")]
    cores: Annotated[list[_Count], _about("Per executor: cores it needs.")]
    state_bytes: Annotated[list[_Load], _about("Per executor.")]
    data_bytes_per_s: Annotated[list[_Load], _about("Per executor: input plus output.")]
    home: Annotated[list[_Count], _about("Per executor: machine of its main process.")]

    def build(self) -> CoreAssignmentProblem:
        """Return the problem that the JSON object describes."""
        return CoreAssignmentProblem(
            **{name: _to_array(name, value) for name, value in self.given_arguments().items()}
        )


class FusionJson(ProblemJson, frozen=True, kw_only=True):
    """JSON of a fusion problem: operators that share a component."""

    kind: Literal["fusion"]
    operators: Annotated[list[str], _about("Names, each once.")]
    attributes: Annotated[
        list[list[str]],
        _about("Per operator: its partition attributes; none: it cannot be fused."),
    ]
    source: Annotated[list[_Count], _about("Per stream: operator it leaves.")]
    target: Annotated[list[_Count], _about("Per stream: operator it reaches.")]
    rate: Annotated[list[_Load], _about("Per stream: rows per second.")]
    attribute_values: Annotated[
        dict[str, _Load],
        _about("What an attribute counts in the score by attributes; default 1."),
    ] = {}

    def build(self) -> FusionProblem:
        """Return the problem that the JSON object describes."""
        return FusionProblem(**self.given_arguments())


AnyProblem = AssignmentJson | CoreAllocationJson | CoreAssignmentJson | FusionJson
KINDS: Mapping[str, type[AnyProblem]] = {
    "assignment": AssignmentJson,
    "core_allocation": CoreAllocationJson,
    "core_assignment": CoreAssignmentJson,
    "fusion": FusionJson,
}
"""Type of the JSON of each kind of problem."""
_PLACE = re.compile(r"(?P<text>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)
_LACKS = re.compile(r"Object (missing required|contains unknown) field `(?P<field>.*)`", re.DOTALL)


def problem_from_json(text: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the problem in a JSON text, and planning method → its options."""
    try:
        values = json.loads(text, parse_float=_parse_number)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise InvalidProblemError(
            f"The problem is not JSON: {error}.",
            remedy="See `godwit plan schema assignment` and `godwit plan example assignment`.",
            field="",
            value=text[:40],
        ) from None
    if not isinstance(values, dict):
        raise _field_error("problem", type(values).__name__, "Give a JSON object.")
    kind = values.get("kind", "assignment")
    if not isinstance(kind, str) or kind not in KINDS:
        raise _field_error("kind", kind, f"Give one of {', '.join(KINDS)}.")
    try:
        problem = msgspec.convert(values, KINDS[kind])
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from None
    return problem.build(), problem.options


def _parse_number(text: str) -> float:
    """Return a number of the JSON text; an `int` if it is a whole number."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _invalid(error: str, kind: str) -> InvalidProblemError:
    """Return the error for msgspec's `error` in a problem of a `kind`; it names the field."""
    place = _PLACE.fullmatch(error)
    assert place is not None, "the pattern matches any text"
    field, text = place["path"] or "", place["text"]
    if lacks := _LACKS.fullmatch(text):
        field = f"{field}.{lacks['field']}".lstrip(".")
    return InvalidProblemError(
        f"{field} is wrong: {text[:200]}.",
        remedy=f"See `godwit plan schema {kind}` and `godwit plan example {kind}`.",
        field=field,
    )


def _field_error(name: str, value: object, remedy: str) -> InvalidProblemError:
    """Return the error that a field has a wrong value."""
    return InvalidProblemError(
        f"{name} = {value!r:.200} is wrong.", remedy=remedy, field=name, value=value
    )


def _to_array(name: str, value: Any) -> Any:
    """Return nested lists as an array; raise if they are not regular."""
    try:
        return np.asarray(value) if isinstance(value, list) else value
    except (ValueError, OverflowError):
        raise _field_error(name, value, "Give numbers, as many in each row.") from None


def _executor_index(value: str | int, index: Mapping[str, int], name: str) -> int:
    """Return the index of an executor that is given by name or index."""
    if isinstance(value, str):
        if value not in index:
            raise _field_error(
                name, value, f"There is no such executor; there are {', '.join(index)}."
            )
        return index[value]
    if isinstance(value, bool):
        raise _field_error(name, value, "Give an executor's name or number.")
    if value >= len(index):
        raise _field_error(name, value, f"Executors are numbered 0 to {len(index) - 1}.")
    return value


class MoveJson(msgspec.Struct, frozen=True, kw_only=True):
    key_group: int
    source: str
    destination: str
    state_bytes: int
    load: float


class SplitJson(msgspec.Struct, frozen=True, kw_only=True):
    first: list[str]
    second: list[str]
    share: list[float]


class SolutionJson(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a planner to a problem of kind assignment."""

    method: str
    status: Literal["optimal", "feasible", "infeasible"]
    reason: Annotated[str, _about("Why the status is not better.")]
    objective: float | None
    bound: Annotated[float | None, _about("Proved lower bound of the objective.")]
    gap: Annotated[float | None, _about("(objective - bound) / |objective|.")]
    elapsed_s: float
    load_distance: float
    variance: float
    moved_bytes: float
    migration_cost_s: float
    collocation_factor: Annotated[float, Meta(ge=0, le=1)]
    num_moves: int
    load_index: dict[str, float]
    assignment: list[str]
    moves: Annotated[list[MoveJson], _about("In the order they should be made.")]
    details: dict[str, Any]
    split: Annotated[
        SplitJson | None,
        _about("Where rows go if key groups are split over two executors."),
    ]


def solution_to_dict(solution: Any) -> dict[str, Any]:
    """Return a solution as plain values for JSON, with derived figures for people."""
    if not isinstance(solution, Solution):
        return dict(plain(solution))
    executors, split = solution.problem.executors, solution.split
    values = {
        name: getattr(solution, name)
        for name in SolutionJson.__struct_fields__
        if name not in {"load_index", "assignment", "split"}
    }
    values["load_index"] = dict(zip(executors, solution.load_index.tolist(), strict=True))
    values["assignment"] = [executors[e] for e in solution.assignment.tolist()]
    values["split"] = split and {
        "first": [executors[e] for e in split.first.tolist()],
        "second": [executors[e] for e in split.second.tolist()],
        "share": split.share,
    }
    return dict(plain(values))


def plain(value: Any) -> Any:
    """Return values, arrays, sets and mappings as plain values for `json.dumps`."""
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
    if type(value) in {str, int, float, bool} or value is None:
        return value
    return str(value)


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of problem, or of a ``solution``."""
    struct = SolutionJson if kind == "solution" else KINDS[kind]
    (ref,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    own = definitions.pop(ref["$ref"].rpartition("/")[2])
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **own}
    return schema | ({"$defs": definitions} if definitions else {})


_ASSIGNMENT_EXAMPLE: dict[str, Any] = {
    "kind": "assignment",
    "executors": ["a", "b", "c"],
    "load": [5, 7, 3, 6, 9, 4, 2, 8, 6, 4, 5, 1],
    "state_bytes": [40, 70, 20, 60, 90, 40, 10, 80, 50, 40, 30, 10],
    "current": ["a", "a", "a", "a", "a", "a", "a", "b", "b", "b", "b", "b"],
    "intervals": True,
    "limits": {"tau": 0.2, "target_executors": 3},
    "seconds_per_byte": 1e-8,
    "options": {
        "oms": {"targets": [3, 2, 3]},
        "mtm": {"transitions": {"sizes": [2, 3], "probability": [[0.4, 0.6], [0.7, 0.3]]}},
    },
}
"""Twelve key groups on two executors of three: `godwit plan ssm` moves them within tau = 0.2."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "assignment": _ASSIGNMENT_EXAMPLE,
    "core_allocation": {
        "kind": "core_allocation",
        "network": {
            "arrival_per_s": [29, 5, 0],
            "service_per_s": [10, 10, 10],
            "input_per_s": 29,
        },
        "latency_target_s": 0.15,
        "available_cores": 20,
    },
    "core_assignment": {
        "kind": "core_assignment",
        "current": [[2, 0], [0, 2]],
        "machine_cores": [4, 4],
        "cores": [3, 4],
        "state_bytes": [1000, 2000],
        "data_bytes_per_s": [5e5, 2e6],
        "home": [0, 1],
    },
    "fusion": {
        "kind": "fusion",
        "operators": ["parse", "by_plane", "by_route", "store"],
        "attributes": [["plane", "route"], ["plane"], ["route"], ["plane"]],
        "source": [0, 0, 1],
        "target": [1, 2, 3],
        "rate": [100, 40, 10],
    },
}
"""By kind of problem; each is one that its planners solve."""
