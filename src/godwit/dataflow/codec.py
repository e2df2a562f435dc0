"""How the state of one key becomes bytes, and what kinds of state there are.

Problem: a checkpoint must be safe to open, and what is committed must be readable in the next
epoch and by the next version of the program.  Hence msgpack by default: typed, compact, runs no
code when read, and a field may be added with a default.  Every state that is written is read back
before it is committed, since a field that holds another type than it declares encodes well and
fails only when read.  Pickle is for state that msgpack cannot hold, and has to be asked for by
name: opening pickled state runs code.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import typing
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec

from godwit.model.errors import InvalidFlowError, StateEncodingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["State", "StateCodec", "is_immutable", "make_codec", "make_state"]

T = TypeVar("T")

_IMMUTABLE = (
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    frozenset,
    type(None),
    decimal.Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    enum.Enum,
)


class State(Generic[T]):
    """Holds state of a type that cannot be changed in place, such as ``int`` or a tuple.

    Attributes
    ----------
    value
        The state; assign to it.

    Examples
    --------
    >>> def count(key, rows, state):
    ...     state.value += len(rows)
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"State({self.value!r})"


class StateCodec(Protocol):
    """Writes and reads the state of one operator's keys.

    Attributes
    ----------
    name
        ``"msgpack"`` or ``"pickle"``.
    """

    @property
    def name(self) -> Literal["msgpack", "pickle"]:
        """What it is called."""

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Write every state. Raises `UnencodableError` for the first that cannot be written."""

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Read every state. Raises `UnencodableError` for the first that cannot be read."""

    def describe(self) -> str:
        """Return what must be the same for old state to be readable."""


