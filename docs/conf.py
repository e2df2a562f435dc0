"""The site: `./run docs` builds it; every warning is an error."""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
from inspect import getdoc, isclass, isfunction, signature
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

import godwit
from godwit.cli.main import parser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
# Where a link to a file of the project leads that is no page of the site.
REPOSITORY = "https://github.com/godwit-streams/godwit"
# Pages outside of `docs`, and their copies: Sphinx takes pages of one directory alone.
COPIES = {
    ROOT / "benchmarks/README.md": ROOT / "docs/lab/benchmarks.md",
    ROOT / "lab/docs": ROOT / "docs/lab",
}

project = "Godwit"
author = "The Godwit developers"
project_copyright = author
release = version = godwit.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Pages are read on code hosts too: links are relative paths, anchors are their slugs of headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # mermaid is drawn by code hosts

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc brings the extension; no page uses it
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = f"Godwit {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/_static/scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "github_url": REPOSITORY,
    "navbar_align": "left",
    "show_nav_level": 1,
    "navigation_depth": 3,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}


def commands(command: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and, in order, those of its commands."""
    yield command
    for action in command._actions:  # noqa: SLF001 (argparse has no public way to its commands)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for choice in action.choices.values():
                yield from commands(choice)


class CommandLine(SphinxDirective):
    """Every command of `godwit` with what its `--help` prints."""

    def run(self) -> list[nodes.Node]:
        """Return one section a command."""
        sections: list[nodes.Node] = []
        for command in commands(parser()):
            section = nodes.section(ids=[nodes.make_id(command.prog)])
            section += nodes.title(text=command.prog)
            section += nodes.literal_block(
                command.format_help(), command.format_help(), language="none"
            )
            sections.append(section)
        return sections


def lead_outside(app: Sphinx, document: str, source: list[str]) -> None:
    """Let links to the project's files that are no pages of the site lead to the repository."""
    page = Path(str(app.env.doc2path(document)))
    origins = (
        path / page.relative_to(copy) for path, copy in COPIES.items() if page.is_relative_to(copy)
    )
    origin = next(origins, page)
    docs = ROOT / "docs"

    def outside(path: str) -> str | None:
        if not path or "://" in path or path.startswith(("#", "mailto:")):
            return None
        name, _, anchor = path.partition("#")
        target = Path(posixpath.normpath(origin.parent / name))
        for path_outside, copy in COPIES.items():
            if target.is_relative_to(path_outside):
                target = copy / target.relative_to(path_outside)
        if target.is_relative_to(docs) and target.is_file():
            return f"{posixpath.relpath(target, page.parent)}{path[len(name) :]}"
        if not target.exists():
            return None  # the build reports what is nowhere
        kind = "tree" if target.is_dir() else "blob"
        url = f"{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        return f"{url}#{anchor}" if anchor else url

    source[0] = _linked(source[0], outside)


def _linked(text: str, outside: Any) -> str:
    """Replace the targets of Markdown links, outside of code, where `outside` has another."""
    parts = text.split("](")
    for number, part in enumerate(parts[1:], start=1):
        path, closed, rest = part.partition(")")
        other = outside(path) if closed and "\n" not in path else None
        if other is not None:
            parts[number] = f"{other}){rest}"
    return "](".join(parts)


def list_members(app: Sphinx, document: str, source: list[str]) -> None:
    """Let every line of a block `{godwit-members}` be an entry of the reference.

    A line is `gw.NAME`, and options of autodoc where a class has any, or `gw.MODULE.*`, for all
    public names of a module.
    """
    del app, document

    def entries(block: re.Match[str]) -> str:
        return "\n\n".join(text for line in block[1].splitlines() for text in entries_of(line))

    def entries_of(line: str) -> Iterator[str]:
        name, _, options = line.removeprefix("gw.").partition(" ")
        module = attrgetter(name.removesuffix(".*"))(godwit) if name.endswith(".*") else None
        if module is None:
            yield entry(name, f":members:\n   {options}")
        else:
            yield from (entry(name.replace("*", member), "") for member in module.__all__)

    def entry(name: str, options: str) -> str:
        member = attrgetter(name)(godwit)
        if isfunction(member):
            kind, options = "function", ""
        elif issubclass(member, Exception):
            kind, options = "exception", ":show-inheritance:"
        else:
            kind = "class"
        directive = f".. auto{kind}:: godwit.{name}\n   {options}"
        return f"## `gw.{name}`\n\n```{{eval-rst}}\n{directive}\n```"

    source[0] = re.sub(r"```\{godwit-members\}\n(.*?)\n```", entries, source[0], flags=re.DOTALL)


def hide_constructor(*event: Any) -> tuple[str, str] | None:
    """Show no constructor whose parameters the docstring does not describe: Godwit calls it."""
    _, kind, _, documented, _, shown, _ = event
    if kind not in {"class", "exception"} or not shown or not isclass(documented):
        return None
    parameters = {name for name in signature(documented).parameters if not name.startswith("_")}
    entries = re.findall(r"^(\S.*)\n    ", getdoc(documented) or "", re.MULTILINE)
    described = {name.strip(" *") for entry in entries for name in entry.split(" : ")[0].split(",")}
    return None if parameters <= described else ("", "")


class TermsInIndex(SphinxTransform):
    """Let a search for a term of the glossary find where a guide or the glossary explains it.

    A guide explains the term that it sets in italics.
    """

    default_priority = 800  # before Sphinx collects the index

    def apply(self, **_: object) -> None:
        """Add index entries in front of the paragraphs that explain terms."""
        page = self.env.docname
        if page == "glossary":
            explained = [
                (term, strong)
                for strong in self.document.findall(nodes.strong)
                for term in strong.astext().split(", ")
            ]
        elif page.startswith("guide/"):
            terms = glossary_terms()
            italic = self.document.findall(nodes.emphasis)
            explained = [(node.astext(), node) for node in italic if node.astext() in terms]
        else:
            return
        for term, node in explained:
            section = next(up for up in ancestors(node) if isinstance(up, nodes.section))
            entry = ("single", term, section["ids"][0], "main", None)
            section.insert(1, addnodes.index(entries=[entry]))


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield what contains a node, from the inside."""
    while node.parent is not None:
        node = node.parent
        yield node


def glossary_terms() -> set[str]:
    """Return the words that the glossary explains."""
    rows = re.findall(r"^- (\*\*.*?): ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    return {term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row)}


def setup(app: Sphinx) -> None:
    """Register what is above."""
    sys.path.insert(0, str(ROOT))
    shutil.rmtree(ROOT / "docs/lab", ignore_errors=True)
    for path, copy in reversed(COPIES.items()):
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy)
    app.add_directive("godwit-commands", CommandLine)
    app.add_transform(TermsInIndex)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("source-read", lead_outside)
    app.connect("source-read", list_members)
