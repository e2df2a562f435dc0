"""Catalogue of the papers' figures: those that scripts define, and those that cannot be redrawn.

A script is imported when its figure is asked for: ``papers`` imports this module.
"""

from __future__ import annotations

import difflib
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError
from godwit_lab import experiments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit_lab.cli.reproduce.figure import Figure

_KINDS = ("figure", "table")
_FIGURES = re.compile(r"^@figure\(.*?^def (\w+)|^(figure\d+) = ", re.DOTALL | re.MULTILINE)
"""Names of the figures in the text of a script, which is not imported for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """One of the papers, as a reader finds it."""

    title: str
    short: str  # name that docs use
    authors: str
    venue: str
    # figures without a script: name → title and the reason
    missing: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A figure of the catalogue, with a script or with the reason why there is none."""

    name: str  # such as paper1/figure12
    module: str = ""  # of the package of scripts, such as paper1.migrations
    reason: str = ""  # why it cannot be redrawn; empty: there is a script
    title: str = ""  # of one that cannot

    @property
    def paper(self) -> str:
        """Name of the figure's paper."""
        return self.name.partition("/")[0]

    @property
    def script(self) -> Path:
        """Path of the script that makes the figure."""
        return home() / f"{self.module.replace('.', '/')}.py"

    def load(self) -> Figure:
        """Import the figure's script, and return the figure."""
        module = importlib.import_module(f"{experiments.__name__}.{self.module}")
        figure: Figure = getattr(module, self.name.partition("/")[2])
        return figure

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: by paper, figures before tables before others, by number."""
        paper, _, name = self.name.partition("/")
        kind, number = _split(name)
        rank = _KINDS.index(kind) if kind in _KINDS else len(_KINDS)
        return paper, rank, number, name


def home() -> Path:
    """Return the directory with the scripts."""
    return Path(experiments.__file__).parent


def papers() -> Mapping[str, Paper]:
    """Return the papers by name, ``paper1`` to ``paper5``."""
    scripts: Mapping[str, Paper] = importlib.import_module(f"{experiments.__name__}.papers").PAPERS
    return scripts


def entries() -> tuple[Entry, ...]:
    """Return the entries of all figures, paper by paper."""
    figures = []
    for name, paper in papers().items():
        figures += [
            Entry(name=f"{name}/{missing}", title=title, reason=reason)
            for missing, (title, reason) in paper.missing.items()
        ]
        figures += [
            Entry(name=f"{name}/{function or other}", module=f"{name}.{script.stem}")
            for script in (home() / name).glob("*.py")
            for function, other in _FIGURES.findall(script.read_text("utf-8"))
        ]
    return tuple(sorted(figures, key=lambda entry: entry.order))


def choose(asked: Sequence[str]) -> tuple[Entry, ...]:
    """Return the figures that a user asked for; all of them if `asked` is empty.

    A figure is asked for as ``paper1/figure12`` or ``1/12``, all of a paper as ``paper1`` or ``1``.
    Raises `GodwitError`, with similar names, if there is no such figure.
    """
    every = entries()
    chosen: dict[str, Entry] = {}
    for wish in asked or sorted({entry.paper for entry in every}):
        name = _full(wish)
        matches = [entry for entry in every if name in (entry.name, entry.paper)]
        if not matches:
            names = [entry.name for entry in every]
            near = difflib.get_close_matches(name, [*names, *papers()], 3, 0.5)
            raise GodwitError(
                f"There is no figure {wish!r}.",
                remedy=(f"Nearest: {', '.join(near)}. " if near else "")
                + "`godwit reproduce --list` shows all.",
                figure=wish,
            )
        chosen.update({entry.name: entry for entry in matches})
    return tuple(sorted(chosen.values(), key=lambda entry: entry.order))


def _full(wish: str) -> str:
    """Return the full name of a figure that the user named: ``1/12`` is ``paper1/figure12``."""
    paper, _, name = wish.strip().strip("/").lower().partition("/")
    paper = f"paper{paper}" if paper.isdigit() else paper
    name = f"figure{name}" if name.isdigit() else name
    return f"{paper}/{name}" if name else paper


def _split(name: str) -> tuple[str, int]:
    """Return kind and number of a figure, from its name."""
    match = re.fullmatch(r"([a-z_]+?)_?(\d+)", name)
    return (match[1], int(match[2])) if match else (name, 0)
