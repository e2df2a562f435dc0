"""Check of the class that a user passes as a data source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit.model.errors import SinkError, SourceError


def checked_kind(kind: Any, error: type[SourceError | SinkError]) -> type[Any]:
    """Return a class of data sources; raise `error` for anything else."""
    from pyspark.sql.datasource import DataSource  # noqa: PLC0415  slow to load

    if isinstance(kind, type) and issubclass(kind, DataSource):
        return kind
    raise error(
        f"{kind!r} is not a class of PySpark data sources.",
        remedy="Give the class that is derived from pyspark.sql.datasource.DataSource, and its "
        "options as options={...}.",
    )
