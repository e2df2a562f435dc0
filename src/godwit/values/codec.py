"""Codecs: encoding of one key's state as bytes.

Problem: a checkpoint must be safe to open, and a committed state must be read back unchanged in
the next epoch, and in the next version of the program.  Hence msgpack by default: compact, typed
where the declared type is complete, tagged elsewhere, and reading runs no code.  A state that
would not come back equal is refused where it is made.  Pickle is for state that msgpack cannot
hold, and has to be asked for by name: opening pickled state runs code.

`HoldsValue` is the base of states that hold one value and stand for it: ``state += 1``,
``if state:``, ``state == 0``.  Python would answer some of these without a word, and wrongly: every
object is true, and equal to nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import operator
import pickle
import typing
import uuid
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
)

import msgspec

from godwit.model.errors import InvalidFlowError, StateEncodingError
from godwit.values.checks import (
    TypeChecker,
    UnencodableError,
    UnsupportedValueError,
    apply_each,
    failing_path,
    is_same,
    runs_code,
)
from godwit.values.types import (
    Described,
    UndescribableError,
    describe,
    is_native,
    is_record,
    reads_native,
)
from godwit.values.values import EXTENSION_MARKERS, TaggedValues, as_extension, join_blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class HoldsValue:
    """Base of holders of a ``value`` that refuse to be used as the value itself."""

    __slots__ = ()

    value: Any

    def _refuse(self, *_: object) -> NoReturn:
        """Raise `TypeError`: the holder (`gw.types.State`) was used instead of its value."""
        msg = (
            f"this is a {type(self).__name__}, which holds a value and is none: use its .value, as "
            "in state.value += 1"
        )
        raise TypeError(msg)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        msg = (
            f"a {type(self).__name__} has no {name!r}: it holds a value, so use its .value, as in "
            f"state.value.{name}"
        )
        raise AttributeError(msg)

    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __contains__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = _refuse
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _refuse
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _refuse
    __or__ = __ror__ = __ior__ = __and__ = __iand__ = __int__ = __float__ = __index__ = _refuse


class PickleCodec:
    """Codec by pickle; decoding runs code, so only trusted checkpoints may be opened."""

    name: Final = "pickle"

    def __init__(self, state_type: Any) -> None:
        self._type = state_type

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Encode every state, and check that it decodes to an equal one."""
        blobs = apply_each(_pickle_state, states)
        read = apply_each(pickle.loads, blobs)
        for index, (state, back) in enumerate(zip(states, read, strict=True)):
            if not _came_back(state, back):
                raise UnencodableError(
                    index, f"it is decoded from its pickle as another value, {back!r:.100}"
                )
        return blobs

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Decode every state."""
        return apply_each(pickle.loads, blobs)

    @property
    def state_type(self) -> Any:
        """Declared type of a state."""
        return self._type

    def describe(self) -> dict[str, Any]:
        """Return the description of the encoding for the checkpoint: the name of the class."""
        name = getattr(self._type, "__qualname__", repr(self._type))
        return {"class": f"{getattr(self._type, '__module__', '')}.{name}"}


def _pickle_state(state: Any) -> bytes:
    """Pickle a state."""
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def _came_back(state: Any, back: Any) -> bool:
    """Return whether a state (`back`) decoded from its pickle equals the original."""
    try:
        return _says_equal(state, back) or is_same(state, back)
    except RecursionError:  # it contains itself
        return _pickle_state(state) == _pickle_state(back)


def _says_equal(state: Any, back: Any) -> bool:
    """Return whether two states are equal by ``==``; ``False`` if that raises."""
    try:
        return bool(state == back)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - arrays have no single answer, other classes none at all
        return False


T = TypeVar("T")
Codec: TypeAlias = Literal["msgpack", "pickle"]
CODECS: Final[tuple[Codec, ...]] = get_args(Codec)

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
    uuid.UUID,
)


class State(HoldsValue, Generic[T]):
    """Handle of a state whose type cannot be changed in place, such as ``int`` or a tuple.

    Godwit makes it: functions of ``process(..., state=int)`` get it as their third argument.

    Attributes
    ----------
    value
        The state; assign to it to change it.

    Examples
    --------
    >>> def count(key, rows, state):
    ...     state.value += len(rows)
    """

    __slots__ = ("value",)

    value: T

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"State({self.value!r})"


class StateCodec(Protocol):
    """Port: encodes and decodes the state of one operator's keys."""

    @property
    def name(self) -> Codec:
        """Name of the codec."""

    @property
    def state_type(self) -> Any:
        """Declared type of a state."""

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Encode every state. Raises `UnencodableError` for the first that cannot be."""

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Decode every state. Raises `UnencodableError` for the first that cannot be."""

    def describe(self) -> dict[str, Any]:
        """Describe the encoding of states as plain values, for the checkpoint."""