class UnencodableError(Exception):
    """A state cannot be written or read.

    Attributes
    ----------
    index
        Position of the state.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class MsgpackCodec:
    """Msgpack, typed.

    Parameters
    ----------
    state_type
        What a key's state is: a class, or a type such as ``dict[str, set[int]]``.
    """

    name: Final = "msgpack"

    def __init__(self, state_type: Any) -> None:
        self._type = state_type
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(state_type).decode
        self._decode_list = msgspec.msgpack.Decoder(list[state_type]).decode
        _remove_notes(state_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return MsgpackCodec, (self._type,)

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Write every state, and make sure that it can be read."""
        try:
            blobs = list(map(self._encode, states))
        except Exception as error:
            raise _first_failure(self._encode, states) from error
        self._read(blobs)
        return blobs

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Read every state."""
        return self._read(blobs)

    def describe(self) -> str:
        """Return the shape of the type; a class may be renamed, or gain fields."""
        shape = type(msgspec.inspect.type_info(self._type)).__name__
        _remove_notes(self._type)
        return shape

    def _read(self, blobs: Sequence[bytes | memoryview]) -> list[Any]:
        # All states as one msgpack array (marker 0xdd, length in 4 bytes): one call reads them.
        header = b"\xdd" + len(blobs).to_bytes(4, "big")
        try:
            states: list[Any] = self._decode_list(b"".join([header, *blobs]))
        except Exception as error:
            raise _first_failure(self._decode, blobs) from error
        return states


class PickleCodec:
    """Pickle; reading it runs code, so only checkpoints that are trusted may be opened.

    Parameters
    ----------
    state_type
        What a key's state is.
    """

    name: Final = "pickle"

    def __init__(self, state_type: Any) -> None:
        self._type = state_type

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Write every state."""
        return _each(_pickled, states)

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Read every state."""
        return _each(pickle.loads, blobs)

    def describe(self) -> str:
        """Return the class: a pickle names the class it is of."""
        name = getattr(self._type, "__qualname__", repr(self._type))
        return f"{getattr(self._type, '__module__', '')}.{name}"


def make_state(operator: str, state_type: Any) -> Any:
    """Make the state of a key that is new.

    Raises
    ------
    InvalidFlowError
        If the type cannot be called without arguments.
    """
    try:
        return state_type()
    except Exception as error:
        raise InvalidFlowError(
            f"Operator {operator!r}: the state of a new key, {_name(state_type)}(), cannot be "
            f"made: {type(error).__name__}: {error}.",
            remedy="Give a type that can be called without arguments, such as dict, int, or a "
            "class whose fields have defaults.",
            operator=operator,
        ) from error


def make_codec(operator: str, codec: str, state_type: Any) -> StateCodec:
    """Make the codec of an operator, and check it on the state of a new key.

    Parameters
    ----------
    operator
        The operator's name, for messages.
    codec
        ``"msgpack"`` or ``"pickle"``.
    state_type
        A type, or a function that makes a new key's state (its type is what counts then).

    Raises
    ------
    InvalidFlowError
        If there is no such codec, or a new key's state cannot be made.
    StateEncodingError
        If the codec cannot write the state of a new key or read it back.
    """
    if codec not in ("msgpack", "pickle"):
        raise InvalidFlowError(
            f"Operator {operator!r} has codec {codec!r}.",
            remedy="Give 'msgpack', or 'pickle' for state that msgpack cannot hold.",
            operator=operator,
        )
    new = make_state(operator, state_type)
    is_type = isinstance(state_type, type) or hasattr(state_type, "__origin__")
    held = state_type if is_type else type(new)
    in_script = getattr(held, "__module__", "") == "__main__"
    if in_script and isinstance(held, type) and issubclass(held, msgspec.Struct):
        # Spark sends classes of the main script by value, and a Struct loses its fields on the way.
        raise StateEncodingError(
            f"Operator {operator!r} keeps {_name(held)}, a msgspec.Struct that is defined in the "
            "main script, and Spark cannot send such a class to executors.",
            remedy="Make it a dataclass, or move it into a module that executors can import.",
            operator=operator,
            type=_name(held),
        )
    if codec == "pickle" and in_script:
        raise StateEncodingError(
            f"Operator {operator!r} pickles {_name(held)}, which is defined in the main script.",
            remedy="Move the class into a module that executors can import, or make it a "
            "dataclass and use codec='msgpack'.",
            operator=operator,
        )
    try:
        made: StateCodec = MsgpackCodec(held) if codec == "msgpack" else PickleCodec(held)
        made.decode([memoryview(blob) for blob in made.encode([new])])
    except (TypeError, UnencodableError) as error:
        raise StateEncodingError(
            f"Operator {operator!r}: state of type {_name(held)} cannot be written as {codec}: "
            f"{error}.",
            remedy="Use a msgspec.Struct, a dataclass, or built-in types"
            + (", or ask for codec='pickle'." if codec == "msgpack" else " that can be pickled."),
            operator=operator,
            type=_name(held),
        ) from error
    return made


def is_immutable(state: object) -> bool:
    """Whether a function could not change `state` in place, so that it needs a `State`."""
    if isinstance(state, msgspec.Struct):
        return bool(state.__struct_config__.frozen)
    parameters = getattr(type(state), "__dataclass_params__", None)
    if parameters is not None:
        return bool(parameters.frozen)
    return isinstance(state, _IMMUTABLE)


_NOTES = "__msgspec_cache__"


def _remove_notes(held: Any) -> None:
    """Remove what msgspec notes on classes of the main script.

    Such a class is sent to executors by value, with everything on it, and these notes cannot be
    pickled.  They are a cache: what was made of the class already has its own.
    """
    for argument in typing.get_args(held):
        _remove_notes(argument)
    if getattr(held, "__module__", "") != "__main__" or not dataclasses.is_dataclass(held):
        return
    if _NOTES in vars(held):
        delattr(held, _NOTES)
        for annotation in typing.get_type_hints(held).values():
            _remove_notes(annotation)


def _pickled(state: Any) -> bytes:
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def _each(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    try:
        return list(map(function, values))
    except Exception as error:
        raise _first_failure(function, values) from error


def _first_failure(function: Callable[[Any], Any], values: Sequence[Any]) -> UnencodableError:
    for index, value in enumerate(values):
        try:
            function(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is reported
            return UnencodableError(index, f"{type(error).__name__}: {error}")
    return UnencodableError(0, "the states can be handled one by one, but not together")


def _name(state_type: Any) -> str:
    return getattr(state_type, "__qualname__", None) or repr(state_type)
