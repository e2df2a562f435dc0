"""``gw.explain(df)``: how, and where, each node of Spark's plan runs in Godwit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.adopt.plan import analysed, children_of, kind_of
from godwit.adopt.translate import is_stateful, translate
from godwit.adopt.writer import check_streaming
from godwit.model.errors import UnsupportedQueryError
from godwit.model.frames import user_call
from godwit.model.text import show, text_block

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATELESS = "Spark SQL, in the micro-batch"
_ABOVE = "Spark SQL, over the rows of a batch, at delivery"


@user_call
def explain(dataframe: DataFrame, *, mode: str = "append") -> None:
    """Print the plan of a streaming DataFrame, with how each node runs in Godwit.

    Parameters
    ----------
    dataframe
        Any streaming DataFrame of a classic Spark session.
    mode
        Spark's output mode: ``"append"``, ``"update"`` or ``"complete"``.

    Examples
    --------
    >>> gw.explain(counts, mode="update")  # doctest: +SKIP
    >>> try:
    ...     gw.explain("in/")
    ... except gw.errors.UnsupportedQueryError as error:
    ...     print(error.message)
    A value of type str is not a DataFrame.
    """
    check_streaming(dataframe)
    text = explained(dataframe, mode=mode)
    show(text, text_block(text))


def explained(dataframe: DataFrame, *, mode: str) -> str:
    """Return the nodes of a plan, and how each of them runs, as text."""
    plan = analysed(dataframe)
    missing = ""
    try:
        flow = translate(dataframe, mode=mode, name="adopted").flow
        actions = [f"operator {node.name!r}: {node.action}" for node in flow.operators]  # type: ignore[union-attr]
    except UnsupportedQueryError as error:
        missing, actions = str(error), []
    if not missing:
        actions += _own_sources(dataframe, mode=mode)
    lines: list[tuple[str, str]] = []
    _describe_subtree(plan, 0, lines, mode)
    width = min(60, max(len(node) for node, _ in lines))
    table = [f"{node[:width]:<{width}}  {how}" for node, how in lines]
    return "\n".join([*table, *actions, *(["missing: " + missing] if missing else [])])


def _own_sources(dataframe: DataFrame, *, mode: str) -> list[str]:
    """Return the sources that ``own_sources()`` would read, or why there are none."""
    try:
        flow = translate(dataframe, mode=mode, name="adopted", own_sources=True).flow
    except UnsupportedQueryError as error:
        return [f"own_sources(): not possible: {error.message}"]
    return [
        f"own_sources(): would read {source.identity}, in the lanes"
        for source in flow.own_sources.values()
    ]


def _describe_subtree(node: Any, depth: int, lines: list[tuple[str, str]], mode: str) -> None:
    """Add the line of a node, and those of the nodes below it."""
    is_own = is_stateful(node, mode)
    is_above_own = any(is_stateful(part, mode) for part in _descendants(node))
    where_run = (
        "operator of the flow, in the lanes" if is_own else _ABOVE if is_above_own else _STATELESS
    )
    if kind_of(node) == "EventTimeWatermark":
        where_run = "event time of the flow's source"
    elif kind_of(node).startswith("StreamingRelation"):
        where_run = "streaming DataFrame, read by Spark"
    text = " ".join(str(node.simpleString(80)).split()).removeprefix("~")
    lines.append(("  " * depth + text, where_run))
    for child in children_of(node):
        _describe_subtree(child, depth + 1, lines, mode)


def _descendants(node: Any) -> list[Any]:
    """Return all nodes below a node."""
    return [part for child in children_of(node) for part in (child, *_descendants(child))]
