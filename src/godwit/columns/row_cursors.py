"""One object for all rows of a key, where a function does nothing but read columns of a row.

A row as a tuple with names costs more than most of what functions do with it.  Often the bytecode
of a function proves that it needs no such object: ``for row in rows: total += row.v`` iterates over
its rows, and takes nothing of a row but attributes that are columns.  Then no code sees two rows at
a time, or anything else of a row, so the rows are one object with an attribute for each column that
is read, and the values of other columns are not made at all.  If a row goes anywhere else, or the
bytecode is of a shape that is not known here, rows are rows.
"""

from __future__ import annotations

import dis
import functools
import re
from itertools import repeat
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_FAST: Final = re.compile(r"(?:LOAD|STORE|DELETE)_FAST")
_SKIPPED: Final = frozenset(["CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"])
_LOADS: Final = frozenset(["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"])
_CHANGES: Final = frozenset(["STORE_FAST", "DELETE_FAST"])
_ATTRIBUTES: Final = frozenset(["LOAD_ATTR", "LOAD_METHOD"])
_OF_FRAMES: Final = frozenset(
    [
        *("breakpoint", "dir", "eval", "exec", "gc", "inspect", "locals", "pdb", "sys"),
        *("f_back", "f_locals", "gi_frame", "tb_frame", "traceback", "vars"),
    ]
)
"""Names by which code may reach local variables in another way."""


class _Step(NamedTuple):
    """One instruction."""

    name: str
    value: Any
    offset: int


class _NotProvenError(Exception):
    """A row may go where more of it can be seen."""


def columns_read(
    function: Any,
    argument: int,
    names: Sequence[str],
    *,
    row: type = tuple,
    methods: frozenset[str] = frozenset(),
) -> tuple[str, ...] | None:
    """Return the columns that are all that a function reads of its rows, one row at a time.

    ``None`` if that is not proven. `argument`: number of the parameter that iterates over rows.
    `names`: columns of the rows. `row`: class of rows, whose attributes are no columns. `methods`:
    attributes of that parameter which do not give rows; with any, it has a length too.

    Examples
    --------
    >>> def total(key, rows):
    ...     return sum(row.v for row in rows)
    >>> columns_read(total, 1, ["k", "v", "ts"])
    ('v',)
    """
    if isinstance(function, MethodType):
        function, argument = function.__func__, argument + 1
    if not isinstance(function, FunctionType) or "len" in function.__globals__:
        return None
    columns = frozenset(n for n in names if not (n.startswith("_") or hasattr(row, n)))
    read = _proven(function.__code__, argument, columns, methods)
    return None if read is None else tuple(name for name in dict.fromkeys(names) if name in read)


@functools.lru_cache(maxsize=1024)
def _proven(
    code: CodeType, argument: int, columns: frozenset[str], methods: frozenset[str]
) -> frozenset[str] | None:
    """Return the columns that code reads of rows; ``None`` if it may do more with one."""
    if argument >= code.co_argcount:
        return None
    try:
        return frozenset(_read_by(code, code.co_varnames[argument], columns, methods))
    except _NotProvenError:
        return None


