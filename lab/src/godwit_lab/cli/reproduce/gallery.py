"""The gallery: one page with every figure, the paper's claim beside ours.

Written from the results that are there; a figure without one keeps its place, with the reason.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError
from godwit.model.text import counted
from godwit_lab.cli.reproduce.command import shown
from godwit_lab.cli.reproduce.figure import Verdict
from godwit_lab.cli.reproduce.running import place_of, stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit_lab.cli.reproduce.catalogue import Entry, Paper
    from godwit_lab.cli.reproduce.running import Result

_LARGEST_PICTURE = 60_000
"""Bytes of a picture from which on the page names the command instead of showing it."""

_CHECKS = "| check | expected | paper | ours | holds |"

_HEAD = """\
# Gallery: the papers' figures, redrawn

Written by `godwit reproduce --quick --gallery lab/docs`; do not edit it. Each figure is run with
fixed seeds, on the machine at hand: on Spark, in one process, in the [simulator](simulator.md), or
by the planners alone. A verdict follows from checks that can fail; those marked * decide. The
papers are in the [bibliography](../../docs/bibliography.md).

"""


def write(
    directory: Path, out: Path, entries: Sequence[Entry], papers: Mapping[str, Paper]
) -> Path:
    """Write ``gallery.md`` and its pictures to a directory, and return the page's path.

    Raises `GodwitError` if the existing page has results that `out` does not have.
    """
    results = {entry.name: stored(out, entry) for entry in entries}
    path = directory / "gallery.md"
    lost = [name for name in _with_results(path) if name in results and results[name] is None]
    if lost:
        raise GodwitError(
            f"{path} has results of {counted(len(lost), 'figure')} that {out} has none of, such as "
            f"{lost[0]}; they would be lost.",
            remedy="Run all figures (godwit reproduce --quick --gallery ...), or write the page "
            "into another directory.",
            path=str(path),
        )
    pictures = directory / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    text = [_HEAD, _totals_text(entries, results), _measured(results)]
    seen: dict[str, str] = {}
    for name, paper in papers.items():
        text.append(f"## {name.capitalize().replace('Paper', 'Paper ')}: {paper.title}\n\n")
        text += [
            _figure_section(entry, results[entry.name], out, pictures, seen)
            for entry in entries
            if entry.paper == name
        ]
    path.write_text("".join(text).rstrip() + "\n", "utf-8")
    return path


def _with_results(page: Path) -> list[str]:
    """Return the names of a page's figures that have results."""
    if not page.exists():
        return []
    sections = page.read_text("utf-8").split("\n### ")[1:]
    return [section.partition("\n")[0] for section in sections if _CHECKS in section]


def _totals_text(entries: Sequence[Entry], results: Mapping[str, Result | None]) -> str:
    """Return a sentence about how many figures were made, and how many agree."""
    figures = [result for result in results.values() if result is not None]
    parts = [
        f"{sum(result.verdict is verdict for result in figures)} {words}"
        for verdict, words in zip(Verdict, ("agree", "agree partly", "do not agree"), strict=True)
    ]
    missing = sum(bool(entry.reason) for entry in entries)
    waiting = len(entries) - len(figures) - missing
    text = f"{len(figures)} figures and tables: {', '.join(parts)}. {missing} cannot be redrawn."
    return text + (f" {waiting} were not run for this page.\n\n" if waiting else "\n\n")


def _measured(results: Mapping[str, Result | None]) -> str:
    """Return a table of the numbers that the papers give, and ours."""
    lines = ["| number | figure | paper | ours | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {check.measure} | [{name}](#{name.replace('/', '')}) | "
        f"{shown(check.paper, check.unit) or 'a figure only'} | {shown(check.ours, check.unit)} | "
        f"{shown(check.ratio)} |"
        for name, result in results.items()
        if result is not None
        for check in result.checks
        if check.measure
    ]
    return "## Numbers that the papers give\n\n" + "\n".join(lines) + "\n\n"


def _figure_section(
    entry: Entry, result: Result | None, out: Path, pictures: Path, seen: dict[str, str]
) -> str:
    """Return the page's section about a figure: title, picture, checks, verdict.

    ``seen`` maps texts of earlier sections to the figure that has them first.
    """
    if entry.reason:
        return f"### {entry.name}\n\n{entry.title}. **Not redrawn:** {entry.reason}\n\n"
    figure = entry.load()
    lines = [f"### {entry.name}", "", f"**{figure.title}** ({figure.place}).", ""]
    lines += [f"Paper: {_once(figure.claim, entry.name, seen)}", ""]
    lines += [f"Here: {_once(figure.workload, entry.name, seen)}", ""]
    if result is None:
        command = f"godwit reproduce {entry.name}"
        lines += [f"**Not run** for this page; `{command}` runs it.", ""]
        return "\n".join(lines) + "\n"
    lines += [_picture(entry, out, pictures), ""]
    lines += [_CHECKS, "|---|---|---|---|---|"]
    lines += [
        f"| {check.claim}{' *' if check.decisive else ''} | {check.expected} | "
        f"{shown(check.paper, check.unit)} | {shown(check.ours, check.unit)} | "
        f"{'yes' if check.holds else '**no**'} |"
        for check in result.checks
    ]
    why = f" {_once(figure.reason, entry.name, seen)}" if figure.reason else ""
    lines += ["", f"**{str(result.verdict).capitalize()}.**{why}", ""]
    notes = [note for note in result.notes if seen.setdefault(note, entry.name) == entry.name]
    lines += [f"Note: {note}" for note in notes] + ([""] if notes else [])
    return "\n".join(lines) + "\n"


def _once(text: str, name: str, seen: dict[str, str]) -> str:
    """Return a text, or a link to the figure whose section has the same text."""
    first = seen.setdefault(text, name)
    return text if first == name else f"as [{first}](#{first.replace('/', '')})."


def _picture(entry: Entry, out: Path, pictures: Path) -> str:
    """Copy the picture next to the page if it is small; return the Markdown that shows it."""
    drawn = place_of(out, entry) / "figure.svg"
    if not drawn.exists() or drawn.stat().st_size >= _LARGEST_PICTURE:
        return f"(The picture is large: `godwit reproduce {entry.name}` draws it.)"
    name = entry.name.replace("/", "-") + ".svg"
    shutil.copyfile(drawn, pictures / name)
    return f"![{entry.name}](gallery/{name})"
