"""JSON Schemas of every kind of problem and of solutions, and an example of every kind."""

from __future__ import annotations

from typing import Any

__all__ = ["EXAMPLES", "PROBLEM_SCHEMAS", "SOLUTION_SCHEMA"]

_LOAD = {"type": "number", "minimum": 0}
_LOADS = {"type": "array", "items": _LOAD}
_ROWS = {"type": "array", "items": _LOADS}
_EXECUTOR = {"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}
_NUMBER_OR_NULL = {"type": ["number", "null"]}


def _array(items: dict[str, Any], text: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": text}


_ASSIGNMENT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A planner's problem: which executor should own each key group",
    "type": "object",
    "required": ["executors", "load", "state_bytes", "current"],
    "additionalProperties": False,
    "properties": {
        "kind": {"const": "assignment", "default": "assignment"},
        "executors": _array({"type": "string"}, "Names, each once."),
        "load": {
            "oneOf": [_LOADS, _ROWS],
            "description": "Per key group: its load, or its load of each resource.",
        },
        "state_bytes": _array(_LOAD, "Per key group: bytes of state."),
        "current": _array(_EXECUTOR, "Per key group: its executor today, by name or number."),
        "resources": _array({"type": "string"}, "Names; default one, cpu."),
        "capacity": {
            "oneOf": [_LOADS, _ROWS],
            "description": "Per executor: speed relative to a standard one (of each resource).",
        },
        "cores": _array({"type": "integer", "minimum": 1}, "Per executor."),
        "draining": {
            "oneOf": [
                {"type": "array", "items": _EXECUTOR},
                {"type": "array", "items": {"type": "boolean"}},
            ],
            "description": "Executors marked for removal.",
        },
        "intervals": {
            "type": "boolean",
            "description": "Whether each executor must own one range of key groups.",
        },
        "limits": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "max_moves": {"type": "integer", "minimum": 0},
                "max_bytes": {"type": "number", "minimum": 0},
                "tau": {"type": "number", "minimum": 0},
                "theta": {"type": "number", "minimum": 1},
                "load_low": {"type": "number", "minimum": 0},
                "load_high": {"type": "number", "minimum": 0},
                "max_usage": _LOADS,
                "target_executors": {"type": "integer", "minimum": 1},
            },
        },
        "traffic": {
            "type": "object",
            "required": ["source", "target", "rate"],
            "additionalProperties": False,
            "properties": {
                "source": _array({"type": "integer", "minimum": 0}, "Key groups that send."),
                "target": _array({"type": "integer", "minimum": 0}, "Key groups that receive."),
                "rate": _array(_LOAD, "Rows per second of each pair."),
            },
        },
        "operators": _array({"type": "string"}, "Names."),
        "operator_of": _array({"type": "integer", "minimum": 0}, "Per key group: its operator."),
        "downstream": _array(
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            "Pairs of operators; default: those the traffic shows.",
        ),
        "history": {**_ROWS, "description": "Per past window, oldest first: load per key group."},
        "seconds_per_byte": {"type": "number", "minimum": 0},
        "options": {
            "type": "object",
            "additionalProperties": {"type": "object"},
            "description": "Per method: its options.",
        },
    },
}


def _problem(kind: str, title: str, required: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "required": ["kind", *required],
        "additionalProperties": False,
        "properties": {"kind": {"const": kind}, **required, **others, "options": _OPTIONS},
    }


_OPTIONS = _ASSIGNMENT["properties"]["options"]
_COUNTS = {"type": "array", "items": {"type": "integer", "minimum": 0}}

