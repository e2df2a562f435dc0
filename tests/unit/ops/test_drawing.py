"""What notebooks show: a flow as a graph, plans, rows, and nothing that runs."""

from __future__ import annotations

import ast
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import godwit as gw
from godwit.model.text import Link, facts, show, table, text_block

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
EVIL = '<script>alert("x")</script>'


def flow() -> gw.Flow:
    made = gw.Flow("market", num_key_groups=4)
    orders = made.source("orders", gw.testing.stream("symbol string, price double"))
    loop = made.feedback("again", "symbol string, price double")
    totals = (
        orders.map(lambda df: df.select("symbol", "price"))
        .key_by("symbol")
        .compute(name="totals", price=gw.sum("price"))
    )
    both = totals.union(loop).key_by("symbol").compute(name="both", price=gw.max("price"))
    both.feed_back_to(loop)
    made.sink("out", both, gw.sinks.noop())
    return made


def texts(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return [str(node.text) for node in root.iter() if node.tag.endswith("text")]


def test_a_flow_is_drawn_with_all_that_it_has_and_well_formed() -> None:
    markup = flow()._repr_html_()
    svg = markup[markup.index("<svg") : markup.index("</svg>") + 6]
    shown = texts(svg)
    assert {"orders", "again", "totals", "both", "out", "source", "loop", "NoopSink"} <= set(shown)
    assert "1 map" in shown
    assert svg.count("stroke-dasharray") == 1  # what is fed back


def test_columns_follow_the_levels_and_boxes_do_not_lie_on_each_other() -> None:
    markup = flow()._repr_html_()
    root = ET.fromstring(markup[markup.index("<svg") : markup.index("</svg>") + 6])
    boxes = [
        tuple(float(node.attrib[name]) for name in ("x", "y", "width", "height"))
        for node in root.iter()
        if node.tag.endswith("rect")
    ]
    assert len(boxes) == 5
    for i, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, _, _ in boxes[i + 1 :]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_an_empty_flow_is_drawn_too() -> None:
    assert "<svg" in gw.Flow("nothing")._repr_html_()


def test_what_is_shown_is_escaped() -> None:
    for markup in (
        facts(
            EVIL, [(EVIL, EVIL), ("page", Link(f"http://x/{EVIL}")), ("no", Link("javascript:x"))]
        ),
        table(EVIL, [EVIL], [[EVIL]]),
        text_block(EVIL),
    ):
        assert "<script" not in markup
        assert 'href="javascript' not in markup


def test_outside_of_a_notebook_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("the text", "<b>the markup</b>")
    assert capsys.readouterr().out == "the text\n"


def test_in_a_notebook_both_are_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType, SimpleNamespace

    shown: list[Any] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=1)
    vars(display)["display"] = lambda data, raw: shown.append((data, raw))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    flow().explain()
    [(data, raw)] = shown
    assert raw
    assert data["text/plain"].startswith("Flow 'market'")
    assert "<svg" in data["text/html"]


NOTEBOOK = ROOT / "examples" / "first_flow.ipynb"


def run_cell(code: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: the value of its last expression is shown."""
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), namespace)


def test_the_notebook_runs_and_shows_what_it_says() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    namespace: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # they would differ with every run
            value = run_cell("".join(cell["source"]), namespace)
            if value is not None:
                shown.append(getattr(value, "_repr_html_", value.__repr__)())
    assert any("<svg" in text for text in shown)
    assert any("Ada" in text for text in shown)


def test_texts_of_objects_are_short() -> None:
    plain = gw.Flow("plain", num_key_groups=4)
    orders = plain.source("orders", gw.testing.stream("symbol string, price double"))
    totals = orders.key_by("symbol").compute(total=gw.sum("price"))
    plain.sink("totals", totals, gw.sinks.noop())
    played = gw.testing.run(plain, {"orders": [{"symbol": "A", "price": 1.0}]})
    objects = [
        flow(),
        totals,
        gw.migration.even_assignment(8192, [f"executor-{i}" for i in range(40)], [2] * 40),
        played,
        gw.sinks.noop(),
        gw.sinks.memory(),
        gw.sinks.console(),
        gw.sinks.foreach(print),
    ]
    assert [text for text in map(repr, objects) if len(text) > 300 or " at 0x" in text] == []
