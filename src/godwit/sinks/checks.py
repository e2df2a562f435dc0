"""Checks of a flow before it runs: the places that it reads and writes, and its sinks.

A sink within the directory of a source feeds its results to the source; after some epochs, or at
the next start.  A target within another target, or in the checkpoint, is taken for a part of it.
All of that is seen by names alone, before anything is created: `check_places` is asked by
``flow.explain``, ``flow.start`` and `godwit.testing`.

Directories are compared by their canonical paths: absolute, without links, ``file:`` and a slash at
the end, and without the difference of upper and lower case where the file system makes none.

``flow.explain`` and `godwit.testing` also check the configuration of sinks
(`check_columns_of_sinks`), and their unchanged targets (`try_sink`).  A start opens the sinks
(`godwit.engine.outputs`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from godwit.model.errors import CheckpointError, GodwitError, InvalidFlowError, SinkError
from godwit.model.locations import check_location, spelled_location
from godwit.model.naming import type_name
from godwit.plan.compiled import is_whole_result
from godwit.sinks.file_systems import destination_of, place_of
from godwit.sinks.sink import SinkContext
from godwit.sinks.target_sink import RESERVED_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.plan.compiled import CompiledFlow, SinkOutput
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import Views


_Kind: TypeAlias = Literal["source", "sink", "checkpoint"]

_WRITTEN: Final = {  # names of files, as examples
    "sink": ("epoch=0/part-00000.parquet", "part-00000.parquet"),
    "checkpoint": ("commits/0", "0.json", "0.arrow"),
}
_EFFECTS: Final[dict[tuple[_Kind, _Kind], str]] = {
    ("sink", "source"): "the source would read the results",
    ("source", "sink"): "the source would read the results",
    ("sink", "sink"): "one would take the files of the other for its own",
    ("checkpoint", "source"): "the source would read the checkpoint",
    ("source", "checkpoint"): "files that are not of the checkpoint do not belong there",
    ("checkpoint", "sink"): "readers of the results would read the checkpoint",
    ("sink", "checkpoint"): "files that are not of the checkpoint do not belong there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Directory or table, and who uses it."""

    kind: _Kind
    name: str  # of the source or sink
    place: str  # path or URI of a directory, or the text that identifies a table
    identity: str  # the same for all ways to write the place
    # names of files that it may get, as examples
    writes: tuple[str, ...] = ()
    shares: bool = False  # whether several sinks may write to it
    reserved: Collection[str] = ()  # names in the directory that are the sink's own
    # whether a source of this directory reads a file, by its path within it
    reads: Callable[[str], bool] = lambda _: True

    def __str__(self) -> str:
        return "the checkpoint" if not self.name else f"{self.kind} {self.name!r}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The directory's path in parts; of a table one part."""
        if self.identity.startswith("/"):
            return Path(os.path.realpath(self.identity)).parts
        scheme = re.match(r"[a-z][a-z0-9+.-]*://", self.identity)
        if scheme is None:
            return (self.identity,)
        path, _, query = self.identity.partition("?")
        first, *others = path[scheme.end() :].split("/")
        return (f"{scheme[0]}{first}?{query}", *(part for part in others if part))


class ReadDirectory(Protocol):
    """Directory that a source reads."""

    @property
    def location(self) -> str | None:
        """Path or URI of the directory; ``None`` if it is unknown."""

    def reads(self, path: str) -> bool:
        """Return whether the source reads a file, by its path within the directory."""


def check_places(
    flow: CompiledFlow,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    read: Mapping[str, Sequence[ReadDirectory]] = MappingProxyType({}),
) -> None:
    """Raise `InvalidFlowError` if places of a flow overlap; `checkpoint`: where it is to lie.

    `read`: source that is a DataFrame → directories that it reads, as far as they are known.
    """
    places = [*_of_sources(flow, read), *_of_sinks(flow)]
    if checkpoint is not None:
        check_location(checkpoint, CheckpointError)
        path = spelled_location(os.fspath(checkpoint), error=CheckpointError)
        destination = destination_of(path)
        places.append(
            _Place(
                kind="checkpoint",
                name="",
                place=destination,
                identity=place_of(destination),
                writes=_WRITTEN["checkpoint"],
            )
        )
    for number, place in enumerate(places):
        for other in places[:number]:
            _check_pair(place, other, flow.name)


def _of_sources(
    flow: CompiledFlow, read: Mapping[str, Sequence[ReadDirectory]]
) -> Iterator[_Place]:
    """Yield the directories of sources, as far as they are known; `read`: see `check_places`."""
    directories_of_source: dict[str, list[ReadDirectory | None]] = {}
    for name, source in flow.own_sources.items():
        parts = getattr(source, "parts", (source,))  # of a sequence
        directories_of_source[name] = [getattr(part, "directory", None) for part in parts]
        for place in dict.fromkeys(
            place for part in parts for place in getattr(part, "places", ())
        ):
            yield _Place(kind="source", name=name, place=place, identity=place)
    for name, directories in [*directories_of_source.items(), *read.items()]:
        for directory in directories:
            if directory is not None and directory.location is not None:
                destination = destination_of(directory.location)
                yield _Place(
                    kind="source",
                    name=name,
                    place=destination,
                    identity=place_of(destination),
                    reads=directory.reads,
                )


