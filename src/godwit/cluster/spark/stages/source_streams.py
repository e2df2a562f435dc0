"""Which streams the plan of a query reads, where, and what each of them is.

Spark numbers the distinct streams of a plan in the order in which it comes upon them, and writes an
offset for every place where one is read (`godwit.checkpoint.spark_log`).  Streams are told
apart as Spark does: by equality of the nodes of the analysed plan.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.spark_log import DEFAULT_INTERVAL, OffsetLayout, Reading
from godwit.cluster.spark.stages.source_plans import streams_in
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_offset_log", "offset_layout"]

_ORDINARY: Final = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}
_INTERVAL: Final = "spark.sql.streaming.fileSource.log.compactInterval"
_WHAT: Final = {
    "kafka": ("assign", "subscribe", "subscribepattern"),
    "socket": ("host", "port"),
    "rate": (),
    "rate-micro-batch": (),
}
"""Format → options that say which data it is; of files and tables that have a path, that."""
_TABLES: Final = ("delta", "iceberg")
_HOW: Final = re.compile(
    "max|min|start|end|fail|fetch|poll|timeout|interval|retr|partition|rate|rows|batch|mode|"
    "password|secret|token|credential|user|key|auth|ssl|cert|region|clean|latest"
)
"""Options, of formats that are not known, that say how data are read and not which."""


def check_offset_log(spark: SparkSession) -> None:
    """Refuse a session that lets Spark write its offset log in another format.

    Raises
    ------
    InvalidFlowError
        Names the setting.
    """
    for setting, value in _ORDINARY.items():
        found = spark.conf.get(setting, value)
        if found != value:
            raise InvalidFlowError(
                f"The session sets {setting} to {found!r}, but Godwit reads Spark's offset log in "
                "its ordinary format.",
                remedy=f"spark.conf.unset({setting!r}) before the flow is started.",
            )


def offset_layout(
    frames: Sequence[tuple[str, DataFrame]], sources: Mapping[str, DataFrame]
) -> OffsetLayout:
    """Say whose the offsets of a query are.

    Parameters
    ----------
    frames
        What the query unites, in order: the name of a source, and its DataFrame after maps.
    sources
        Name of a source → its DataFrame.

    Raises
    ------
    InvalidFlowError
        If a map brings in a stream that is not a source's.
    """
    own = {name: _distinct(streams_in(frame)) for name, frame in sources.items()}
    numbered: list[Any] = []
    lines: list[int] = []
    for name, frame in frames:
        for stream in streams_in(frame):
            if not any(_place(stream, streams) is not None for streams in own.values()):
                raise InvalidFlowError(
                    f"A map on source {name!r} brings in another stream, {_text(stream)}.",
                    remedy="Make it a source of its own, with flow.source(...), and unite the "
                    "streams with stream.union(...).",
                    source=name,
                )
            number = _place(stream, numbered)
            if number is None:
                number = len(numbered)
                numbered.append(stream)
            lines.append(number)
    return OffsetLayout(
        readings=tuple(
            tuple(
                Reading(source=name, index=index, reads=_reads(stream))
                for name in sorted(own)
                if (index := _place(stream, own[name])) is not None
            )
            for stream in numbered
        ),
        lines=tuple(lines),
        interval=_interval(frames[0][1].sparkSession),
    )


def _interval(spark: SparkSession) -> int:
    value = spark.conf.get(_INTERVAL, str(DEFAULT_INTERVAL))
    return max(1, int(value)) if value is not None and value.isdecimal() else DEFAULT_INTERVAL


def _distinct(streams: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for stream in streams:
        if _place(stream, found) is None:
            found.append(stream)
    return found


def _place(stream: Any, streams: Sequence[Any]) -> int | None:
    return next((at for at, other in enumerate(streams) if other.equals(stream)), None)


def _text(stream: Any) -> str:
    return str(stream.simpleString(100))


def _reads(stream: Any) -> dict[str, str]:
    """Say which data a stream reads; empty where Spark's plan does not tell."""
    kind = stream.getClass().getSimpleName()
    if kind == "StreamingRelation":
        source = stream.dataSource()
        name, options = str(source.className()), dict(_pairs(source.options()))
        paths = source.paths()
        options |= {f"path {at}": str(paths.apply(at)) for at in range(paths.size())}
    elif kind == "StreamingRelationV2":
        name = str(stream.sourceName())
        options = {str(key): str(value) for key, value in stream.extraOptions().items()}
        if stream.identifier().isDefined():
            options = {"table": str(stream.identifier().get().toString())}
    else:
        return {}
    options = {key.lower(): value for key, value in options.items()}
    name = name.lower()
    paths_only = {key: _path(value) for key, value in options.items() if key.startswith("path")}
    if name in _WHAT:
        found = {key: options[key] for key in _WHAT[name] if key in options}
    elif "table" in options:
        found = {"table": options["table"]}
    elif paths_only and (kind == "StreamingRelation" or name in _TABLES):
        found = {key: value for key, value in paths_only.items() if not key.startswith("pathg")}
    else:
        # Options may hold what must not be kept, such as a URL with a password.
        found = {
            key: hashlib.sha256(value.encode()).hexdigest()[:16]
            for key, value in options.items()
            if not _HOW.search(key)
        }
    return {"format": name, **dict(sorted(found.items()))}


def _pairs(scala_map: Any) -> Iterator[tuple[str, str]]:
    items = scala_map.iterator()
    while items.hasNext():
        pair = items.next()
        yield str(pair._1()), str(pair._2())  # noqa: SLF001  Scala's name of a part of a pair


def _path(path: str) -> str:
    """Write a path in the way in which Spark knows the files below it."""
    local = re.sub("^file:/*", "/", path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*:", local) is not None:
        return local.rstrip("/")
    return re.sub("/+", "/", f"{Path.cwd()}/{local}" if local[:1] != "/" else local).rstrip("/")
