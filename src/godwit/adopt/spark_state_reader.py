"""Reading a stopped query's state by Spark's sources ``statestore`` and ``state-metadata``.

The reader gives struct fields of the same name for one another, so the state is read as a whole,
and its fields are taken by position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from godwit.adopt.plan import Catalyst, analysed, id_of, kind_of, output_of, type_of
from godwit.model.errors import CheckpointError
from godwit.model.locations import hadoop_location
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_ALL: Final = 1 << 20
"""More partitions than a state has: a coalesce to this number changes nothing, and keeps Spark's
optimizer from looking up fields of a struct by name, right above the reader.  The state of two sums
has two fields of one name, and Spark would read one of them for both."""

_RENAMED: Final = {"transformWithStateInPandasExec": "transformWithStateInPySparkExec"}
"""Former names of Spark's operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStruct:
    """A key or a value of Spark's state: its column, and its fields."""

    column: Any
    names: tuple[str, ...]
    types: tuple[str, ...]  # as text, whether fields may be null or not


class SparkStateReader:
    """Reader of the state of one stopped query after its last committed batch."""

    def __init__(
        self, spark: SparkSession, location: str, *, batch: int, settings: Mapping[str, str]
    ) -> None:
        self.location, self.settings = location, settings
        self._batch = batch
        self._session = spark.newSession()
        for name in ("nestedSchemaPruning", "expression.nestedPruning"):
            self._session.conf.set(f"spark.sql.optimizer.{name}.enabled", "false")
        self._session.conf.set("spark.sql.session.timeZone", "UTC")
        self.catalyst = Catalyst(self._session)

    def operators(self) -> list[tuple[int, str]]:
        """Return the number and Spark's name of each operator with state."""
        rows = self._load_format("state-metadata").select("operatorId", "operatorName").distinct()
        named = {(int(row[0]), _RENAMED.get(row[1], str(row[1]))) for row in rows.collect()}
        return sorted(named)

    def variables(self, number: int) -> set[str]:
        """Return the names of the state variables of a processor."""
        rows = self._load_format("state-metadata").filter(f"operatorId = {number}")
        (properties,) = {str(row["operatorProperties"]) for row in rows.collect()}
        variables = json.loads(properties).get("stateVariables", [])
        return {v["stateName"] for v in variables if v["stateVariableType"] != "TimerState"}

    def read(self, number: int, **options: Any) -> SparkState:
        """Return a state of an operator; `options`: of Spark's source."""
        frame = self._load_format("statestore", batchId=self._batch, operatorId=number, **options)
        return SparkState(self.catalyst, frame.coalesce(_ALL))

    def _load_format(self, format: str, **options: Any) -> DataFrame:  # noqa: A002
        """Read the checkpoint by a Spark source; raise `CheckpointError` if Spark cannot."""
        reader = self._session.read.format(format)
        for name, value in options.items():
            reader = reader.option(name, value)
        location = hadoop_location(self.location)
        try:
            return reader.load(location)
        except PySparkException as error:
            remedy = "Check that the checkpoint is complete, and was written by Spark 4.0 or later."
            if quote(location, safe="/:") != location:
                remedy = (
                    "Spark's reader does not support paths with spaces and similar characters: "
                    "give a link to it."
                )
            raise CheckpointError(
                f"Spark cannot read the state of the query at {self.location!r}: "
                f"{str(error).splitlines()[0]}",
                remedy=remedy,
                uri=self.location,
            ) from error

    def other_query(self, difference: str) -> CheckpointError:
        """Return the error that the checkpoint belongs to another query."""
        return CheckpointError(
            f"The checkpoint {self.location!r} belongs to another Spark query: {difference}.",
            remedy="Use the unchanged query that wrote it, and change it once it runs in Godwit.",
            uri=self.location,
        )

    def check_same(
        self,
        fields: StoredStruct,
        attributes: Sequence[Any],
        text: str,
        *,
        by_name: bool = True,
        more: tuple[str, ...] = (),
    ) -> None:
        """Raise if the fields of a struct are not the columns of Spark's plan.

        `text`: of the struct, for the error. `more`: names of fields that may come after these.
        """
        names = [str(attribute.name()) for attribute in attributes]
        types = [type_of(attribute).simpleString() for attribute in attributes]
        count = len(types)
        same = list(fields.types[:count]) == types and fields.names[count:] in ((), more)
        if same and (not by_name or list(fields.names[:count]) == names):
            return
        stored = list(map("{} {}".format, fields.names, fields.types))
        planned = list(map("{} {}".format, names, types))
        raise self.other_query(
            f"its {text} has {listing(stored) or 'nothing'}, but that of this one "
            f"{listing(planned) or 'nothing'}"
        )


class SparkState:
    """Keys and values of a state, as a Spark plan over which columns are computed."""

    def __init__(self, catalyst: Catalyst, frame: DataFrame) -> None:
        self.catalyst, self.plan = catalyst, analysed(frame)
        columns = output_of(self.plan)
        self.columns = dict(zip(frame.schema.names, columns, strict=True))
        self.types = {field.name: field.dataType.simpleString() for field in frame.schema}
        parts = {
            field.name: StoredStruct(
                column=columns[number],
                names=tuple(part.name for part in field.dataType),
                types=tuple(part.dataType.simpleString() for part in field.dataType),
            )
            for number, field in enumerate(frame.schema)
            if isinstance(field.dataType, StructType)
        }
        self.parts, self.key = parts, parts["key"]

    @property
    def value(self) -> StoredStruct:
        """Struct of the values; not of maps and lists that are read item by item."""
        return self.parts["value"]

    def field(self, fields: StoredStruct, number: int) -> Any:
        """Return a field of the key or of the value."""
        return self.catalyst.field(fields.column, number)

    def over(self, expression: Any, attributes: Sequence[Any], fields: StoredStruct) -> Any:
        """Convert an expression over columns of Spark's plan to one over the fields of a struct.

        `attributes`: what the fields are. Columns that Spark has not stored, since nothing needs
        them, are null.
        """
        places = {id_of(attribute): number for number, attribute in enumerate(attributes)}

        def change(part: Any) -> Any:
            """Replace a column."""
            if kind_of(part) != "AttributeReference":
                return None
            number = places.get(id_of(part))
            return (
                self.catalyst.null(part.dataType())
                if number is None
                else self.field(fields, number)
            )

        return self.catalyst.rewrite(expression, change)

    def select(self, columns: Iterable[tuple[str, Any]]) -> DataFrame:
        """Return columns that are computed over the state."""
        named = [self.catalyst.alias(value, name) for name, value in columns]
        return self.catalyst.dataframe(self.catalyst.project(named, self.plan))