PROBLEM_SCHEMAS: dict[str, dict[str, Any]] = {
    "assignment": _ASSIGNMENT,
    "core_allocation": _problem(
        "core_allocation",
        "How many cores each executor needs so that rows are fast enough",
        {
            "network": {
                "type": "object",
                "required": ["arrival_per_s", "service_per_s", "input_per_s"],
                "additionalProperties": False,
                "properties": {
                    "arrival_per_s": _array(_LOAD, "Per executor: rows that reach it."),
                    "service_per_s": _array(
                        {"type": "number", "exclusiveMinimum": 0},
                        "Per executor: rows that one of its cores processes.",
                    ),
                    "input_per_s": {
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "description": "Rows that enter the flow from outside.",
                    },
                },
            },
            "latency_target_s": {"type": "number", "exclusiveMinimum": 0},
            "available_cores": {"type": "integer", "minimum": 0},
        },
        idle_cores={
            "type": "integer",
            "minimum": 0,
            "description": "Cores that an executor keeps although nothing reaches it; default 1.",
        },
    ),
    "core_assignment": _problem(
        "core_assignment",
        "Which machine each executor's cores are on",
        {
            "current": _array(_COUNTS, "Per machine: cores that each executor holds there today."),
            "machine_cores": _array({"type": "integer", "minimum": 0}, "Per machine."),
            "cores": _array({"type": "integer", "minimum": 0}, "Per executor: cores it needs."),
            "state_bytes": _array(_LOAD, "Per executor."),
            "data_bytes_per_s": _array(_LOAD, "Per executor: input plus output."),
            "home": _array(
                {"type": "integer", "minimum": 0}, "Per executor: machine of its main process."
            ),
        },
    ),
    "fusion": _problem(
        "fusion",
        "Which operators share one component",
        {
            "operators": _array({"type": "string"}, "Names, each once."),
            "attributes": _array(
                {"type": "array", "items": {"type": "string"}},
                "Per operator: its partition attributes; none: it cannot be fused.",
            ),
            "source": _array({"type": "integer", "minimum": 0}, "Per stream: operator it leaves."),
            "target": _array({"type": "integer", "minimum": 0}, "Per stream: operator it reaches."),
            "rate": _array(_LOAD, "Per stream: rows per second."),
        },
        attribute_values={
            "type": "object",
            "additionalProperties": _LOAD,
            "description": "What an attribute counts in the score by attributes; default 1.",
        },
    ),
}
"""By kind of problem."""

SOLUTION_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A planner's solution",
    "type": "object",
    "required": ["method", "status", "assignment", "moves", "load_distance", "moved_bytes"],
    "properties": {
        "method": {"type": "string"},
        "status": {"enum": ["optimal", "feasible", "infeasible"]},
        "reason": {"type": "string", "description": "Why the status is not better."},
        "objective": _NUMBER_OR_NULL,
        "bound": {**_NUMBER_OR_NULL, "description": "Proved lower bound of the objective."},
        "gap": {**_NUMBER_OR_NULL, "description": "(objective - bound) / |objective|."},
        "elapsed_s": {"type": "number"},
        "load_distance": {"type": "number"},
        "variance": {"type": "number"},
        "moved_bytes": {"type": "number"},
        "migration_cost_s": {"type": "number"},
        "collocation_factor": {"type": "number", "minimum": 0, "maximum": 1},
        "num_moves": {"type": "integer"},
        "load_index": {"type": "object", "additionalProperties": {"type": "number"}},
        "assignment": {"type": "array", "items": {"type": "string"}},
        "moves": {
            "type": "array",
            "description": "In the order they should be made.",
            "items": {
                "type": "object",
                "required": ["key_group", "source", "destination", "state_bytes"],
                "properties": {
                    "key_group": {"type": "integer"},
                    "source": {"type": "string"},
                    "destination": {"type": "string"},
                    "state_bytes": {"type": "integer"},
                    "load": {"type": "number"},
                },
            },
        },
        "details": {"type": "object"},
        "split": {
            "type": ["object", "null"],
            "description": "Where rows go if key groups are split over two executors.",
            "properties": {
                "first": {"type": "array", "items": {"type": "string"}},
                "second": {"type": "array", "items": {"type": "string"}},
                "share": {"type": "array", "items": {"type": "number"}},
            },
        },
    },
}

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