def _read_by(
    code: CodeType, rows: str, columns: frozenset[str], methods: frozenset[str]
) -> Iterator[str]:
    """Yield the columns that code reads of rows, over which its variable `rows` iterates."""
    if rows in code.co_cellvars or not _OF_FRAMES.isdisjoint(code.co_names):
        raise _NotProvenError
    steps = list(_steps(code))
    end = _Step("", None, -1)
    variables: set[str] = set()  # that have a row
    inner: list[CodeType] = []  # comprehensions over the rows
    for place, step in enumerate(steps):
        if step.value != rows or not _FAST.match(step.name) or step.name in _CHANGES:
            continue
        after = [after for after in steps[place + 1 : place + 4] if after.name != "GET_ITER"]
        first, second = [*after, end, end][:2]
        is_sized = bool(methods) and steps[place - 1 : place] and steps[place - 1].value == "len"
        comprehension = _comprehension(steps[:place])
        if step.name in _LOADS and first.name == "FOR_ITER" and second.name == "STORE_FAST":
            variables.add(second.value)
        elif step.name in _LOADS and first[:2] == ("CALL", 0) and comprehension is not None:
            if _is_in_loop(step, code):
                raise _NotProvenError
            inner.append(comprehension)
        elif step.name in _LOADS and (
            (first.name in _ATTRIBUTES and first.value in methods)
            or (is_sized and steps[place - 1].name == "LOAD_GLOBAL" and first[:2] == ("CALL", 1))
        ):
            continue
        else:
            raise _NotProvenError
    if len(variables) + len(inner) > 1:  # two may have a row each
        raise _NotProvenError
    for place, (name, value, _) in enumerate(steps):
        if not _FAST.match(name) or value not in variables or name in _CHANGES:
            continue
        follows = [*steps[place + 1 : place + 2], end][0]
        if name not in _LOADS or follows.name != "LOAD_ATTR" or follows.value not in columns:
            raise _NotProvenError
        yield follows.value
    for of_inner in inner:
        yield from _read_by(of_inner, of_inner.co_varnames[0], columns, frozenset())


def _steps(code: CodeType) -> Iterator[_Step]:
    """Yield the instructions of code; those on two variables as two."""
    for instruction in dis.get_instructions(code):
        name, value, offset = instruction.opname, instruction.argval, instruction.offset
        if name in _SKIPPED:
            continue
        if name == "LOAD_ATTR" and instruction.argrepr != value:
            name = "LOAD_METHOD"
        parts = _FAST.findall(name)
        if len(parts) > 1 and isinstance(value, tuple):
            yield from map(_Step, parts, value, repeat(offset))
        else:
            yield _Step(name, value, offset)


def _is_in_loop(step: _Step, code: CodeType) -> bool:
    """Return whether code may come back to an instruction."""
    return any(
        "JUMP" in later.opname and later.offset >= step.offset >= later.argval
        for later in dis.get_instructions(code)
    )


def _comprehension(before: list[_Step]) -> CodeType | None:
    """Return the code of the function that the last instructions make; ``None`` if they do not."""
    while before and before[-1].name == "SET_FUNCTION_ATTRIBUTE":
        before = before[:-1]
    if len(before) < 2 or before[-1].name != "MAKE_FUNCTION":
        return None
    code = before[-2].value
    return code if isinstance(code, CodeType) and code.co_argcount == 1 else None


class Cursors:
    """Iterators over rows that are one object each."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._make = _cursor_class(names)
        self._over = _iterator_over(names) if names else None

    def over(self, columns: Sequence[Iterable[Any]], count: int) -> Iterator[Any]:
        """Return an iterator over `count` rows; `columns`: values of each of the names."""
        cursor = self._make()
        if self._over is None:
            return repeat(cursor, count)
        return self._over(cursor, columns[0] if len(columns) == 1 else zip(*columns, strict=True))


@functools.lru_cache(maxsize=256)
def _cursor_class(names: tuple[str, ...]) -> Callable[[], Any]:
    """Return the class of an object with these attributes."""

    def show(self: Any) -> str:
        """Return the present row as text, for debuggers."""
        return f"Row({', '.join(f'{name}={getattr(self, name)!r}' for name in names)}, ...)"

    return type("Row", (), {"__slots__": names, "__repr__": show})


@functools.lru_cache(maxsize=256)
def _iterator_over(names: tuple[str, ...]) -> Callable[[Any, Iterable[Any]], Iterator[Any]]:
    """Return the function that assigns each row to the attributes of an object, and yields it."""
    # Names that were read as attributes are identifiers; targets of a loop take the least time.
    targets = ", ".join(f"row.{name}" for name in names)
    source = f"def over(row, rows):\n    for {targets} in rows:\n        yield row\n"
    defined: dict[str, Any] = {}
    exec(source, defined)  # noqa: S102
    over: Callable[[Any, Iterable[Any]], Iterator[Any]] = defined["over"]
    return over
