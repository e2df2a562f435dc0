"""The gallery: one page with every figure, the paper's claim beside ours.

The page follows from the results beside it, in ``gallery/``; a figure without one keeps its place,
with the reason.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from godwit_lab.cli.reproduce.command import shown
from godwit_lab.cli.reproduce.figure import Verdict
from godwit_lab.cli.reproduce.running import place_of, read, stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit_lab.cli.reproduce.catalogue import Entry, Paper
    from godwit_lab.cli.reproduce.running import Result

_LARGEST_PICTURE = 60_000
"""Bytes of a picture from which on the page names the command instead of showing it."""

_HEAD = """\
# Gallery: the papers' figures, redrawn

Written by `godwit reproduce --quick --gallery lab/docs`; do not edit it. Each figure is run with
fixed seeds, on the machine at hand: on Spark, in one process, in the [simulator](simulator.md), or
by planners on arrays. Every clause of the paper's claim has a number of the figure's data that
decides it, or stands as *not checked*; a figure agrees only if all clauses hold. Those marked *
decide: without them it does not agree. The papers are in the
[bibliography](../../docs/bibliography.md).

"""


def write(
    directory: Path, out: Path, entries: Sequence[Entry], papers: Mapping[str, Paper]
) -> Path:
    """Put new results and their pictures into a directory's ``gallery``, and write ``gallery.md``.

    Results that are there and were not made again stay. Returns the page's path.
    """
    beside = directory / "gallery"
    beside.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        result = None if entry.reason else stored(out, entry)
        if result is not None:
            bare = replace(result, checks=())  # they follow from the data
            (beside / f"{_name(entry)}.json").write_bytes(msgspec.json.encode(bare) + b"\n")
            picture = place_of(out, entry) / "figure.svg"
            if picture.stat().st_size < _LARGEST_PICTURE:
                shutil.copyfile(picture, beside / f"{_name(entry)}.svg")
            else:
                (beside / f"{_name(entry)}.svg").unlink(missing_ok=True)
    path = directory / "gallery.md"
    path.write_text(page(beside, entries, papers), "utf-8")
    return path


def page(beside: Path, entries: Sequence[Entry], papers: Mapping[str, Paper]) -> str:
    """Return the page of the results and pictures in a directory, each judged by its data."""
    results = {
        entry.name: None if entry.reason else read(beside / f"{_name(entry)}.json", entry)
        for entry in entries
    }
    text = [_HEAD, _totals_text(entries, results), _measured(results)]
    seen: dict[str, str] = {}
    for name, paper in papers.items():
        text.append(f"## {name.capitalize().replace('Paper', 'Paper ')}: {paper.title}\n\n")
        text += [
            _figure_section(entry, results[entry.name], beside, seen)
            for entry in entries
            if entry.paper == name
        ]
    return "".join(text).rstrip() + "\n"


def _name(entry: Entry) -> str:
    """Return the name of a figure's files."""
    return entry.name.replace("/", "-")


def _totals_text(entries: Sequence[Entry], results: Mapping[str, Result | None]) -> str:
    """Return a sentence about how many figures were made, and how many agree."""
    figures = [result for result in results.values() if result is not None]
    parts = [
        f"{sum(result.verdict is verdict for result in figures)} {words}"
        for verdict, words in zip(Verdict, ("agree", "agree partly", "do not agree"), strict=True)
    ]
    missing = sum(bool(entry.reason) for entry in entries)
    checks = [check for result in figures for check in result.checks]
    unchecked = sum(bool(check.unchecked) for check in checks)
    waiting = len(entries) - len(figures) - missing
    text = (
        f"{len(figures)} figures and tables: {', '.join(parts)}. {missing} cannot be redrawn. Of "
        f"{len(checks)} clauses {unchecked} are not checked."
    )
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


def _figure_section(entry: Entry, result: Result | None, beside: Path, seen: dict[str, str]) -> str:
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
    lines += [_picture(entry, beside), ""]
    lines += ["| clause | expected | paper | ours | holds |", "|---|---|---|---|---|"]
    lines += [
        f"| {check.claim}{' *' if check.decisive else ''} | {check.expected} | "
        f"{shown(check.paper, check.unit)} | {shown(check.ours, check.unit)} | "
        f"{'yes' if check.holds else f'**{check.outcome.lower()}**'} |"
        for check in result.checks
    ]
    lines += [
        f"\nNot checked: {check.claim}, since {check.unchecked}."
        for check in result.checks
        if check.unchecked
    ]
    why = f" {_once(figure.reason, entry.name, seen)}" if figure.reason else ""
    lines += ["", f"**{str(result.verdict).capitalize()}.**{why}", ""]
    notes = [note for note in result.notes if seen.setdefault(note, entry.name) == entry.name]
    if not result.scripts:
        notes.append("the data are of an earlier run, of scripts that it does not name.")
    lines += [f"Note: {note}" for note in notes] + ([""] if notes else [])
    return "\n".join(lines) + "\n"


def _once(text: str, name: str, seen: dict[str, str]) -> str:
    """Return a text, or a link to the figure whose section has the same text."""
    first = seen.setdefault(text, name)
    return text if first == name else f"as [{first}](#{first.replace('/', '')})."


def _picture(entry: Entry, beside: Path) -> str:
    """Return the Markdown that shows a picture, or says how to draw it."""
    if (beside / f"{_name(entry)}.svg").exists():
        return f"![{entry.name}](gallery/{_name(entry)}.svg)"
    return f"(The picture is large: `godwit reproduce {entry.name}` draws it.)"
