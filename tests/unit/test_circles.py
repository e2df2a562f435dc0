"""Modules do not import one another in circles."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import godwit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(godwit.__file__).parent
# Each of them names the other in annotations; this list may only become shorter.
ANNOTATED = [
    {"api.flow", "api.streams"},
    {"migration.coordinator", "migration.protocol", "migration.regrouping"},
]


def imported(nodes: Iterable[ast.AST], *, annotations: bool) -> Iterator[str]:
    """Yield the names that a module imports while it is loaded; `annotations`: for types, too."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(node.body if annotations else node.orelse, annotations=annotations)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(ast.iter_child_nodes(node), annotations=annotations)


def circles(*, annotations: bool) -> list[set[str]]:
    """Return the groups of modules that import one another, directly or by others."""
    paths = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in ROOT.rglob("*.py")}
    reached: dict[str, set[str]] = {module: set() for module in paths}
    for module, path in paths.items():
        for name in imported([ast.parse(path.read_text())], annotations=annotations):
            if not name.startswith("godwit."):
                continue  # `types` of Python, say
            inner = name.removeprefix("godwit.")
            room = inner.rpartition(".")[0]
            known = (inner, f"{inner}.__init__", room, f"{room}.__init__")
            reached[module] |= {*[n for n in known if n in paths][:1]} - {module}
    while True:
        further = {m: {*near}.union(*(reached[n] for n in near)) for m, near in reached.items()}
        if further == reached:
            break
        reached = further
    groups = {frozenset(o for o in near if m in reached[o]) for m, near in reached.items()}
    return sorted(({*group} for group in groups if group), key=sorted)


def test_no_modules_import_one_another_when_they_are_loaded() -> None:
    assert circles(annotations=False) == []


def test_no_further_modules_name_one_another_in_annotations() -> None:
    assert circles(annotations=True) == ANNOTATED