def _of_sinks(flow: CompiledFlow) -> Iterator[_Place]:
    """Yield the directories and tables of sinks, as far as they are known."""
    for output in flow.outputs:
        sink: Any = output.sink
        destination = getattr(sink, "destination", None)
        identity = getattr(sink, "place", None) or (destination and place_of(destination))
        if identity:
            yield _Place(
                kind="sink",
                name=output.name,
                place=destination or identity,
                identity=identity,
                writes=getattr(sink, "example_files", _WRITTEN["sink"]),
                shares=getattr(sink, "takes_other_writers", False)
                and not is_whole_result(flow, output),
                reserved=getattr(sink, "reserved_names", RESERVED_NAMES),
            )


def _check_pair(first: _Place, second: _Place, flow: str) -> None:
    """Raise if two places are the same, or one is inside the other, and that is not right."""
    if first.kind == second.kind == "source":
        return
    first_is_longer = len(first.parts) >= len(second.parts)
    inner, outer = (first, second) if first_is_longer else (second, first)
    inner_path = _path_within(inner.parts, outer.parts)
    if inner_path is None:
        return
    if not inner_path and first.shares and second.shares:
        return
    if inner_path and outer.kind == "source":
        names = (f"{inner_path}/{name}" for name in inner.writes)
        if not any(map(outer.reads, names)):
            return
    if (
        inner_path
        and (inner.kind, outer.kind) == ("checkpoint", "sink")
        and _is_hidden(inner_path, outer)
    ):
        return
    if first.kind == second.kind and not inner_path:
        raise InvalidFlowError(
            f"Sinks {second.name!r} and {first.name!r} of flow {flow!r} write to one place, "
            f"{first.place}.",
            remedy="Give each sink a target of its own. Several sinks may write to one table of a "
            "database or a lakehouse, or to one topic, unless they deliver complete results.",
            flow=flow,
            sink=first.name,
        )
    relation = f"inside that of {outer}, {outer.place}" if inner_path else f"that of {outer}, too"
    noun = "directory" if len(inner.parts) > 1 else "table"
    raise InvalidFlowError(
        f"The {noun} of {inner}, {inner.place}, is {relation}: {_EFFECTS[inner.kind, outer.kind]}.",
        remedy=f"Give each a {noun} of its own, beside the other.",
        flow=flow,
    )


def _is_hidden(within: str, directory: _Place) -> bool:
    """Return whether readers of a sink's directory pass over a path in it, and the sink does."""
    first, _, _ = within.partition("/")
    return first.startswith(("_", ".")) and first not in directory.reserved


def _path_within(inner: tuple[str, ...], outer: tuple[str, ...]) -> str | None:
    """Return the path of a place in another; empty if they are one, ``None`` if it is outside."""
    size = len(outer)
    head, inner_path = inner[:size], "/".join(inner[size:])
    if head == outer:
        return inner_path
    if len(head) < size or not outer[0].startswith("/"):
        return None
    same_depth, directory = Path(*head), Path(*outer)
    try:
        return inner_path if os.path.samefile(same_depth, directory) else None  # noqa: PTH121
    except OSError:
        equal_but_case = [part.casefold() for part in head] == [part.casefold() for part in outer]
        return inner_path if equal_but_case and _ignores_case(directory) else None


def _ignores_case(path: Path) -> bool:
    """Return whether names in a file system differ by more than case; `path`: may not be there."""
    for existing in (path, *path.parents):
        if existing.exists():
            other = existing.with_name(existing.name.swapcase())
            return other != existing and other.exists() and other.samefile(existing)
    return False


def check_columns_of_sinks(flow: CompiledFlow) -> None:
    """Raise `SinkError` if a sink's configuration does not fit its rows; no target is accessed."""
    for output in flow.outputs:
        check = getattr(output.sink, "check_columns", None)  # a sink need not derive from `Sink`
        if check is not None:
            check(context_of(output, flow))


def try_sink(output: SinkOutput, flow: CompiledFlow, query_id: str) -> RowCheck | None:
    """Check a sink's target without changing it; return the check for its rows.

    Raises `SinkError` if the target cannot take the rows, or cannot be reached.
    """
    check = getattr(output.sink, "check", None)
    if check is None:
        return None
    try:
        row_check: RowCheck | None = check(context_of(output, flow, query_id=query_id))
    except GodwitError:
        raise
    except Exception as error:
        raise SinkError(
            f"Sink {output.name!r} cannot be checked: {type(error).__name__}: {error}",
            remedy="Fix its target, or its method check.",
            sink=output.name,
        ) from error
    if row_check is not None and not callable(row_check):
        raise SinkError(
            f"The method check of sink {output.name!r} returned a value of type "
            f"{type_name(row_check)}.",
            remedy="Let it return a function that finds the rows that the target cannot take, or "
            "None.",
            sink=output.name,
        )
    return row_check


class _NoViews:
    """No-op views, for sinks that are only checked."""

    def show(self, name: str, rows: pa.Table) -> None:
        """No-op."""


def context_of(
    output: SinkOutput,
    flow: CompiledFlow,
    *,
    query_id: str = "",
    views: Views = _NoViews(),  # noqa: B008  it has no state
    writer: str | None = None,
    batches_before: int = 0,
) -> SinkContext:
    """Return the description of a sink's rows."""
    return SinkContext(
        name=output.name,
        writer=output.name if writer is None else writer,
        flow=flow.name,
        query_id=query_id,
        schema=output.schema,
        keys=output.keys,
        unique_keys=output.unique_keys,
        mapped=bool(output.maps),
        complete=output.sink.wants_rows and is_whole_result(flow, output),
        views=views,
        batches_before=batches_before,
        kind=output.kind,
        table_keys=output.table_keys,
    )
