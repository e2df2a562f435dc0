"""The gallery: one page with every figure, the paper's claim beside ours.

The page follows from the results beside it, in ``gallery/``; a figure without one keeps its place,
with the reason.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from godwit_lab.cli.reproduce.command import shown
from godwit_lab.cli.reproduce.figure import EVERY_SYSTEM_ACTS, Verdict
from godwit_lab.cli.reproduce.running import place_of, read, stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit_lab.cli.reproduce.catalogue import Entry, Paper
    from godwit_lab.cli.reproduce.figure import Check, Clause
    from godwit_lab.cli.reproduce.running import Result

_LARGEST_PICTURE = 60_000
"""Bytes of a picture from which on the page names the command instead of showing it."""

_HEAD = """\
# Gallery: the papers' figures, redrawn

Written by `godwit reproduce --quick --gallery lab/docs`; do not edit it. Seeds are fixed; times are
of the machine at hand. A figure runs on Spark, in one process, in the [simulator](simulator.md), or
by planners on arrays. Each line is a clause of the paper's claim, with our number and its bound, in
bold if it fails. A figure agrees only if all hold; if one with * fails, it does not agree.
Conditions of ours stand here if they decide or fail; that every compared system acts, only if it
fails. Numbers that decide or fail say what they are; `godwit reproduce NAME` prints all. The
[bibliography](../../docs/bibliography.md) has the papers.

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
    text = [_HEAD, _totals_text(entries, results)]
    earlier = [name for name, result in results.items() if result and not result.scripts]
    if earlier:
        names = ", ".join(earlier)
        text.insert(2, f"Data of earlier runs, of scripts that they do not name: {names}.\n\n")
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


def _figure_section(entry: Entry, result: Result | None, beside: Path, seen: dict[str, str]) -> str:
    """Return the page's section about a figure: title, verdict, workload, picture, clauses.

    ``seen`` maps sentences of earlier sections to the figure that has them first.
    """
    if entry.reason:
        return f"### {entry.name}\n\n{entry.title}. **Not redrawn:** {entry.reason}\n\n"
    figure = entry.load()
    lines = [f"### {entry.name}", "", f"**{figure.title}** ({figure.place})."]
    if result is None:
        workload = _once(figure.workload, entry.name, seen)
        lines += ["", figure.claim, "", f"Here: {workload}"]
        lines += ["", f"**Not run** for this page; `godwit reproduce {entry.name}` runs it.", ""]
        return "\n".join(lines) + "\n"
    why = f" {_once(figure.reason, entry.name, seen)}" if figure.reason else ""
    new = (note for note in result.notes if seen.setdefault(note, entry.name) == entry.name)
    notes = [f"{note[0].upper()}{note[1:]}." for note in new]
    workload = _once(" ".join([figure.workload, *notes]), entry.name, seen)
    lines[-1] += f" **{str(result.verdict).capitalize()}.**{why}"
    lines += ["", f"Here: {workload}", "", _picture(entry, beside)]
    said: dict[str, list[str]] = {}
    for clause, check in zip(figure.clauses, result.checks, strict=True):
        if not (check.holds and _is_left_out(clause)):
            said.setdefault(clause.says, []).append(_number(clause, check))
    return "\n".join(
        [*lines, "", *(f"- {says}: {'; '.join(n)}" for says, n in said.items()), "", ""]
    )


def _is_left_out(clause: Clause) -> bool:
    """Return whether a condition of ours stands on the page only if it fails."""
    return clause.beyond and (not clause.decisive or clause.says == EVERY_SYSTEM_ACTS)


def _number(clause: Clause, check: Check) -> str:
    """Return our number beside its bound, in bold if the condition does not hold.

    If the clause decides or fails, with what the number is.
    """
    if check.unchecked:
        return f"**not checked**: {check.unchecked}"
    star = " *" if check.decisive else ""
    if check.ours is None:
        return f"**no number**{star} ({clause.what})"
    ours, paper = (
        shown(check.ours),
        f"; paper {shown(check.paper)}" if check.paper is not None else "",
    )
    if check.holds:
        meaning = f" * ({clause.what}{paper})" if check.decisive else ""
        return f"{ours} {check.expected}{meaning}"
    opposite = check.expected.replace("≤", ">").replace("≥", "<")
    return f"**{ours} {opposite}**{star} ({clause.what}{paper})"


def _once(text: str, name: str, seen: dict[str, str]) -> str:
    """Return a text in which sentences of earlier sections are links to the first with them."""
    parts: list[str] = []
    for sentence in re.split(r"(?<=\.) ", text):
        first = seen.setdefault(sentence, name)
        link = f"As in [{first}](#{first.replace('/', '')})."
        if first == name or len(sentence) < len(link):
            parts.append(sentence)
        elif parts[-1:] != [link]:
            parts.append(link)
    return " ".join(parts)


def _picture(entry: Entry, beside: Path) -> str:
    """Return the Markdown that shows a picture, or says how to draw it."""
    if (beside / f"{_name(entry)}.svg").exists():
        return f"![{entry.name}](gallery/{_name(entry)}.svg)"
    return f"(The picture is large: `godwit reproduce {entry.name}` draws it.)"
