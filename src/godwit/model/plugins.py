"""Entry points: what other packages add to Godwit, by group and name.

A package adds a planner, a command, a policy or a source by an entry point of its distribution, as
in ``[project.entry-points."godwit.planners"]``.  The names are known without importing anything; an
object is imported when it is first used.

Invariant: a name that a package of this project has is answered with that package's name where the
package is not installed.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from godwit.model.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

Group: TypeAlias = Literal["commands", "observers", "planners", "policies", "sources", "sinks"]

_OWN: Final = "godwit-streams"
_LAB: Final = "godwit-lab"
_ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "commands": {
        **dict.fromkeys(("demo", "top", "ui", "report", "advise"), _OWN),
        **dict.fromkeys(("plan", "sim", "what-if", "reproduce"), _LAB),
    },
    "observers": dict.fromkeys(("metrics", "page"), _OWN),
    "planners": dict.fromkeys(
        (
            *("ssm", "simple_ssm", "oms", "mtm"),
            *("consistent_hashing", "storm_default", "redistribution"),
            *("albic", "flux", "potc", "cola", "elb", "clb", "pkg", "universal_hashing"),
            *("core_allocation", "core_assignment", "naive_core_assignment", "fusion"),
        ),
        _LAB,
    ),
    "policies": dict.fromkeys(("executor_centric", "naive_executor_centric"), _LAB),
    "sources": {"nexmark": _LAB},
}
"""Names of the distributions of this project: group → name → distribution."""


@cache
def _entries(group: Group) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return name → entry points of a group; several only if packages use the same name."""
    entries: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=f"godwit.{group}"):
        if entry not in entries[entry.name]:
            entries[entry.name].append(entry)
    return {name: tuple(entries[name]) for name in entries}


def names(group: Group) -> tuple[str, ...]:
    """Return the names that installed packages add to a group."""
    return tuple(_entries(group))


def absent(group: Group) -> Mapping[str, str]:
    """Return the names of a group that need a package of this project: name → package to install.

    Only names whose package is not installed.
    """
    known = _entries(group)
    return {n: package for n, package in _ELSEWHERE.get(group, {}).items() if n not in known}


@cache
def load(group: Group, name: str) -> Any:
    """Import and return what a package has added under a name.

    Raises
    ------
    PluginError
        If no package has added it (the error names the package of this project that would), several
        have, or it cannot be imported.
    """
    what = f"{group.removesuffix('s') if group != 'policies' else 'policy'} {name!r}"
    entries = _entries(group).get(name, ())
    if not entries:
        package = absent(group).get(name)
        if package is None:
            raise PluginError(f"There is no {what}.", remedy=f"Known: {', '.join(names(group))}.")
        if package == _OWN:
            raise PluginError(
                f"{what} is an entry point of {package}, whose metadata are not installed: Python "
                "uses a copy of the package alone, such as a zip file or a source tree.",
                remedy=f"pip install {package} (of a source tree: pip install --editable .)",
                package=package,
            )
        raise PluginError(
            f"{what} comes with {package}, which is not installed.",
            remedy=f"pip install {package}",
            package=package,
        )
    packages = sorted({entry.dist.name if entry.dist else "?" for entry in entries})
    if len(entries) > 1:
        raise PluginError(
            f"{what} is in several packages: {', '.join(packages)}.",
            remedy="Uninstall all but one.",
            packages=packages,
        )
    try:
        return entries[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{what} of the package {packages[0]} cannot be imported: {error}.",
            remedy=f"Install {packages[0]} again, in a version for this version of Godwit.",
            package=packages[0],
        ) from error
