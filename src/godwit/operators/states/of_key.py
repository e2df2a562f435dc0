"""What a function per key is given: its named states, each a value, a list or a map of the key.

They are read when they are touched, and count for the call that they were given to: used after it,
they raise.  What is changed in place counts like what is assigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from godwit.model.errors import UserFunctionError
from godwit.model.naming import did_you_mean, listing
from godwit.values.codec import HoldsValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.operators.states.cells import Cells
    from godwit.operators.states.lists import ListCells
    from godwit.operators.states.maps import MapCells
    from godwit.operators.states.values import ValueCells

__all__ = ["ListOfKey", "MapOfKey", "States", "ValueOfKey"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class NoSuchStateError(UserFunctionError, AttributeError):
    """A function asked for a state that its operator does not declare."""


class States:
    """The named states of one key, in one call: ``states.recent`` or ``states["recent"]``."""

    __slots__ = ("_cells", "_given", "_group", "_key", "_operator", "_over")

    def __init__(
        self, cells: Mapping[str, Cells], group: int, key: tuple[Any, ...], operator: str
    ) -> None:
        self._cells, self._group, self._key, self._operator = cells, group, key, operator
        self._given: dict[str, Any] = {}
        self._over = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        found = self._given.get(name)
        if found is None:
            self._insist()
            cells = self._cells.get(name)
            if cells is None:
                raise NoSuchStateError(
                    f"Operator {self._operator!r} has no state {name!r}.",
                    remedy=f"{did_you_mean(str(name), list(self._cells))}It declares "
                    f"{listing(self._cells)}.",
                    operator=self._operator,
                )
            found = self._given[name] = cells.of_key(self._group, self._insist)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in States.__slots__:
            object.__setattr__(self, name, value)
            return
        raise UserFunctionError(
            f"Operator {self._operator!r} was to set states.{name}.",
            remedy=f"Assign states.{name}.value, or use replace(...) of a list and items of a map.",
            operator=self._operator,
        )

    def __repr__(self) -> str:
        return f"States({', '.join(self._cells)})"

    def _forget(self) -> None:
        """Drop all of them."""
        for cells in self._cells.values():
            cells.forget(self._group)

    def _close(self) -> None:
        """Let nobody use them from now on."""
        self._over = True

    def _insist(self) -> None:
        if self._over:
            raise UserFunctionError(
                f"A state of key {self._key!r} of operator {self._operator!r} was used after the "
                "function that it was given to had returned, so that nothing of it would count.",
                remedy="Read what is needed of it within the call, and keep that.",
                operator=self._operator,
                key=self._key,
            )


class ValueOfKey(HoldsValue, Generic[T]):
    """A value of one key.

    Attributes
    ----------
    value
        It, or a new one if the key has none; assign to it, or change it in place.
    exists
        Whether the key has one.
    """

    __slots__ = ("_cells", "_group", "_insist")

    def __init__(self, cells: ValueCells, group: int, insist: Callable[[], None]) -> None:
        self._cells, self._group, self._insist = cells, group, insist

    @property
    def value(self) -> T:
        """The value."""
        self._insist()
        value: T = self._cells.read(self._group)
        return value

    @value.setter
    def value(self, value: T) -> None:
        self._insist()
        self._cells.assign(self._group, value)

    @property
    def exists(self) -> bool:
        """Whether the key has one."""
        self._insist()
        return self._cells.exists(self._group)

    def clear(self) -> None:
        """Forget it."""
        self._insist()
        self._cells.forget(self._group)

    def __repr__(self) -> str:
        return f"ValueOfKey({self.value!r})" if self.exists else "ValueOfKey()"


class ListOfKey(Sequence[T]):
    """A list of one key: a sequence that can be added to, replaced and cleared."""

    __slots__ = ("_cells", "_group", "_insist")

    def __init__(self, cells: ListCells, group: int, insist: Callable[[], None]) -> None:
        self._cells, self._group, self._insist = cells, group, insist

    def append(self, element: T) -> None:
        """Add an element at the end; reads the last page of the list, and no other."""
        self.extend([element])

    def extend(self, elements: Iterable[T]) -> None:
        """Add elements at the end."""
        self._insist()
        self._cells.extend(self._group, list(elements))

    def replace(self, elements: Iterable[T]) -> None:
        """Put other elements in the place of all."""
        self._insist()
        self._cells.replace(self._group, list(elements))

    def clear(self) -> None:
        """Forget all elements."""
        self._insist()
        self._cells.forget(self._group)

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        self._insist()
        return self._cells.is_there(self._group)

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        """Whether it has the elements of another list."""
        if isinstance(other, list | ListOfKey):
            return self._all() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list, which may change

    def __repr__(self) -> str:
        return f"ListOfKey({self._all()!r})"

    def _all(self) -> list[T]:
        self._insist()
        return self._cells.read(self._group)


class MapOfKey(MutableMapping[K, V]):
    """A map of one key: a mapping, in the order in which items were added."""

    __slots__ = ("_cells", "_group", "_insist")

    def __init__(self, cells: MapCells, group: int, insist: Callable[[], None]) -> None:
        self._cells, self._group, self._insist = cells, group, insist

    def __getitem__(self, item: K) -> V:
        self._insist()
        value: V = self._cells.read(self._group, item)
        return value

    def __setitem__(self, item: K, value: V) -> None:
        self._insist()
        self._cells.assign(self._group, item, value)

    def __delitem__(self, item: K) -> None:
        self._insist()
        self._cells.remove(self._group, item)

    def __contains__(self, item: object) -> bool:
        self._insist()
        return self._cells.is_there(self._group, item)

    def __iter__(self) -> Iterator[K]:
        self._insist()
        return iter(self._cells.items(self._group))

    def __len__(self) -> int:
        self._insist()
        return len(self._cells.items(self._group))

    def __reversed__(self) -> Iterator[K]:
        self._insist()
        yield from reversed(self._cells.items(self._group))

    def popitem(self) -> tuple[K, V]:
        """Remove the item that was added last, and give it."""
        for item in reversed(self):
            return item, self.pop(item)
        raise KeyError("popitem(): the map is empty")

    def clear(self) -> None:
        """Forget all items."""
        self._insist()
        self._cells.forget(self._group)

    def update(self, *others: Any, **items: Any) -> None:
        """Set many items, which are looked up together."""
        given: dict[Any, Any] = dict(*others, **items)
        self._insist()
        self._cells.expect(self._group, list(given))
        super().update(given)

    def __repr__(self) -> str:
        return f"MapOfKey({dict(self)!r})"