class MsgpackCodec:
    """Codec by msgpack, in a native or a tagged form.

    *Native*: msgspec writes and reads the declared type. Only for types that it reads back
    completely; all states of a batch are read back and compared at once.
    *Tagged*: values carry their types (`TaggedValues`). For all other types, and, of the first
    kind, for a state that did not come back equal, as one with an integer beyond 64 bits.

    Invariant: `decode` returns a state equal to the one that `encode` wrote. A tagged
    state among native ones is one extension, so its first byte says which form it is in; where
    reading runs code of the user's classes, the written state is read back and compared.
    """

    name: Final = "msgpack"

    def __init__(self, state_type: Any, described: Described, *, native: bool) -> None:
        self._type, self._description, self._is_native = state_type, described, native
        self._tagged = TaggedValues(described.classes)
        self._fits = TypeChecker(described)
        self._encode = msgspec.msgpack.Encoder().encode

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(MsgpackCodec, native=self._is_native)
        return make, (self._type, self._description)

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Encode every state, and check that it decodes to an equal one."""
        if not self._is_native:
            return self._encode_all_tagged(states)
        try:
            blobs = list(map(self._encode, states))
            read = self._decode_native(blobs)
            differing = () if self._are_equal(states, read) else range(len(states))
        except Exception:  # noqa: BLE001 - each for itself, the one that failed says why
            return apply_each(self._encode_one, states)
        for index in differing:
            if not is_same(states[index], read[index]):
                blobs[index : index + 1] = apply_each(
                    self._encode_as_extension, [states[index]], index
                )
        return blobs

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Decode every state."""
        try:
            if self._is_native:
                return self._decode_native(blobs)
            states = self._tagged.decode_all(blobs, self._root_class)
        except Exception:  # noqa: BLE001 - as above; and a native state may be tagged for itself
            return apply_each(self._decode_one, blobs)
        if not all(issubclass(kind, self._root_class) for kind in set(map(type, states))):
            return apply_each(
                self._decode_one, blobs
            )  # of a record, some may be in the native form
        return states

    @property
    def state_type(self) -> Any:
        """Declared type of a state."""
        return self._type

    def describe(self) -> dict[str, Any]:
        """Return the type's description and the encoding's form, for the checkpoint."""
        return {**self._description.schema, "form": "native" if self._is_native else "tagged"}

    def with_names(self, renamed: Mapping[str, str]) -> MsgpackCodec:
        """Return a codec that also reads classes by former names (old name → new name)."""
        classes = self._description.classes
        former_names = {old: classes[new] for old, new in renamed.items()}
        described = dataclasses.replace(self._description, classes={**former_names, **classes})
        return MsgpackCodec(self._type, described, native=self._is_native)

    @property
    def reads_native(self) -> bool:
        """True if msgspec can decode states of this type from plain msgpack (native form)."""
        try:
            return self._decode_typed is not None and reads_native(self._description)
        except Exception:  # noqa: BLE001 - msgspec does not know the type
            return False

    @functools.cached_property
    def _runs_code(self) -> bool:
        """True if decoding values tagged with their classes runs code of these classes."""
        return any(map(runs_code, self._description.classes.values()))

    @functools.cached_property
    def _root_class(self) -> Any:
        """Class of every state; `object` if there is no single one."""
        kind = typing.get_origin(self._type) or self._type
        return kind if isinstance(kind, type) and not typing.is_typeddict(kind) else object

    @functools.cached_property
    def _decode_typed(self) -> Callable[[Any], Any]:
        """Decoder of one state in the native form."""
        return msgspec.msgpack.Decoder(self._type).decode

    @functools.cached_property
    def _decode_list(self) -> Callable[[Any], list[Any]]:
        """Decoder of many states in the native form, as one array."""
        return msgspec.msgpack.Decoder(list[self._type]).decode  # type: ignore[name-defined]

    @functools.cached_property
    def _are_equal(self) -> Callable[[Sequence[Any], Sequence[Any]], bool]:
        """Function that returns whether two lists of states are equal."""
        if dataclasses.is_dataclass(self._type) and getattr(self._type, "__dictoffset__", None):
            attributes = operator.attrgetter("__dict__")  # not only the fields; and faster
            return lambda first, second: (
                list(map(attributes, first)) == list(map(attributes, second))
            )
        return operator.eq

    def _decode_native(self, blobs: Sequence[bytes | memoryview]) -> list[Any]:
        """Decode states of the native form, all at once."""
        return self._decode_list(join_blobs(blobs))

    def _encode_one(self, state: Any) -> bytes:
        """Encode one state: in the native form if that decodes to an equal state, else tagged."""
        try:
            blob = self._encode(state)
            came_back = is_same(state, self._decode_typed(blob))
        except Exception:  # noqa: BLE001 - the tagged form reports the cause
            came_back = False
        return blob if came_back else self._encode_as_extension(state)

    def _encode_as_extension(self, state: Any) -> bytes:
        """Encode a state in the tagged form, marked so that it can stand among native states."""
        blob = as_extension(self._encode_tagged(state))
        _check_same(state, self._tagged.decode(blob))
        return blob

    def _encode_all_tagged(self, states: Sequence[Any]) -> list[bytes]:
        """Encode all states in the tagged form."""
        blobs = None
        with contextlib.suppress(Exception):  # then one by one, to report the cause
            if self._fits.all(states):
                blobs = self._tagged.encode_all(states)
        if blobs is None:
            blobs = apply_each(self._encode_tagged, states)
        if self._runs_code:
            pairs = list(zip(states, blobs, strict=True))
            apply_each(lambda pair: _check_same(pair[0], self._tagged.decode(pair[1])), pairs)
        return blobs

    def _encode_tagged(self, state: Any) -> bytes:
        """Encode one state in the tagged form; raise, naming the part, if that is not possible."""
        if not self._fits(state):
            raise UnsupportedValueError(self._fits.explain(state))
        try:
            return self._tagged.encode(state)
        except UnsupportedValueError:
            path, part = failing_path(state, lambda part: bool(self._unsupported_reason(part)))
            raise UnsupportedValueError(
                f"{path or 'it'} is {self._unsupported_reason(part)}"
            ) from None

    def _unsupported_reason(self, part: Any) -> str:
        """Return the reason why a part of a state cannot be encoded; empty if it can."""
        try:
            self._tagged.encode(part)
        except UnsupportedValueError as error:
            return str(error)
        return ""

    def _decode_one(self, blob: memoryview) -> Any:
        """Decode one state of either form."""
        if self._is_native and blob[0] not in EXTENSION_MARKERS:
            return self._decode_typed(blob)
        state = self._tagged.decode(blob)
        if isinstance(state, self._root_class) or self._fits(state):
            return state
        if is_record(self._root_class):
            return self._decode_typed(blob)
        raise UnsupportedValueError(f"it is a {type(state).__qualname__}")


