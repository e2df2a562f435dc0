"""Rows as instances of a user's class: its columns, columns as instances, and back.

A dataclass, a `msgspec.Struct` or a named tuple says the names and types of columns: what a
function of `process` reads (``row=Order``) and what it emits (``output=Trade``).

Rows become instances by columns: a column is a list of Python values once for all keys, converted
once where Arrow's values are not those of the field (an enumeration, a nested class), and an
instance is one call with a value of each column, in order.  What a field does not admit, a null or
an unknown member of an enumeration, is found before the function is called, so that the error names
the row's key and column.

Invariant: an instance has, in each field, a value of the field's type.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import operator
import re
import types
import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.python_values import python_values
from godwit.columns.types import COLUMN_TYPES, is_binary, is_list, is_text, type_of_text
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_column_names, did_you_mean, listing
from godwit.values.types import defaults_of, fields_of, is_record, keeps_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TYPES_OF_FIELDS: Final[dict[Any, pa.DataType]] = {
    **COLUMN_TYPES,
    dt.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}
_AS_THEY_ARE: Final = (dt.date, dt.datetime, dt.timedelta, decimal.Decimal, bytes)
"""Types that Arrow takes, and msgspec would make text of."""
_KNOWN: Final = (
    "bool, int, float, str, bytes, date, datetime, timedelta, Decimal, an enumeration of text or "
    "of whole numbers, list[...], another such class, and each of them with `| None`"
)
_NUMBER: Final = (int, str)


class MisfitError(Exception):
    """A column has a value that a field of the class does not admit.

    `admitting`: type that the field could be declared as, if that is known.
    """

    def __init__(self, column: str, index: int, reason: str, admitting: str = "") -> None:
        super().__init__(column, index, reason, admitting)
        self.column, self.index, self.reason, self.admitting = column, index, reason, admitting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a class as a column."""

    name: str
    hint: Any  # its type
    dtype: pa.DataType  # of the column that its values make
    nullable: bool
    plain: bool  # its values are those that Arrow gives and takes for the column's type
    items: Field | None = None  # elements of a plain list

    def is_full(self, column: pa.Array) -> bool:
        """Return whether a column has no nulls that the field does not allow, also within lists."""
        if column.null_count and not self.nullable:
            return False
        if self.items is None or not is_list(column.type):
            return True
        return self.items.is_full(pc.list_flatten(column))

    def first_null(self, column: pa.Array) -> int | None:
        """Return the position of the first value with a null that the field does not allow."""
        if self.is_full(column):
            return None
        return next(i for i in range(len(column)) if not self.is_full(column.slice(i, 1)))

    def admitting_null(self, value: Any) -> str:
        """Return the field's type as text, with ``| None`` where `value` has a null."""
        if value is None or self.items is None:
            return f"{hint_text(self.hint)} | None"
        outer = " | None" if self.nullable else ""
        elements = pa.array(value, self.items.dtype)
        index = self.items.first_null(elements)
        element = None if index is None else elements[index].as_py()
        return f"list[{self.items.admitting_null(element)}]{outer}"


