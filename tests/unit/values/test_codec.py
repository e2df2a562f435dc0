"""Codecs read what they wrote, and refuse at once what could not be read later."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import math
import pickle
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from godwit.library.states.type_changes import read_plain
from godwit.model.errors import InvalidFlowError, StateEncodingError
from godwit.values.checks import TypeChecker, UnencodableError, is_same
from godwit.values.codec import (
    Codec,
    PickleCodec,
    State,
    is_immutable,
    make_codec,
)
from godwit.values.values import TaggedValues, state_as_json


class Book(msgspec.Struct):
    bids: dict[float, int] = msgspec.field(default_factory=dict)
    last: float | None = None


class Grown(msgspec.Struct):
    bids: dict[float, int] = msgspec.field(default_factory=dict)
    last: float | None = None
    trades: int = 0


class Frozen(msgspec.Struct, frozen=True):
    n: int = 0


@dataclasses.dataclass
class Counter:
    n: int = 0
    seen: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class FrozenCounter:
    n: int = 0


class Plain:
    def __init__(self) -> None:
        self.n = 0


class NeedsArguments:
    def __init__(self, n: int) -> None:
        self.n = n


class Contrary:
    """Can be compared with nothing."""

    def __init__(self, held: list[int]) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


class Side(enum.Enum):
    BUY = 1


def views(blobs: list[bytes]) -> list[memoryview]:
    return [memoryview(blob) for blob in blobs]


STATES: list[tuple[Any, Any]] = [
    (Book, Book(bids={1.5: 3}, last=2.0)),
    (Counter, Counter(n=3, seen={"a"})),
    (dict, {"a": [1, None, "x"], ("b", 2): 1.5}),
    (list, [1, b"x"]),
    (int, -5),
    (dict[str, set[int]], {"a": {1, 2}}),
    (list[dt.datetime], [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    (dict[str, Decimal], {"price": Decimal("1.10")}),
]


@pytest.mark.parametrize(("state_type", "state"), STATES, ids=[str(t) for t, _ in STATES])
@pytest.mark.parametrize("name", ["msgpack", "pickle"])
def test_state_comes_back_equal(name: Codec, state_type: Any, state: Any) -> None:
    codec = make_codec("o", name, state_type)
    codec = pickle.loads(pickle.dumps(codec))
    assert codec.decode(views(codec.encode([state, state_type(), state])))[::2] == [state, state]


def test_no_states_are_no_bytes() -> None:
    codec = make_codec("o", "msgpack", Book)
    assert codec.decode(views(codec.encode([]))) == []


def test_a_class_may_gain_fields_with_defaults() -> None:
    old = make_codec("o", "msgpack", Book)
    new = make_codec("o", "msgpack", Grown)
    assert new.decode(views(old.encode([Book(last=1.0)]))) == [Grown(last=1.0)]


def test_state_that_could_not_be_read_again_is_refused_when_it_is_written() -> None:
    codec = make_codec("o", "msgpack", Counter)
    states = [Counter(), Counter(n="three")]  # type: ignore[arg-type]  # as users do
    with pytest.raises(UnencodableError, match=r"\.n is 'three', declared as int") as caught:
        codec.encode(states)
    assert caught.value.index == 1


@pytest.mark.parametrize("value", [object(), "\ud800"])
def test_the_first_state_that_cannot_be_written_is_named(value: object) -> None:
    codec = make_codec("o", "msgpack", dict)
    with pytest.raises(UnencodableError) as caught:
        codec.encode([{}, {}, {"v": value}, {"v": value}])
    assert caught.value.index == 2


class Base(msgspec.Struct):
    n: int = 0


class Sub(Base):
    more: str = ""


@dataclasses.dataclass
class Holder:
    """Class whose annotations and `==` do not cover all of its value."""

    parts: list[Base] = dataclasses.field(default_factory=list)
    name: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    ratio: float = 0.0


@dataclasses.dataclass
class Counts:
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: collections.defaultdict(int))


@dataclasses.dataclass
class Alike:
    n: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Uncompared:
    n: int = 0
    seen: list[tuple[int, ...]] = dataclasses.field(default_factory=list, compare=False)


class InOrder(msgspec.Struct, array_like=True):
    n: int = 0


@dataclasses.dataclass
class Cached:
    n: int = 0

    def __post_init__(self) -> None:
        self.twice = 2 * self.n

    @functools.cached_property
    def thrice(self) -> int:
        return 3 * self.n


@pytest.mark.parametrize(
    ("state_type", "form"),
    [
        (Book, "native"),
        (Counter, "native"),
        (Holder, "native"),
        (dict[str, list[float]], "native"),
        (dict[tuple[int, str], Side], "native"),
        (int, "native"),
        (dict, "tagged"),
        (list[Any], "tagged"),
        (dict[str, dt.datetime], "tagged"),
        (Counts, "tagged"),
        (Alike, "tagged"),
        (Uncompared, "tagged"),
        (InOrder, "tagged"),
        (Cached, "tagged"),
        (collections.Counter, "tagged"),
    ],
    ids=str,
)
def test_types_that_msgspec_brings_back_whole_are_left_to_it(state_type: Any, form: str) -> None:
    assert make_codec("o", "msgpack", state_type).describe()["form"] == form


def back(state_type: Any, state: Any, *classes: type) -> Any:
    codec = make_codec("o", "msgpack", state_type, classes)
    return codec.decode(views(codec.encode([state_type(), state])))[1]


def test_a_factory_that_the_annotation_does_not_mention_lasts() -> None:
    state = back(Counts, Counts())
    state.counts["a"] += 1
    assert state == Counts(collections.defaultdict(int, a=1))


def test_a_subclass_in_a_place_for_its_base_keeps_its_fields_if_it_is_named() -> None:
    state = Holder(parts=[Sub(1, "x"), Base(2)])
    assert back(Holder, state, Sub) == state
    with pytest.raises(UnencodableError, match=r"\.parts\[0\] is Sub.*classes=\[Sub\]"):
        back(Holder, state)


@dataclasses.dataclass
class Tree:
    name: str = "root"
    parts: list[Tree] = dataclasses.field(default_factory=list)
    best: Tree | None = None
    by_name: dict[str, Tree] = dataclasses.field(default_factory=dict)


class Forest(msgspec.Struct):
    trees: list[Tree] = []
    n: int = 0


@pytest.mark.parametrize(
    "held", [Tree(), Tree("a", [Tree("b", [Tree()])], Tree("c"), {"d": Tree()})]
)
def test_classes_that_hold_themselves_come_back(held: Tree) -> None:
    assert make_codec("o", "msgpack", Tree).describe()["form"] == "native"
    assert back(Tree, held) == held
    forest = Forest([held, Tree()], 3)
    assert back(Forest, forest) == forest


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: setattr(tree, "extra", 1),
        lambda tree: tree.parts.append(Tree(parts=())),  # type: ignore[arg-type]
        lambda tree: setattr(tree.by_name["d"], "name", dt.date(2024, 1, 2)),
        lambda tree: setattr(tree.best, "parts", {Side.BUY}),
    ],
)
def test_what_would_come_back_otherwise_is_seen_at_any_depth(change: Any) -> None:
    tree = Tree("a", [], Tree(), {"d": Tree("d", [Tree()])})
    change(tree)
    with pytest.raises(UnencodableError, match=r"not a field of Tree|declared as"):
        back(Tree, tree)


def test_attributes_that_are_made_again_are_no_obstacle_and_others_are_named() -> None:
    state = Cached(2)
    assert state.thrice == 6
    state.n = 3
    with pytest.raises(UnencodableError, match="attribute 'twice', which is not a field of Cached"):
        back(Cached, state)
    state = Cached(2)
    assert state.thrice == 6
    again = back(Cached, state)
    assert (again.n, again.twice, again.thrice) == (2, 4, 6)
    holder = Holder()
    holder.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(UnencodableError, match="attribute 'extra', which is not a field of Holder"):
        back(Holder, holder)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Holder(name=dt.date(2024, 1, 2)), r"\.name is datetime.date.*, declared as str"),  # type: ignore[arg-type]
        (Holder(parts=(Base(),)), r"\.parts is \(Base.*, declared as list\[Base\]"),  # type: ignore[arg-type]
        (Holder(counts={1: 1}), r"\.counts\[key 1\] is 1, declared as str"),  # type: ignore[dict-item]
        (Holder(parts=[None]), r"\.parts\[0\] is None, declared as Base"),  # type: ignore[list-item]
        (Holder(ratio=None), r"\.ratio is None, declared as float"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_is_not_what_its_type_declares_is_named_with_its_place(
    state: Holder, said: str
) -> None:
    with pytest.raises(UnencodableError, match=said):
        back(Holder, state)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"a": [1, {"b": object()}]}, r"\['a'\]\[1\]\['b'\] is <object.* a type that state cannot"),
        ({"a": {1: Side.BUY}}, r"\['a'\]\[1\] is .*classes=\[Side\]"),
        ({Base: 1}, r"\[key <class .*Base'>\] is"),
        (
            {"f": collections.defaultdict(lambda: 0)},
            r"\['f'\] is a defaultdict that makes values by",
        ),
        ({"s": "\ud800"}, r"\['s'\] is text that is not valid Unicode"),
    ],
    ids=["object", "enumeration", "key", "factory", "text"],
)
def test_what_cannot_be_carried_is_named_with_its_place(held: Any, said: str) -> None:
    with pytest.raises(UnencodableError, match=said):
        back(dict, held)


def test_a_state_that_holds_itself_is_refused() -> None:
    held: dict[str, Any] = {}
    held["me"] = [held]
    with pytest.raises(
        UnencodableError, match=r"is a value that contains itself, or is nested too deeply"
    ):
        back(dict, held)


@pytest.mark.parametrize(
    ("state", "other"),
    [
        ({"seen": np.array([1.0, np.nan])}, {"seen": np.array([1.0, 2.0])}),
        ([np.zeros((2, 2))], [np.zeros(4)]),
        (np.arange(3), np.arange(3, dtype=np.int32)),
    ],
    ids=["not a number", "shape", "type"],
)
def test_arrays_can_be_pickled_although_they_are_equal_element_by_element(
    state: Any, other: Any
) -> None:
    codec = PickleCodec(type(state))
    (blob,) = codec.encode([state])
    (read,) = codec.decode([memoryview(blob)])
    assert is_same(state, read)
    assert not is_same(state, other)


def test_a_comparison_that_raises_is_no_end_of_the_epoch() -> None:
    state = Contrary([1, 2])
    (read,) = PickleCodec(Contrary).decode(views(PickleCodec(Contrary).encode([state])))
    assert read.held == [1, 2]
    assert not is_same(state, Contrary([1]))


def test_reading_makes_instances_of_the_operators_classes_alone() -> None:
    blob = make_codec("o", "msgpack", dict, [Base]).encode([{"a": Base()}])[0]
    with pytest.raises(UnencodableError, match="class 'Base' is not among the classes"):
        make_codec("o", "msgpack", dict, [Sub]).decode(views([blob]))


class Forgetful:
    def __init__(self) -> None:
        self.n = 0

    def __reduce__(self) -> Any:
        return Forgetful, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forgetful) and self.n == other.n

    __hash__ = None  # type: ignore[assignment]


def test_a_pickle_that_comes_back_as_something_else_is_refused() -> None:
    codec = make_codec("o", "pickle", Forgetful)
    changed = Forgetful()
    changed.n = 1
    with pytest.raises(UnencodableError, match="as another value") as caught:
        codec.encode([Forgetful(), changed])
    assert caught.value.index == 1


def test_bytes_that_are_no_state_are_named() -> None:
    codec = make_codec("o", "msgpack", Book)
    good = codec.encode([Book()])[0]
    with pytest.raises(UnencodableError) as caught:
        codec.decode(views([good, b"\xc1", good]))
    assert caught.value.index == 1


class Derived(Base):
    extra: int = 0


@dataclasses.dataclass
class Checked:
    """Can be made and changed into what it would not let be made."""

    n: int = 0

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is negative")


@dataclasses.dataclass
class Doubling:
    """Made again, it changes what stands in its fields."""

    seen: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen.append(len(self.seen))


AS_THEY_WERE: list[tuple[Any, Any]] = [
    (dict[str, int], {"a": 10**30}),
    (list[int], [1, 10**30, -(10**30)]),
    (int, 10**30),
    (int, True),
    (float, True),
    (float, 10**30),
    (dict[str, int], {"a": True}),
    (dict[str, float], {"a": 1, "b": 10**30}),
    (list[int], [True, 2]),
    (list[Base], [Base(1), Derived(2, 3)]),
    (dict[str, Base], {"a": Derived(1, 2)}),
    (set[int], {10**30}),
    (tuple[int, ...], (10**30, True)),
    (set[float], {math.nan, 1.0}),
    (dict[tuple[float, int], float], {(math.nan, 1): math.nan}),
    (complex, 3),
    (complex, True),
    (dict, {"a": 10**30, "b": True}),
    (list, [10**30, True]),
]


# Not by the states themselves: a set that holds a NaN is written in another order in every process.
NUMBERED = [f"{n}: {state_type}" for n, (state_type, _) in enumerate(AS_THEY_WERE)]


@pytest.mark.parametrize(("state_type", "state"), AS_THEY_WERE, ids=NUMBERED)
def test_what_a_codec_writes_it_reads_as_what_it_was(state_type: Any, state: Any) -> None:
    codec = make_codec("o", "msgpack", state_type, [Derived])
    states = [state, state_type(), state]
    read = codec.decode(views(codec.encode(states)))
    assert all(map(is_same, read, states))
    (one,) = codec.decode(views(codec.encode([state])))
    assert is_same(one, state)


class Sums(NamedTuple):
    n: int = 0
    s: float = 0.0


@dataclasses.dataclass
class Seen:
    first: dt.datetime | None = None
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


@pytest.mark.parametrize(
    "states", [[Sums(1, 2), Sums(2, 3.0)], [Seen(dt.datetime(2024, 5, 1, tzinfo=dt.UTC)), Seen()]]
)
def test_states_of_one_class_are_written_and_read_all_at_once(
    states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = make_codec("o", "msgpack", type(states[0]))
    assert codec.describe()["form"] == "tagged"
    for one_at_a_time in ("encode", "_read_record"):
        monkeypatch.delattr(TaggedValues, one_at_a_time)
    monkeypatch.setattr(TypeChecker, "misfit", None)
    read = codec.decode(views(codec.encode(states)))
    assert all(map(is_same, read, states))


def test_a_field_that_an_older_record_lacks_has_its_default() -> None:
    older = TaggedValues({"Sums": collections.namedtuple("Older", ["n"])})  # noqa: PYI024
    blobs = [older.encode(older._classes["Sums"](7))]
    assert make_codec("o", "msgpack", Sums).decode(views(blobs)) == [Sums(7, 0.0)]


def test_a_tagged_state_among_native_ones_is_shown_and_read_without_its_classes() -> None:
    codec = make_codec("o", "msgpack", dict[str, Base], [Derived])
    (blob,) = codec.encode([{"a": Derived(1, 2)}])
    assert state_as_json(blob) == '{"a":{"n":1,"extra":2}}'
    assert read_plain(blob, codec.describe()) == {"a": {"n": 1, "extra": 2}}


@pytest.mark.parametrize("state", [Checked(), Doubling()])
def test_a_state_that_its_own_class_would_not_make_again_is_refused(state: Any) -> None:
    codec = make_codec("o", "msgpack", dict, [Checked, Doubling])
    if isinstance(state, Checked):
        state.n = -1
    with pytest.raises(UnencodableError, match=r"another value|ValueError") as caught:
        codec.encode([{}, {"a": state}])
    assert caught.value.index == 1


def test_a_function_may_make_the_state() -> None:
    codec = make_codec("o", "msgpack", lambda: Book(last=1.0))
    assert codec.decode(views(codec.encode([Book()]))) == [Book()]


def test_a_class_that_msgpack_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(StateEncodingError) as caught:
        make_codec("prices", "msgpack", Plain)
    assert "Operator 'prices': state of type Plain cannot be written as msgpack" in str(
        caught.value
    )
    assert "codec='pickle'" in caught.value.remedy


def test_pickle_holds_any_importable_class() -> None:
    codec = make_codec("o", "pickle", Plain)
    state = Plain()
    state.n = 7
    assert codec.decode(views(codec.encode([state])))[0].n == 7
    with pytest.raises(UnencodableError) as caught:
        codec.encode([state, SimpleNamespace(f=lambda: None)])
    assert caught.value.index == 1


def test_pickling_a_class_of_the_main_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "__module__", "__main__")
    with pytest.raises(StateEncodingError, match=r"defined in the main script.*Move the class"):
        make_codec("o", "pickle", Plain)


def test_a_state_that_needs_arguments_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match=r"by NeedsArguments\(\): TypeError"):
        make_codec("o", "pickle", NeedsArguments)


def test_the_description_is_the_types_schema_or_the_class_of_a_pickle() -> None:
    described = make_codec("o", "msgpack", Counter).describe()
    assert described["type"] == {"kind": "class", "name": "Counter"}
    assert list(described["classes"]["Counter"]["fields"]) == ["n", "seen"]
    assert described["form"] == "native"
    assert make_codec("o", "msgpack", list).describe()["form"] == "tagged"
    described = make_codec("o", "pickle", Plain).describe()
    assert described == {"class": f"{__name__}.Plain"}


@pytest.mark.parametrize(
    "state",
    [1, 1.5, "x", b"x", (1,), None, True, dt.date(2024, 1, 1), Side.BUY, Frozen(), FrozenCounter()],
)
def test_values_that_cannot_be_changed_in_place_are_known(state: object) -> None:
    assert is_immutable(state)


@pytest.mark.parametrize("state", [{}, [], set(), bytearray(), Book(), Counter(), Plain()])
def test_values_that_can_be_changed_in_place_are_known(state: object) -> None:
    assert not is_immutable(state)


def test_a_state_shows_its_value() -> None:
    assert repr(State(3)) == "State(3)"
