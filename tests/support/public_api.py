"""What users call: public names, their methods and properties, and the examples of all these."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import godwit as gw
from godwit.ops.query_state import QueryState, QueryStates
from godwit.runtime.hot_keys import QueryHotKeys
from godwit.runtime.placement import QueryPlacement
from godwit.runtime.regrouping import PendingRegrouping, QueryComponents
from godwit.runtime.scaling import QueryScaling, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CALLED_BY_AN_EPOCH",
    "OBJECTS",
    "OF_A_QUERY",
    "example_of",
    "lines_of",
    "members_of",
    "mistakes_of",
    "needs_example",
]

ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Text, and a name for Any.
_NO_OBJECTS = {"godwit.__version__", "godwit.sources.Position"}
# A query has these; nobody imports them.
OF_A_QUERY: dict[str, type[Any]] = {
    f"{of.__module__}.{of.__name__}": of
    for of in (
        QueryPlacement,
        QueryScaling,
        Scaling,
        QueryComponents,
        PendingRegrouping,
        QueryHotKeys,
        QueryState,
        QueryStates,
    )
}
# Their arguments are an epoch's, which nobody makes: the example of the class shows them.
CALLED_BY_AN_EPOCH = {
    *(
        f"godwit.sinks.EpochOutput.{name}"
        for name in dir(gw.sinks.EpochOutput)
        if not name.startswith("_")
    ),
    *(
        f"godwit.sinks.{of}.{name}"
        for of in ("Sink", "MemorySink")
        for name in ("open", "deliver", "roll_back", "continue_after")
    ),
}


def _public() -> Iterator[tuple[str, Any]]:
    """Yield the names that users import, with what they are."""
    for name in dir(gw):
        value = getattr(gw, name)
        if inspect.ismodule(value):
            connectors = [n for n in dir(value) if _is_of_connector(getattr(value, n))]
            for member in (*value.__all__, *connectors):
                yield f"godwit.{name}.{member}", getattr(value, member)
        else:
            yield f"godwit.{name}", value


def _is_of_connector(value: object) -> bool:
    """Return whether a call is one that a district of this project adds to a module."""
    return str(getattr(value, "__module__", "")).startswith(("godwit.connect.", "godwit.adopt."))


OBJECTS = {name: value for name, value in _public() if name not in _NO_OBJECTS} | OF_A_QUERY


def members_of(name: str) -> dict[str, Any]:
    """Return the public methods and properties of a class, by name; those of others left out."""
    of = OBJECTS[name]
    if not inspect.isclass(of):
        return {}
    found = {}
    for member in dir(of):
        static = inspect.getattr_static(of, member)
        if isinstance(static, property):
            static = static.fget
        elif isinstance(static, classmethod | staticmethod):
            static = static.__func__
        ours = str(getattr(static, "__module__", "")).partition(".")[0] == "godwit"
        if inspect.isfunction(static) and ours and not member.startswith("_"):
            found[f"{name}.{member}"] = getattr(of, member)
    return found


def needs_example(value: object) -> bool:
    """Return whether the docstring of an object shows an example: those of most events do not."""
    return not inspect.isclass(value) or not issubclass(value, gw.events.Event)


def example_of(name: str, value: Any) -> doctest.DocTest | None:
    """Return the examples of the docstring of an object or member; ``None`` if it has none."""
    text = inspect.getdoc(value) or ""
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    return found if found.examples else None


def lines_of(page: str) -> Any:
    """Return the lines that a page of the reference asks to run before its examples."""
    path = ROOT / "docs/reference" / page
    [block] = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    return compile(block, str(path), "exec")


def mistakes_of(example: doctest.DocTest, namespace: dict[str, Any]) -> str:
    """Run examples; return what they did instead of what they say."""
    said: list[str] = []
    example.globs = namespace
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append, clear_globs=False)
    return "".join(said)