class RowClass:
    """A class of rows; `row_class` makes it."""

    def __init__(self, cls: type, fields: tuple[Field, ...]) -> None:
        self.cls, self.fields = cls, fields
        self.names = [field.name for field in fields]
        self.schema = pa.schema([pa.field(field.name, field.dtype) for field in fields])
        self._by_name = {field.name: field for field in fields}

    def __repr__(self) -> str:
        return f"<RowClass {self.cls.__qualname__}>"

    def field(self, name: str) -> Field:
        """Return the field of a name."""
        return self._by_name[name]

    # -- columns as instances -------------------------------------------------------------------

    def check_columns(self, columns: pa.Schema, operator: str, origin: str) -> None:
        """Raise if instances cannot be made from rows with these columns; `origin`: for errors."""
        if required := self._arguments_besides_fields():
            raise InvalidFlowError(
                f"Operator {operator!r} has row={self.cls.__qualname__}, whose constructor also "
                f"requires {listing(required)}, which no field and no column has.",
                remedy="Give this argument a default, or remove it from the constructor (an "
                "InitVar is an argument, too).",
                operator=operator,
            )
        where = f"Operator {operator!r} has row={self.cls.__qualname__}, whose field"
        for field in self.fields:
            if field.name not in columns.names:
                raise InvalidFlowError(
                    f"{where} {field.name!r} is not a column of {origin}.",
                    remedy=f"{did_you_mean(field.name, columns.names)}There are "
                    f"{listing(columns.names)}. A class needs no more fields than the function "
                    "reads.",
                    operator=operator,
                    column=field.name,
                )
            dtype = columns.field(field.name).type
            if not _column_fills_field(field.dtype, dtype):
                raise InvalidFlowError(
                    f"{where} {field.name!r} is {hint_text(field.hint)}, and the column of "
                    f"{origin} is {dtype}.",
                    remedy="Declare the field as what the column holds, or cast the column in an "
                    "earlier map.",
                    operator=operator,
                    column=field.name,
                )

    def _arguments_besides_fields(self) -> list[str]:
        """Return the constructor's arguments without default that are no fields."""
        return [
            p.name
            for p in inspect.signature(self.cls).parameters.values()
            if p.default is p.empty
            and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            and p.name not in self._by_name
        ]

    @property
    def make(self) -> Callable[..., Any]:
        """Function that makes an instance from the values of all fields, in order."""
        names = self.names
        parameters = inspect.signature(self.cls).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if positional[: len(names)] == names:
            return self.cls
        cls = self.cls
        return lambda *values: cls(**dict(zip(names, values, strict=True)))

    def admits_all(self, name: str, column: pa.Array) -> bool:
        """Return whether a field allows every value of a column, by its type and nulls alone."""
        field = self._by_name[name]
        return field.plain and field.is_full(column)

    def values(self, name: str, column: pa.Array) -> list[Any]:
        """Return a column's values as values of the field `name`.

        Raises `MisfitError` for the first value that the field does not allow.
        """
        field = self._by_name[name]
        index = field.first_null(column)
        if index is not None:
            value = column[index].as_py()
            reason = "there is no value" if value is None else "an element has no value"
            raise MisfitError(name, index, reason, field.admitting_null(value))
        if pa.types.is_floating(field.dtype) and pa.types.is_integer(column.type):
            column = column.cast(field.dtype, safe=False)
        plain = python_values(column)
        return plain if field.plain else _values_of_hint(name, plain, field.hint)

    # -- instances as columns -------------------------------------------------------------------

    def first_other(self, rows: Sequence[Any]) -> int | None:
        """Return the position of the first row that is not an instance of the class, if any."""
        if all(issubclass(kind, self.cls) for kind in set(map(type, rows))):
            return None
        return next(i for i, row in enumerate(rows) if not isinstance(row, self.cls))

    def columns(self, rows: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the values of every field of some instances, in a form that Arrow takes.

        Raises `MisfitError` for the first value that is not of its field's type.
        """
        return [self._checked_column(field, rows) for field in self.fields]

    @staticmethod
    def _checked_column(field: Field, rows: Sequence[Any]) -> Sequence[Any]:
        """Return a field's values over all rows, checked and converted for its Arrow type."""
        values = list(map(operator.attrgetter(field.name), rows))
        if field.plain:
            return values
        plain: list[Any] = msgspec.to_builtins(values, builtin_types=_AS_THEY_ARE)
        # An instance of another class would lose the values of unmatched fields.
        _values_of_hint(field.name, plain, field.hint | None)  # a null has an error of its own
        return plain

    def defaults(self) -> dict[str, Any]:
        """Return field → its default, in a form that Arrow takes, for fields that have one."""
        declared_defaults = defaults_of(self.cls)
        values = {
            name: value() if callable(value) else value for name, value in declared_defaults.items()
        }
        return msgspec.to_builtins(values, builtin_types=_AS_THEY_ARE)  # type: ignore[no-any-return]


def _values_of_hint(name: str, plain: list[Any], hint: Any) -> list[Any]:
    """Return plain values of column `name` as values of type `hint`; raise if one misfits."""
    try:
        return msgspec.convert(plain, list[hint])
    except msgspec.ValidationError:
        for index, value in enumerate(plain):
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                raise MisfitError(name, index, str(error)) from error
        raise


def is_row_class(value: object) -> bool:
    """Return whether a value is a class whose instances can be rows."""
    return isinstance(value, type) and is_record(value)


def row_class(cls: Any, where: str, *, example: str = "row=Order") -> RowClass:
    """Return the fields of a class of rows, as columns; `where` and `example`: for errors.

    Raises `InvalidFlowError` if it is not such a class, or a field's type has no column type.
    """
    if not is_row_class(cls):
        raise InvalidFlowError(
            f"{where} is {cls!r:.100}, which is not a class of rows.",
            remedy="Give a dataclass, a msgspec.Struct or a NamedTuple, whose fields are the "
            f"columns, as in {example}.",
        )
    where = f"{where}, {cls.__qualname__},"
    fields = _fields_of_class(cls, where)
    if not fields:
        raise InvalidFlowError(
            f"{where} has no fields.", remedy="Declare a field for each column, with its type."
        )
    check_column_names([field.name for field in fields], where)
    parameters = {p.name for p in inspect.signature(cls).parameters.values()}
    unmade = [field.name for field in fields if field.name not in parameters]
    if unmade:
        raise InvalidFlowError(
            f"{where} cannot be made with {listing(unmade)}, which its constructor does not take.",
            remedy="Let the constructor take every field by its name.",
            column=unmade[0],
        )
    return RowClass(cls, fields)


def hint_text(hint: Any) -> str:
    """Return a type annotation as Python code, without names of modules."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__qualname__
    return re.sub(r"(?:[\w<>]+\.)+(?=\w)", "", str(hint))


def _fields_of_class(cls: Any, where: str, outer: tuple[Any, ...] = ()) -> tuple[Field, ...]:
    """Return the fields of a class with their column types; `outer`: classes that contain it."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise InvalidFlowError(
            f"{where} has annotations that cannot be looked up: {type(error).__name__}: {error}.",
            remedy="Import the types of its fields where the program runs, not only under "
            "TYPE_CHECKING.",
        ) from error
    within = (*outer, cls)
    return tuple(
        _field_with_type(name, hints.get(name, Any), where, within) for name in fields_of(cls)
    )


