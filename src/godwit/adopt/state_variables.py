"""State variables and timers of a `StatefulProcessor`: Spark's handle, backed by Godwit's state.

The handle and the state variables are subclasses of PySpark's, so a processor finds the methods,
and the types, that it was written for.  A variable reads and writes the state of the key that the
operator is calling the processor for (`Place`).

Errors are those of Spark's worker: `PySparkRuntimeError` with the text of the JVM's condition.
"""

from __future__ import annotations

import bisect
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor as pyspark_states

from godwit.adopt.spark_rows import SparkRows, read_spark_schema, rows_of_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from godwit.library.states.stored import Cells

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]
Kind: TypeAlias = Literal["value", "list", "map"]

_LAST_MS: Final = (2**63 - 1) // 1000 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A state variable that a processor declares in ``init``. Picklable."""

    kind: Kind
    name: str  # as the processor says it
    schema: str  # Spark schema of a value, as JSON
    key_schema: str = ""  # of the keys of a map
    ttl_ms: int | None = None
    shortest: bool = False  # texts of floats; see `SparkRows`

    @property
    def rows(self) -> SparkRows:
        """Conversion of values to stored records."""
        return rows_of_json(self.schema, shortest=self.shortest)

    @property
    def keys(self) -> SparkRows:
        """Conversion of a map's keys."""
        return rows_of_json(self.key_schema, shortest=self.shortest)

    def stored(self, value: Any) -> Any:
        """Convert a value of Spark's state, from Arrow, to the stored form."""
        make_record = self.rows.record_of_dict
        if self.kind == "value":
            return make_record(value)
        if self.kind == "list":
            return list(map(make_record, value))
        return {
            self.keys.to_key(self.keys.row_of_dict(key)): make_record(item) for key, item in value
        }

    @property
    def types(self) -> dict[str, Any]:
        """Spark types of a value's columns, for the checkpoint."""
        return self.rows.types

    @property
    def key_types(self) -> dict[str, Any]:
        """Spark types of a map's keys, for the checkpoint; empty for other kinds."""
        return self.keys.types if self.key_schema else {}


class Place:
    """The key that the processor is called for, and its timers."""

    __slots__ = ("group", "timers")

    def __init__(self) -> None:
        self.group = -1  # number of the key in its lane; -1: no key
        self.timers: list[int] = []  # as the operator stores them, ascending


def failed(doing: str, condition: str, state: str) -> PySparkRuntimeError:
    """Return the error of Spark's worker for a call that the JVM refused."""
    return PySparkRuntimeError(f"Error {doing}: [{condition}] {state}")


def _invalid_state(doing: str, called: str, state: str) -> PySparkRuntimeError:
    """Return the error for a call that the handle's current state does not permit."""
    return failed(
        doing,
        "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
        f"Failed to perform stateful processor operation={called} with invalid handle "
        f"state={state}. SQLSTATE: 42802",
    )


