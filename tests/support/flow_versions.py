"""Small flow versions to compare."""

from __future__ import annotations

from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, StateDescription

__all__ = ["flow", "operator", "state"]


def state(*results: str) -> StateDescription:
    return StateDescription(
        columns=tuple((result, "int64") for result in results),
        codec="arrow",
        type={result: {"state": [result], "aggregate": {"column": result}} for result in results},
    )


def operator(
    *results: str, formerly: str = "", named: bool = True, key: str = "k"
) -> OperatorVersion:
    return OperatorVersion(
        kind="compute",
        keys=((key, "string"),),
        states={"state": state(*results)},
        formerly=formerly,
        named=named,
    )


def flow(**operators: OperatorVersion) -> FlowVersion:
    return FlowVersion(operators=operators)