def _field_with_type(name: str, hint: Any, where: str, within: tuple[Any, ...]) -> Field:
    """Return a field with its column type, or raise; `within`: the classes that contain it."""
    declared = hint
    exact: pa.DataType | None = None
    while isinstance(hint, typing.NewType) or hasattr(hint, "__value__"):
        hint = getattr(hint, "__value__", None) or hint.__supertype__
    if typing.get_origin(hint) is typing.Annotated:
        hint, *annotations = typing.get_args(hint)
        for annotation in annotations:
            if isinstance(annotation, pa.DataType):
                exact = annotation
            elif isinstance(annotation, str):
                exact = type_of_text(name, annotation, where)
    nullable = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        nullable = len(parts) < len(typing.get_args(hint))
        if set(parts) == {int, float}:
            parts = [float]
        if len(parts) == 1:
            member = _field_with_type(name, parts[0], where, within)
            return dataclasses.replace(
                member,
                hint=hint if not member.plain else declared,
                nullable=nullable or member.nullable,
                dtype=member.dtype if exact is None else exact,
            )
    else:
        column_type = _column_type(name, hint, where, within)
        if column_type is not None:
            dtype, plain, items = column_type
            return Field(
                name=name,
                hint=hint,
                dtype=dtype if exact is None else exact,
                nullable=nullable,
                plain=plain,
                items=items,
            )
    raise InvalidFlowError(
        f"{where} has the field {name!r} of type {hint_text(declared)}, which has no column type.",
        remedy=f"Fields are {_KNOWN}; or say the column's type, as in "
        'Annotated[Decimal, "decimal(10, 2)"].',
        column=name,
    )


