"""Entry points: what other packages add to Godwit, by group and name.

A package adds a planner, a command, a policy, a source, a sink or a format of messages by an entry
point of its distribution, as in ``[project.entry-points."godwit.sinks"]``.  The names are known
without importing anything; an object is imported when it is first used.

An entry point of the group ``godwit.targets`` reads targets that a checkpoint names, without the
flow (`godwit.ops.targets`); its name is that of a file that only such targets have.

Invariant: a name that a package of this project has is answered with that package's name where the
package is not installed.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from godwit.model.errors import PluginError
from godwit.model.naming import NoSuchCallError, no_such_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

Group: TypeAlias = Literal[
    "commands",
    "controllers",
    "formats",
    "keyed_calls",
    "observers",
    "planners",
    "policies",
    "sinks",
    "sources",
    "targets",
]

_OWN: Final = "godwit-streams"
_LAB: Final = "godwit-lab"
_ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "commands": {
        **dict.fromkeys(("checkpoint", "export-state", "adopt", "demo", "top", "ui"), _OWN),
        **dict.fromkeys(("report", "advise", "why", "status", "probe"), _OWN),
        **dict.fromkeys(("run", "drain", "stop"), _OWN),
        **dict.fromkeys(("plan", "sim", "arena", "what-if", "reproduce"), _LAB),
    },
    "keyed_calls": dict.fromkeys(("transform_with_state", "apply_in_pandas_with_state"), _OWN),
    "controllers": {"default": _OWN},
    "observers": dict.fromkeys(("metrics", "page", "opentelemetry", "openlineage"), _OWN),
    "planners": {
        **dict.fromkeys(("milp", "intra_executor"), _OWN),
        **dict.fromkeys(
            (
                *("ssm", "simple_ssm", "oms", "mtm"),
                *("consistent_hashing", "storm_default", "redistribution"),
                *("albic", "flux", "potc", "cola", "elb", "clb", "pkg", "universal_hashing"),
                *("core_allocation", "core_assignment", "naive_core_assignment", "fusion"),
            ),
            _LAB,
        ),
    },
    "policies": dict.fromkeys(("executor_centric", "naive_executor_centric"), _LAB),
    "sources": {"nexmark": _LAB},
}
"""Names of the distributions of this project: group → name → distribution."""
_NO_METADATA: Final = (
    "whose metadata are not installed, or are of an earlier version: Python uses a copy of the "
    "package alone, such as a zip file or a source tree"
)
_INSTALL: Final = f"pip install {_OWN} (of a source tree: pip install --editable .)"


@cache
def _entry_points_by_name(group: Group) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return name → entry points of a group; several only if packages use the same name."""
    from importlib.metadata import entry_points  # noqa: PLC0415  few processes look for packages

    entries: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=f"godwit.{group}"):
        if entry not in entries[entry.name]:
            entries[entry.name].append(entry)
    return {name: tuple(entries[name]) for name in entries}


def names(group: Group) -> tuple[str, ...]:
    """Return the names that installed packages add to a group."""
    return tuple(_entry_points_by_name(group))


def absent(group: Group) -> Mapping[str, str]:
    """Return the names of a group that need a package of this project: name → package to install.

    Only names whose package is not installed.
    """
    known = _entry_points_by_name(group)
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
    entries = _entry_points_by_name(group).get(name, ())
    if not entries:
        package = absent(group).get(name)
        if package is None:
            raise PluginError(f"There is no {what}.", remedy=f"Known: {', '.join(names(group))}.")
        if package == _OWN:
            raise PluginError(
                f"{what} is an entry point of {package}, {_NO_METADATA}.",
                remedy=_INSTALL,
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


def member(
    group: Group,
    module: str,
    name: str,
    known: Iterable[str],
    meant: Mapping[str, str],
    *,
    own_modules: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return what a package has added to a module of users' calls, such as ``gw.sinks``.

    `known`: public names that the module itself has. `meant`: see `no_such_name`. `own_modules`:
    name → module of this distribution that has it, also where no metadata are installed.

    Raises
    ------
    PluginError
        As `load`.
    NoSuchCallError
        If there is no such name. The error suggests another; if the calls of this distribution are
        unknown, since it is not installed, the error says so.
    """
    if name in own_modules:
        return in_district(own_modules[name], name)
    plugin_names = names(group)
    if name in plugin_names or name in absent(group):
        return load(group, name)
    if not (name.startswith("_") or name in meant or _has_own(group)):
        raise NoSuchCallError(
            f"module {module!r} has no attribute {name!r}. Connectors are entry points of {_OWN}, "
            f"{_NO_METADATA}.",
            remedy=_INSTALL,
            call=name,
        )
    calls = [call for call in known if call.islower()]
    raise no_such_name(module, name, sorted([*calls, *plugin_names]), meant)


def in_district(module: str, name: str) -> Any:
    """Import and return what a module of this distribution has that the core does not import.

    `module`: one that no other package would replace, so no metadata have to name it.
    """
    return getattr(import_module(module), name)


def _has_own(group: Group) -> bool:
    """Return whether the metadata of this project's main distribution has entries of a group."""
    entries = [entry for same in _entry_points_by_name(group).values() for entry in same]
    return any(e.dist is not None and e.dist.name.replace("_", "-") == _OWN for e in entries)
