"""Files that a figure's result depends on: its script, and what that imports, by its text.

A result stays valid while none of them changes.  Imports for type checkers alone do not count.  A
module that imports others by name at run time, as packages with late imports do, counts with
everything in its package.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import godwit
import godwit_lab
from godwit import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

_BY_NAME = ("import_module", "importlib.import_module")

Roots = tuple[tuple[str, Path], ...]
"""Name of a package at the top → its directory."""


def digest(script: Path) -> str:
    """Return a digest of a script of ``experiments/paperN`` and of all that it imports."""
    checkout = Path(godwit_lab.__file__).parents[3]
    roots = (
        ("godwit", Path(godwit.__file__).parent),
        ("godwit_lab", Path(godwit_lab.__file__).parent),
        *((name, checkout / name) for name in ("benchmarks", "tests")),
    )
    hashed = hashlib.sha256(__version__.encode())
    for file in sorted(find_files(script, roots)):
        hashed.update(_hash_file(file))
    return hashed.hexdigest()[:16]


def find_files(script: Path, roots: Roots) -> set[Path]:
    """Return a script, the modules of `roots` that it imports, and data files beside these."""
    files, waiting = set[Path](), {script}
    while waiting:
        module = waiting.pop()
        files.add(module)
        waiting |= _find_imports(module, roots) - files
    return files | {data for folder in {f.parent for f in files} for data in folder.glob("*.json")}


@cache
def _hash_file(file: Path) -> bytes:
    """Return the hash of a file's content; cached."""
    return hashlib.sha256(file.read_bytes()).digest()


@cache
def _find_imports(module: Path, roots: Roots) -> frozenset[Path]:
    """Return the files of `roots` that a module imports directly."""
    tree = ast.parse(module.read_bytes())
    files: set[Path] = set()
    for node in _walk_runtime_nodes(tree):
        if isinstance(node, ast.Import):
            files |= {file for name in node.names if (file := _find_module_file(name.name, roots))}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                file = _find_module_file(f"{node.module}.{name.name}", roots)
                file = file or _find_module_file(node.module, roots)
                files |= {file} if file else set()
        elif isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in _BY_NAME:
            files |= set(module.parent.rglob("*.py"))
    return frozenset(files)


def _walk_runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree without imports for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _walk_runtime_nodes(child)


def _find_module_file(name: str, roots: Roots) -> Path | None:
    """Return the file of a module; ``None`` if it is not one of `roots`."""
    top, *rest = name.split(".")
    for root, folder in roots:
        if root == top:
            place = folder.joinpath(*rest)
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if rest and file.is_file():
                    return file
            return folder / "__init__.py" if not rest else None
    return None