def _column_type(
    name: str, hint: Any, where: str, enclosing: tuple[Any, ...]
) -> tuple[pa.DataType, bool, Field | None] | None:
    """Return the column type of a type annotation; ``None`` if there is none.

    Also returned: whether Arrow's values are of the annotated type; and the field of a list's
    elements.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _TYPES_OF_FIELDS:
        return _TYPES_OF_FIELDS[hint], True, None
    if origin is typing.Literal:
        kinds = {type(value) for value in arguments}
        kind = kinds.pop()
        return (_TYPES_OF_FIELDS[kind], False, None) if not kinds and kind in _NUMBER else None
    if origin in (list, tuple, set, frozenset):
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
            return None
        item = _field_with_type(f"{name}[]", arguments[0], where, enclosing)
        plain = item.plain and origin is list
        return pa.list_(item.dtype), plain, item if plain else None
    if isinstance(hint, type) and issubclass(hint, enum.Enum) and not issubclass(hint, enum.Flag):
        member_types = {type(member.value) for member in hint}
        if not member_types:
            raise InvalidFlowError(
                f"{where} has the field {name!r} of type {hint_text(hint)}, an enumeration without "
                "members.",
                remedy="Give it members, or declare the field as text or a number.",
                column=name,
            )
        member_type = member_types.pop()
        plain = not member_types and member_type in _NUMBER
        return (_TYPES_OF_FIELDS[member_type], False, None) if plain else None
    if is_record(hint) and not issubclass(hint, tuple):
        if not keeps_names(hint):
            raise InvalidFlowError(
                f"{where} has the field {name!r} of type {hint_text(hint)}, whose options rename "
                "its fields or leave some out, so that values would not be found by name.",
                remedy="Take rename=, omit_defaults=, array_like= and forbid_unknown_fields= from "
                "a class within a class of rows.",
                column=name,
            )
        if hint in enclosing:
            raise InvalidFlowError(
                f"{where} has the field {name!r} of type {hint_text(hint)}, which contains itself: "
                "no column has values of unlimited depth.",
                remedy="Refer to the other object by a column that identifies it.",
                column=name,
            )
        inner = _fields_of_class(hint, where, enclosing)
        return pa.struct([pa.field(field.name, field.dtype) for field in inner]), False, None
    return None


def _column_fills_field(dtype: pa.DataType, column: pa.DataType) -> bool:
    """Return whether a column of type `column` can fill a field of column type `dtype`."""
    arrow = pa.types
    if column == dtype:
        return True
    for are in (
        is_text,
        is_binary,
        arrow.is_timestamp,
        arrow.is_date,
        arrow.is_duration,
        arrow.is_decimal,
    ):
        if are(dtype):
            return bool(are(column))
    if arrow.is_integer(dtype):
        return bool(arrow.is_integer(column))
    if arrow.is_floating(dtype):
        return bool(arrow.is_floating(column) or arrow.is_integer(column))
    if is_list(dtype):
        return is_list(column) and _column_fills_field(dtype.value_type, column.value_type)
    if arrow.is_struct(dtype) and arrow.is_struct(column):
        present = {column.field(i).name: column.field(i).type for i in range(column.num_fields)}
        inner = [dtype.field(i) for i in range(dtype.num_fields)]
        return all(
            f.name in present and _column_fills_field(f.type, present[f.name]) for f in inner
        )
    return False