class DeclaringHandle(pyspark_states.StatefulProcessorHandle):
    """Handle for ``init`` on the driver: records the variables that the processor declares."""

    def __init__(self, time_mode: TimeMode, *, shortest: bool) -> None:
        self.time_mode, self.shortest = time_mode, shortest
        self.variables: dict[str, Variable] = {}
        self.deleted: set[str] = set()  # names given to ``deleteIfExists``
        self.state = "PRE_INIT"

    def getValueState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> pyspark_states.ValueState:
        """Declare a state with one value per key."""
        variable = self._declare_variable("value", stateName, schema, ttlDurationMs)
        return self.value_state(variable)

    def getListState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> pyspark_states.ListState:
        """Declare a state with a list per key."""
        variable = self._declare_variable("list", stateName, schema, ttlDurationMs)
        return self.list_state(variable)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> pyspark_states.MapState:
        """Declare a state with a map per key."""
        variable = self._declare_variable(
            "map", stateName, valueSchema, ttlDurationMs, userKeySchema
        )
        return self.map_state(variable)

    def _declare_variable(
        self, kind: Kind, name: str, schema: Any, ttl_ms: int | None, key_schema: Any = None
    ) -> Variable:
        """Record a variable, or raise as Spark does."""
        doing, called = f"initializing {kind} state", f"get_{kind}_state"
        if self.state not in ("PRE_INIT", "CREATED"):
            raise _invalid_state(doing, called, self.state)
        known = self.variables.get(name)
        if known is not None and known.kind == kind:
            raise PySparkRuntimeError(
                f"Error {doing}: {kind.capitalize()} state {name} already exists"
            )
        if known is not None:
            raise failed(
                doing,
                "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
                f"State variable with name {name} has already been defined in the "
                "StatefulProcessor. SQLSTATE: 42802",
            )
        if not name or name.strip() != name or name == "default":
            raise failed(
                doing,
                "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME",
                f"Failed to perform column family operation=create_if_absent with invalid "
                f"name={name}. Column family name cannot be empty or include leading/trailing "
                "spaces or use the reserved keyword=default SQLSTATE: 42802",
            )
        where = f"The schema of state {name!r}"
        variable = self.variables[name] = Variable(
            kind=kind,
            name=name,
            schema=read_spark_schema(schema, where).json(),
            key_schema="" if kind != "map" else read_spark_schema(key_schema, where).json(),
            ttl_ms=self._checked_ttl(doing, name, ttl_ms),
            shortest=self.shortest,
        )
        return variable

    def _checked_ttl(self, doing: str, name: str, ttl_ms: int | None) -> int | None:
        """Return a time-to-live in milliseconds, or ``None``. Raises as Spark does."""
        if ttl_ms is None or operator.index(ttl_ms) == 0:
            return None
        if self.time_mode != "ProcessingTime":
            raise failed(
                doing,
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                f"Cannot use TTL for state={name} in timeMode={self.time_mode}, use "
                "TimeMode.ProcessingTime() instead. SQLSTATE: 42802",
            )
        if ttl_ms < 0:
            raise failed(
                doing,
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
                "TTL duration must be greater than zero for State store operation=update on "
                f"state={name}. SQLSTATE: 42802",
            )
        return operator.index(ttl_ms)

    def value_state(self, variable: Variable) -> pyspark_states.ValueState:
        """Return the result of ``getValueState``."""
        return _UnusableValue(variable)

    def list_state(self, variable: Variable) -> pyspark_states.ListState:
        """Return the result of ``getListState``."""
        return _UnusableList(variable)

    def map_state(self, variable: Variable) -> pyspark_states.MapState:
        """Return the result of ``getMapState``."""
        return _UnusableMap(variable)

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state that an earlier version of the processor declared."""
        if self.state not in ("PRE_INIT", "CREATED"):
            raise _invalid_state("deleting state", "delete_if_exists", self.state)
        self.variables.pop(stateName, None)
        self.deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Refuse: there is no key in ``init``."""
        self._check_timers("register timer", "register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Refuse: there is no key in ``init``."""
        self._check_timers("deleting timer", "delete_timer")

    def listTimers(self) -> Iterator[int]:
        """Refuse: there is no key in ``init``."""
        self._check_timers("listing timers", "list_timers")
        return iter(())

    def _check_timers(self, doing: str, called: str) -> None:
        """Raise unless timers may be used now."""
        if self.time_mode == "None":
            raise failed(
                doing,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                f"Failed to perform stateful processor operation={called} with invalid "
                "timeMode=None SQLSTATE: 42802",
            )
        if self.state != "INITIALIZED":
            raise _invalid_state(doing, called, self.state)


class LaneHandle(DeclaringHandle):
    """Handle of a processor in a lane: variables over the state of the lane's keys."""

    def __init__(
        self,
        time_mode: TimeMode,
        cells: Mapping[str, Cells],  # name of a variable → its state of the lane's keys
        place: Place,
        shift_us: int = 0,  # taken from a timer's time when it is stored
        *,
        shortest: bool = False,
    ) -> None:
        super().__init__(time_mode, shortest=shortest)
        self.state = "CREATED"
        self._cells, self._place, self._shift_us = cells, place, shift_us

    def value_state(self, variable: Variable) -> pyspark_states.ValueState:
        if variable.name not in self._cells:
            return _UnusableValue(variable, deleted=True)
        return _ValueOfKey(variable, self._cells[variable.name], self._place)

    def list_state(self, variable: Variable) -> pyspark_states.ListState:
        if variable.name not in self._cells:
            return _UnusableList(variable, deleted=True)
        return _ListOfKey(variable, self._cells[variable.name], self._place)

    def map_state(self, variable: Variable) -> pyspark_states.MapState:
        if variable.name not in self._cells:
            return _UnusableMap(variable, deleted=True)
        return _MapOfKey(variable, self._cells[variable.name], self._place)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key; an existing one is unchanged."""
        self._check_timers("register timer", "register_timer")
        timers, time = self._place.timers, self._stored_time_us(expiryTimestampMs)
        place = bisect.bisect_left(timers, time)
        if place == len(timers) or timers[place] != time:
            timers.insert(place, time)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key, if it exists."""
        self._check_timers("deleting timer", "delete_timer")
        timers, time = self._place.timers, self._stored_time_us(expiryTimestampMs)
        place = bisect.bisect_left(timers, time)
        if place < len(timers) and timers[place] == time:
            del timers[place]

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key in milliseconds, earliest first."""
        self._check_timers("listing timers", "list_timers")
        return iter([(time + self._shift_us) // 1000 for time in self._place.timers])

    def _stored_time_us(self, expiry_ms: int) -> int:
        """Return a timer's time as it is stored, in microseconds."""
        return min(operator.index(expiry_ms), _LAST_MS) * 1000 - self._shift_us


class _Unusable:
    """A deleted state variable, or one in ``init`` on the driver, where there is no key."""

    def __init__(self, variable: Variable, *, deleted: bool = False) -> None:
        self._variable, self._deleted = variable, deleted

    def _refusal_error(self, doing: str, called: str) -> PySparkRuntimeError:
        """Return the error for a call."""
        name, kind = self._variable.name, self._variable.kind
        if self._deleted:
            text = f"{kind.capitalize()} state {name} is not initialized."
            return PySparkRuntimeError(f"Error {doing}: {text}")
        return _invalid_state(doing, f"{name}.{called}", "PRE_INIT")


def _refusing_method(doing: str, called: str) -> Any:
    """Return a method that refuses to be called."""

    def refuse(self: _Unusable, *_: object) -> Any:
        """Raise: there is no key yet."""
        raise self._refusal_error(doing, called)

    return refuse


class _UnusableValue(_Unusable, pyspark_states.ValueState):
    exists = _refusing_method("checking value state exists", "exists")
    get = _refusing_method("getting value state", "get")
    update = _refusing_method("updating value state", "update")
    clear = _refusing_method("clearing value state", "clear")


class _UnusableList(_Unusable, pyspark_states.ListState):
    exists = _refusing_method("checking value state exists", "exists")
    get = _refusing_method("getting list state", "get")
    put = _refusing_method("updating value state", "put")
    appendValue = _refusing_method("updating value state", "appendValue")
    appendList = _refusing_method("updating value state", "appendList")
    clear = _refusing_method("clearing value state", "clear")


class _UnusableMap(_Unusable, pyspark_states.MapState):
    exists = _refusing_method("checking map state exists", "exists")
    getValue = _refusing_method("getting value", "getValue")
    containsKey = _refusing_method("checking if map state contains key", "containsKey")
    updateValue = _refusing_method("updating map state value", "updateValue")
    iterator = _refusing_method("getting map state", "iterator")
    keys = _refusing_method("getting map state", "keys")
    values = _refusing_method("getting map state", "values")
    removeKey = _refusing_method("removing key from map state", "removeKey")
    clear = _refusing_method("clearing map state", "clear")


class _OfKey:
    """A state variable, for the key that the processor is called for."""

    __slots__ = ("_cells", "_place", "_rows", "_variable")

    def __init__(self, variable: Variable, cells: Any, place: Place) -> None:
        self._variable, self._cells, self._place = variable, cells, place
        self._rows = variable.rows

    def _present_key(self, doing: str) -> int:
        """Return the number of the current key; raise if there is none.

        `doing`: the call, as Spark's errors name it.
        """
        group = self._place.group
        if group < 0:
            text = f"Implicit key not found in state store for stateName={self._variable.name}."
            raise PySparkRuntimeError(f"Error {doing}: {text}")
        return group


class _ValueOfKey(_OfKey, pyspark_states.ValueState):
    """Value of the current key."""

    def exists(self) -> bool:
        exists: bool = self._cells.exists(self._present_key("checking value state exists"))
        return exists

    def get(self) -> tuple[Any, ...] | None:
        record = self._cells.value_or_none(self._present_key("getting value state"))
        return None if record is None else self._rows.to_tuple(record)

    def update(self, newValue: tuple[Any, ...]) -> None:
        record = _convert_written("updating value state", self._rows.to_record, newValue)
        self._cells.assign(self._present_key("updating value state"), record)

    def clear(self) -> None:
        self._cells.drop(self._present_key("clearing value state"))


class _ListOfKey(_OfKey, pyspark_states.ListState):
    """List of the current key."""

    def exists(self) -> bool:
        exists: bool = self._cells.is_there(self._present_key("checking value state exists"))
        return exists

    def get(self) -> Iterator[tuple[Any, ...]]:
        to_tuple = self._rows.to_tuple
        return iter(
            [
                to_tuple(record)
                for record in self._cells.read(self._present_key("getting list state"))
            ]
        )

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._cells.replace(
            self._present_key("updating value state"), self._stored_records(newState)
        )

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        record = _convert_written("updating value state", self._rows.to_record, newState)
        self._cells.extend(self._present_key("updating value state"), [record])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._cells.extend(
            self._present_key("updating value state"), self._stored_records(newState)
        )

    def clear(self) -> None:
        self._cells.drop(self._present_key("clearing value state"))

    def _stored_records(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        """Return the stored records of rows; raise if there are none."""
        doing = "updating value state"
        records = [_convert_written(doing, self._rows.to_record, row) for row in rows]
        if not records:
            raise failed(
                doing,
                "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE",
                "Illegal value provided to the State Store Cannot write empty list values to "
                f"State Store for StateName {self._variable.name}. SQLSTATE: 42601",
            )
        return records


class _MapOfKey(_OfKey, pyspark_states.MapState):
    """Map of the current key."""

    __slots__ = ("_keys",)

    def __init__(self, variable: Variable, cells: Any, place: Place) -> None:
        super().__init__(variable, cells, place)
        self._keys = variable.keys

    def exists(self) -> bool:
        return bool(self._cells.items(self._present_key("checking map state exists")))

    def getValue(self, key: tuple[Any, ...]) -> Any:
        item, group = (
            _convert_written("getting value", self._keys.to_key, key),
            self._present_key("getting value"),
        )
        if not self._cells.is_there(group, item):
            return None
        return self._rows.to_row(self._cells.read(group, item))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        doing = "checking if map state contains key"
        item = _convert_written(doing, self._keys.to_key, key)
        exists: bool = self._cells.is_there(
            self._present_key("checking if map state contains key"), item
        )
        return exists

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        doing = "updating map state value"
        item = _convert_written(doing, self._keys.to_key, key)
        record = _convert_written(doing, self._rows.to_record, value)
        self._cells.assign(self._present_key("updating map state value"), item, record)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        group = self._present_key("getting map state")
        return iter(
            [
                (self._keys.from_key(item), self._rows.to_tuple(self._cells.read(group, item)))
                for item in self._cells.items(group)
            ]
        )

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter(
            [
                self._keys.from_key(item)
                for item in self._cells.items(self._present_key("getting map state"))
            ]
        )

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: tuple[Any, ...]) -> None:
        item = _convert_written("removing key from map state", self._keys.to_key, key)
        group = self._present_key("removing key from map state")
        if self._cells.is_there(group, item):
            self._cells.remove(group, item)

    def clear(self) -> None:
        self._cells.drop(self._present_key("clearing map state"))


def _convert_written(doing: str, convert: Any, row: Any) -> Any:
    """Convert a row that the processor wrote; an error like the JVM's names the call."""
    try:
        return convert(row)
    except PySparkRuntimeError as error:
        raise PySparkRuntimeError(f"Error {doing}: {error}") from error
