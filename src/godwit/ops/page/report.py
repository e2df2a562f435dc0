"""A report: the live page of a run as one file, with its data in it.

Text of a journal is data in that file and nothing else: it lies in a block that browsers do not
run, in which every character that could end the block is escaped, and the page's policy allows no
script but its own, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER: Final = Path(__file__).parent / "assets"
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_STYLE: Final = '<link rel="stylesheet" href="page.css">'
_SCRIPT: Final = '<script src="page.js" defer></script>'


@cache
def asset(name: str) -> str:
    """Return the content of one of the page's files."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def report_page(values: Mapping[str, Any]) -> str:
    """Return the page as one HTML file with its data; `values`: see `view.report_of`."""
    data = json.dumps(values, allow_nan=False, ensure_ascii=True)
    for char, escaped in _ESCAPED.items():
        data = data.replace(char, escaped)
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    page = asset("page.html")
    page = page.replace(_STYLE, f"{head}<style>{style}</style>")
    page = page.replace(_SCRIPT, "")
    block = f'<script type="application/json" id="report">{data}</script>\n'
    return page.replace("</body>", f"{block}<script>{script}</script>\n</body>")


def _hash(text: str) -> str:
    """Return a text's hash as a content security policy writes it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