def _check_same(state: Any, read: Any) -> None:
    """Raise if a state was decoded to another value (`read`)."""
    if not is_same(state, read):
        raise UnsupportedValueError(f"it is decoded as another value, {read!r:.100}")


def make_state(operator: str, state_type: Any) -> Any:
    """Return the state of a new key; refuse a type that cannot be called without arguments."""
    try:
        return state_type()
    except Exception as error:
        raise InvalidFlowError(
            f"Operator {operator!r} cannot create the state of a new key by "
            f"{state_type_name(state_type)}(): {type(error).__name__}: {error}.",
            remedy="Give a type that can be called without arguments, such as dict, int, or a "
            "class whose fields have defaults.",
            operator=operator,
        ) from error


def make_codec(
    operator: str,
    codec: Codec,
    state_type: Any,
    state_classes: Mapping[str, type] | Sequence[type] = (),
) -> StateCodec:
    """Return the codec of an operator, checked with the state of a new key.

    `state_classes`: classes that state may hold besides those that its type mentions. Raises
    `InvalidFlowError` if a new key's state cannot be made, and `StateEncodingError` if the codec
    cannot encode or decode that state.
    """
    new = make_state(operator, state_type)
    is_type = isinstance(state_type, type) or hasattr(state_type, "__origin__")
    value_type = state_type if is_type else type(new)
    if codec == "pickle" and getattr(value_type, "__module__", "") == "__main__":
        raise StateEncodingError(
            f"Operator {operator!r} pickles {state_type_name(value_type)}, which is defined in the "
            "main script.",
            remedy="Move the class into a module that executors can import, or make it a "
            "dataclass and use codec='msgpack'.",
            operator=operator,
        )
    try:
        instance = (
            PickleCodec(value_type)
            if codec == "pickle"
            else _msgpack_codec_for(value_type, state_classes, new)
        )
        instance.decode([memoryview(blob) for blob in instance.encode([new])])
    except (UndescribableError, UnencodableError) as error:
        raise StateEncodingError(
            f"Operator {operator!r}: state of type {state_type_name(value_type)} cannot be written "
            f"as {codec}: {error}.",
            remedy="Use a msgspec.Struct, a dataclass, or built-in types"
            + (", or ask for codec='pickle'." if codec == "msgpack" else " that can be pickled."),
            operator=operator,
            type=state_type_name(value_type),
        ) from error
    return instance


def _msgpack_codec_for(
    value_type: Any, state_classes: Mapping[str, type] | Sequence[type], new: Any
) -> MsgpackCodec:
    """Return the codec of a type, in the native form if that brings back the new state."""
    described = describe(value_type, state_classes)
    if is_native(value_type, described):
        try:
            back = msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=value_type)
        except Exception:  # noqa: BLE001 - the tagged form reports the cause
            back = None
        # A new state that is equal only in part, such as a defaultdict in a field that says dict,
        # shows how the class is used.
        if is_same(new, back):
            return MsgpackCodec(value_type, described, native=True)
    return MsgpackCodec(value_type, described, native=False)


def is_immutable(state: object) -> bool:
    """Return whether a state is immutable, so that functions get it in a `gw.types.State`."""
    if isinstance(state, msgspec.Struct):
        return bool(state.__struct_config__.frozen)
    parameters = getattr(type(state), "__dataclass_params__", None)
    if parameters is not None:
        return bool(parameters.frozen)
    return isinstance(state, _IMMUTABLE)


def state_type_name(state_type: Any) -> str:
    """Return the name of a type of state, for messages."""
    return getattr(state_type, "__qualname__", None) or repr(state_type)
