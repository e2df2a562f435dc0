"""Unique keys of an existing table, and those that can be used to replace rows.

A key replaces rows rightly if it holds for all rows, for whole values, at once, and if the database
takes no two different values for equal ones.  So a key of some rows (``WHERE``), of the beginnings
of texts, of expressions, ``DEFERRABLE``, or in a collation that ignores case, is not exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

    Columns = frozenset[str]

_MYSQL: Final = """
    SELECT index_name, column_name, sub_part IS NULL AND column_name IS NOT NULL
    FROM information_schema.statistics
    WHERE non_unique = 0 AND table_name = :name AND table_schema = coalesce(:schema, database())
"""
_SQLITE: Final = """
    SELECT l.name, x.name, NOT l.partial AND x.name IS NOT NULL AND x.coll = 'BINARY'
    FROM pragma_index_list(:name) AS l, pragma_index_xinfo(l.name) AS x
    WHERE l."unique" AND x.key
    UNION ALL
    SELECT '', name, true FROM pragma_table_info(:name) AS t WHERE pk AND NOT EXISTS
        (SELECT 1 FROM pragma_index_list(:name) WHERE origin = 'pk')
"""  # an INTEGER PRIMARY KEY has no index
_POSTGRESQL: Final = """
    SELECT i.indexrelid, a.attname, i.indimmediate AND i.indisvalid AND i.indpred IS NULL
           AND a.attname IS NOT NULL AND coalesce(c.collisdeterministic, true)
           AND t.typname <> 'citext'
    FROM pg_index i
    CROSS JOIN unnest(i.indkey::smallint[], i.indcollation::oid[]) WITH ORDINALITY
        AS k (number, collation_oid, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    LEFT JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_collation c ON c.oid = k.collation_oid
    WHERE i.indisunique AND k.place <= i.indnkeyatts AND i.indrelid = to_regclass(:quoted)
"""
_QUERIES: Final[Mapping[str, str]] = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}


def unique_keys(connection: sa.Connection, table: sa.Table) -> tuple[set[Columns], set[Columns]]:
    """Return the columns of each unique key, and those of the exact ones."""
    dialect = connection.dialect
    query = sa.text(_QUERIES.get(dialect.name, _MYSQL))
    parameters: dict[str, Any] = {
        "name": table.name,
        "schema": table.schema,
        "quoted": dialect.identifier_preparer.format_table(table),
    }
    values = {name: parameters[name] for name in query.compile().params}
    keys: dict[Any, list[tuple[str, bool]]] = {}
    for key, column, is_exact in connection.execute(query, values):
        keys.setdefault(key, []).append((column or "", bool(is_exact)))
    exact_keys = [columns for columns in keys.values() if all(is_exact for _, is_exact in columns)]
    unique, unique_exact = (
        {frozenset(name for name, _ in columns) for columns in key_columns}
        for key_columns in (keys.values(), exact_keys)
    )
    return unique, unique_exact
