"""The gallery that is kept: its page follows from its data, and every clause can fail.

The data lie beside the page, in ``lab/docs/gallery``; nothing is run here.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from godwit_lab.cli.reproduce import catalogue, gallery
from godwit_lab.cli.reproduce.figure import Data, Verdict, verdict_of
from godwit_lab.cli.reproduce.running import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit_lab.cli.reproduce.catalogue import Entry
    from godwit_lab.cli.reproduce.figure import Row

DOCS = Path(__file__).parents[4] / "docs"
ENTRIES = [entry for entry in catalogue.entries() if not entry.reason]
RUN = [e for e in ENTRIES if (DOCS / "gallery" / f"{e.name.replace('/', '-')}.json").exists()]
FACTORS = (0.0, 1e-3, 1e3, -1.0)


def data_of(entry: Entry) -> Data:
    result = read(DOCS / "gallery" / f"{entry.name.replace('/', '-')}.json", entry)
    assert result is not None
    return result.table


def mutations(data: Data) -> Iterator[list[Row]]:
    """Give the data with a column multiplied, turned round or drawn out, of all rows or of some."""
    rows = data.rows
    numbers = [
        name
        for name, values in data.columns.items()
        if any(isinstance(value, float | int) for value in values)
    ]
    some: list[tuple[str, object]] = [("", None)]
    for name in data.columns:
        values = data.values(name)
        some += [(name, value) for value in values] if len(values) <= 16 else []
    for column, (name, value) in product(numbers, some):
        if column == name:
            continue
        places = [
            n
            for n, row in enumerate(rows)
            if column in row and (not name or row.get(name) == value)
        ]
        for factor in FACTORS:
            yield _put(rows, column, {n: factor * float(rows[n][column]) for n in places})
        back = dict(zip(places, (float(rows[n][column]) for n in reversed(places)), strict=True))
        yield _put(rows, column, back)
        for base in (1000.0, 0.1):
            yield _put(rows, column, {n: base**place for place, n in enumerate(places[:40])})
        yield _put(rows, column, dict.fromkeys(places[len(places) // 2 :: 7], 1000.0))


def _put(rows: list[Row], column: str, values: dict[int, float]) -> list[Row]:
    return [{**row, column: values[n]} if n in values else row for n, row in enumerate(rows)]


def test_the_page_and_its_verdicts_are_those_of_the_data() -> None:
    page = gallery.page(DOCS / "gallery", catalogue.entries(), catalogue.papers())
    assert (DOCS / "gallery.md").read_text("utf-8") == page, "godwit reproduce --gallery writes it"
    assert len(RUN) > len(ENTRIES) / 2


@pytest.mark.parametrize("entry", RUN, ids=lambda entry: entry.name)
def test_every_clause_can_fail_and_can_hold(entry: Entry) -> None:
    data = data_of(entry)
    left = {
        clause: clause.check(data).holds for clause in entry.load().clauses if not clause.unchecked
    }
    for rows in mutations(data):
        changed = Data(rows)
        left = {
            clause: holds for clause, holds in left.items() if clause.check(changed).holds is holds
        }
        if not left:
            return
    pytest.fail(f"nothing changes {[(clause.says, clause.what) for clause in left]}")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_claim_is_said_by_clauses_of_which_each_is_decided_or_says_why_not(entry: Entry) -> None:
    for clause in entry.load().clauses:
        assert (clause.number is None) is bool(clause.unchecked)
        assert clause.what or clause.unchecked
        assert not clause.says.endswith(".")
    assert any(not clause.beyond for clause in entry.load().clauses)


def test_no_figure_agrees_without_data() -> None:
    for entry in ENTRIES:
        checks = entry.load().judge(Data([]))
        assert not any(check.holds for check in checks)
        assert verdict_of(checks) is Verdict.DISAGREES


def test_a_section_marks_conditions_that_fail_and_says_each_text_once() -> None:
    text = (DOCS / "gallery.md").read_text("utf-8")
    sections = dict(
        zip(*[iter(re.split(r"^### (.*)\n", text, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    for entry in RUN:
        bold = re.findall(r"\*\*[^*]* [<>] [^*]*\*\*", sections[entry.name])
        checks = entry.load().judge(data_of(entry))
        assert len(bold) == sum(not (check.holds or check.unchecked) for check in checks)
    workloads = [f"Here: {entry.load().workload.split('. ')[0]}" for entry in RUN]
    repeated = {each for each in workloads if workloads.count(each) > 1 and len(each) > 60}
    assert repeated
    assert all(text.count(each) == 1 for each in repeated)
    assert "Here: As in [paper5/figure6](#paper5figure6). ω = 2." in text
