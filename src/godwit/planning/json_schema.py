"""JSON Schemas of problems and solutions, and the example that the documentation uses."""

from __future__ import annotations

from typing import Any

__all__ = ["EXAMPLE", "PROBLEM_SCHEMA", "SOLUTION_SCHEMA"]

_LOAD = {"type": "number", "minimum": 0}
_LOADS = {"type": "array", "items": _LOAD}
_ROWS = {"type": "array", "items": _LOADS}
_EXECUTOR = {"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}
_NUMBER_OR_NULL = {"type": ["number", "null"]}


def _array(items: dict[str, Any], text: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": text}


PROBLEM_SCHEMA: dict[str, Any] = {
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

EXAMPLE: dict[str, Any] = {
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
