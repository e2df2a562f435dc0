"""The group keys of Spark's ``Aggregate`` as columns of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import DoubleType, FloatType, StructType, YearMonthIntervalType

from godwit.adopt.lanes import Packed, Place, PlacedColumn, ValueAsText
from godwit.adopt.plan import (
    SESSION_WINDOW,
    WATERMARK_DELAY,
    is_keyed_by_text,
    kind_of,
    metadata_of,
    type_of,
    watermarks_of,
)
from godwit.operators.window_specs import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.adopt.lanes import Translator
    from godwit.adopt.plan import Catalyst
    from godwit.time.grid import TimeWindow

_GROUPING_ID: Final = "spark_grouping_id"  # the key that Spark adds to sets of keys


class GroupKeys:
    """The columns of an aggregate's group keys."""

    def __init__(self, translation: Translator, node: Any, grouping: Sequence[Any]) -> None:
        self._grouping = list(grouping)
        self._attributes: list[Any] = []
        self.columns: list[tuple[str, Any]] = []  # name → expression of Spark's
        self.names: tuple[str, ...] = ()
        self.removed_by: str | None = None
        self.session: tuple[str, str] | None = None  # columns of a row's own session
        # window that a watermark follows: its attribute, and the columns of start and end
        self.window: tuple[Any, str, str] | None = None
        self.panes: tuple[TimeWindow, str] | None = None  # windows, and the column of their time
        self.bound: list[PlacedColumn] = []
        # column of the result → key that has a text in the columns
        self.nested: list[tuple[str, Any]] = []
        catalyst = translation.catalyst
        names: list[str] = []
        # Keys of totals are null: of GROUPING SETS, ROLLUP and CUBE.
        has_totals = any(
            kind_of(key) == "AttributeReference" and key.name() == _GROUPING_ID
            for key in self._grouping
        )
        for expression in self._grouping:
            is_named = kind_of(expression) in {"AttributeReference", "Alias"}
            name = expression.name() if is_named else str(expression.sql())
            attribute = (
                expression
                if kind_of(expression) == "AttributeReference"
                else catalyst.alias(expression, name).toAttribute()
            )
            self._attributes.append(attribute)
            metadata = metadata_of(attribute)
            translation.check_collation(node, expression)
            dtype = type_of(expression)
            if SESSION_WINDOW in metadata:
                if not watermarks_of(node):
                    raise translation.refused(
                        node, "its sessions have no watermark", "Add one by withWatermark(...)."
                    )
                self.session = (
                    translation.unique(f"{name}_from"),
                    translation.unique(f"{name}_to"),
                )
                self.columns += [
                    (column, catalyst.field(expression, ordinal))
                    for ordinal, column in enumerate(self.session)
                ]
                window = Packed(fields=(("start", WINDOW_START), ("end", WINDOW_END)))
                self.bound.append(PlacedColumn(attribute=attribute, place=window))
                continue
            if WATERMARK_DELAY in metadata and translation.mode != "complete":
                if self.removed_by is not None:
                    raise translation.refused(
                        node,
                        "several of its group keys are windows or times with a watermark",
                        "Group by only one of the windows or times.",
                    )
                if isinstance(dtype, StructType):
                    start, end = (
                        translation.unique(f"{name}_start"),
                        translation.unique(f"{name}_end"),
                    )
                    self.columns += [
                        (start, catalyst.field(expression, 0)),
                        (end, catalyst.field(expression, 1)),
                    ]
                    names.append(start)
                    self.removed_by, is_null = end, None
                    if has_totals:
                        is_null = translation.unique(f"{name}_is_null")
                        self.columns.append((is_null, catalyst.is_null(expression)))
                        names.append(is_null)
                    else:
                        self.window = (attribute, start, end)
                    window = Packed(fields=(("start", start), ("end", end)), is_null=is_null)
                    self.bound.append(PlacedColumn(attribute=attribute, place=window))
                else:
                    self.removed_by = translation.unique(name)
                    self.columns.append((self.removed_by, expression))
                    self.bound.append(PlacedColumn(attribute=attribute, place=self.removed_by))
                continue
            place = self._add_key_columns(translation, name, expression, dtype, names)
            self.bound.append(PlacedColumn(attribute=attribute, place=place))
        self.names = tuple(names)

    def of_groups(self, catalyst: Catalyst) -> tuple[tuple[str, Any], ...]:
        """Return column → expression over group keys: windows by start and end, no time."""
        if self.panes is None or self.window is None:
            return tuple(self.columns)
        attribute, time = self.window[0], self.panes[1]
        bounds = enumerate((WINDOW_START, WINDOW_END))
        columns_without_time = [column for column in self.columns if column[0] != time]
        return (
            *columns_without_time,
            *((name, catalyst.field(attribute, ordinal)) for ordinal, name in bounds),
        )

    def use_panes(self, window: TimeWindow, name: str, time: Any) -> None:
        """Replace the columns of the window by that of the time, from which it follows."""
        assert self.window is not None, "windows are given"
        attribute, start, end = self.window
        columns = [column for column in self.columns if column[0] not in (start, end)]
        self.columns = [*columns, (name, time)]
        self.names = tuple(column for column in self.names if column != start)
        self.removed_by, self.panes = None, (window, name)
        place = Packed(fields=(("start", WINDOW_START), ("end", WINDOW_END)))
        self.bound = [
            PlacedColumn(attribute=attribute, place=place)
            if column.attribute is attribute
            else column
            for column in self.bound
        ]

    def _add_key_columns(
        self, translation: Translator, name: str, expression: Any, dtype: Any, names: list[str]
    ) -> Place:
        """Add the columns of a key, one for each field of a struct; return their place.

        `names`: those of the columns so far.
        """
        catalyst = translation.catalyst
        if is_keyed_by_text(dtype):
            own = translation.unique(f"{name}_text")
            self.columns.append((own, catalyst.key_text(expression)))
            names.append(own)
            self.nested.append((translation.unique(name), catalyst.normalized(expression)))
            return self.nested[-1][0]
        if isinstance(dtype, YearMonthIntervalType):
            own = translation.unique(f"{name}_text")
            self.columns.append((own, catalyst.text(expression)))
            names.append(own)
            return ValueAsText(column=own, dtype=expression.dataType())
        if not isinstance(dtype, StructType):
            translation.check_key(expression, name, dtype)
            own = translation.unique(name)
            self.columns.append((own, _normalized_key(catalyst, expression, dtype)))
            names.append(own)
            return own
        is_null = None
        if expression.nullable():
            is_null = translation.unique(f"{name}_is_null")
            self.columns.append((is_null, catalyst.expressions.IsNull(expression)))
            names.append(is_null)
        fields = tuple(
            (
                field.name,
                self._add_key_columns(
                    translation,
                    f"{name}_{field.name}",
                    catalyst.field(expression, ordinal),
                    field.dataType,
                    names,
                ),
            )
            for ordinal, field in enumerate(dtype.fields)
        )
        return Packed(fields=fields, is_null=is_null)

    def attribute_of(self, expression: Any) -> Any:
        """Return the column of a group key; ``None`` for another expression."""
        for key, attribute in zip(self._grouping, self._attributes, strict=True):
            if expression.semanticEquals(key):
                return attribute
        return None


def _normalized_key(catalyst: Catalyst, expression: Any, dtype: Any) -> Any:
    """Return a key with NaN and zero normalized, as Spark groups by them."""
    if not isinstance(dtype, FloatType | DoubleType):
        return expression
    return catalyst.normalized(expression)
