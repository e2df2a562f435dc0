"""Spark state that consists of rows: keys of dropDuplicates, and the two sides of joins.

Rows of joins are read from the store ``<side>-keyWithIndexToValue``.  Their number among those of
the key is not imported: which number a row has makes no difference.

Source: `StreamingDeduplicateExec`, `StreamingDeduplicateWithinWatermarkExec` and
`SymmetricHashJoinStateManager` of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from godwit.adopt.first_rows import EXPIRES as FORGOTTEN
from godwit.adopt.joined_rows import EXPIRES, LEFT, MET, SIDE
from godwit.adopt.plan import id_of, references
from godwit.model.errors import UnsupportedQueryError
from godwit.time.grid import END

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import Column, DataFrame

    from godwit.adopt.spark_state_reader import SparkStateReader
    from godwit.adopt.spark_states import FirstRowsState, JoinSideState, JoinState

_MATCHED: Final = "matched"


def first_rows(reader: SparkStateReader, number: int, state: FirstRowsState) -> DataFrame:
    """Return the keys that an operator has seen, with the expiry of each."""
    stored = reader.read(number)
    reader.check_same(stored.key, state.grouping, "state of dropped duplicates")
    columns = [(name, stored.over(value, state.grouping, stored.key)) for name, value in state.keys]
    if state.within:
        frame = stored.select([*columns, (FORGOTTEN, stored.field(stored.value, 0))])
        return frame.withColumn(FORGOTTEN, sf.timestamp_micros(sf.col(FORGOTTEN)))
    if state.expires is not None:
        forgotten = stored.over(state.expires, state.grouping, stored.key)
        frame = stored.select([*columns, (FORGOTTEN, forgotten)])
        return frame.withColumn(FORGOTTEN, sf.coalesce(sf.col(FORGOTTEN), _never_expires()))
    return stored.select(columns).withColumn(FORGOTTEN, _never_expires())


def _never_expires() -> Column:
    """Return the time of entries that never expire."""
    return sf.timestamp_micros(sf.lit(END))


def joined_rows(reader: SparkStateReader, number: int, state: JoinState) -> DataFrame:
    """Return the rows of both sides of a join."""
    left, right = (
        _rows_of_side(reader, number, state, place, attributes)
        for place, attributes in enumerate(state.stored())
    )
    return left.unionByName(right, allowMissingColumns=True)


def _rows_of_side(
    reader: SparkStateReader, number: int, state: JoinState, place: int, attributes: list[Any]
) -> DataFrame:
    """Return the rows of one side; `attributes`: their columns in Spark's state."""
    side, name = state.sides[place], "left" if place == LEFT else "right"
    stored = reader.read(number, storeName=f"{name}-keyWithIndexToValue")
    reader.check_same(stored.value, attributes, f"state of the {name} side", more=(_MATCHED,))
    _check_needed(reader, side, attributes, name)
    has_matched = len(stored.value.names) > len(attributes)
    if not has_matched and state.how != "inner":
        raise UnsupportedQueryError(
            f"The state of the {state.how} join does not show which rows have matched others: "
            "Spark wrote it in format version 1.",
            remedy="Start the query without its state.",
            node="Join",
            place="",
        )
    values = [*side.keys, *side.columns, (EXPIRES, side.expires)]
    columns = [(own, stored.over(value, attributes, stored.value)) for own, value in values]
    matched = reader.catalyst.literal(False)
    if has_matched:
        matched = stored.field(stored.value, len(attributes))
    frame = stored.select([*columns, (MET, matched)])
    if state.how == "semi" and place == LEFT:  # what has met a row has come out permanently
        frame = frame.filter(~sf.col(MET))
    expires = sf.timestamp_micros(sf.unix_micros(sf.col(EXPIRES)) - sf.lit(side.reach_us))
    return frame.withColumns(
        {
            SIDE: sf.lit(place).cast("tinyint"),
            EXPIRES: sf.coalesce(expires, _never_expires()),
        }
    )


def _check_needed(
    reader: SparkStateReader, side: JoinSideState, attributes: list[Any], name: str
) -> None:
    """Raise if keys and times are not computed from columns that are stored."""
    known = {id_of(attribute) for attribute in attributes}
    needed = [value for _, value in side.keys] + [side.expires]
    if any(not references(value) <= known for value in needed):
        raise reader.other_query(f"the state of the {name} side lacks columns of the join's keys")
