"""Types of state as plain values, and types that cannot be state."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
from decimal import Decimal  # noqa: TC003 - looked up in a class's annotations
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import pytest

from godwit.values.types import UndescribableError, describe, node_text


class Side(enum.Enum):
    BUY = "b"
    SELL = ("s", 1)


class Limit(msgspec.Struct, tag=True):
    price: Decimal
    side: Side = Side.BUY


class Market(msgspec.Struct, tag=True):
    size: int = 0


@dataclasses.dataclass
class Tree:
    name: str = "root"
    parts: list[Tree] = dataclasses.field(default_factory=list)
    best: Tree | None = None


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Note(TypedDict, total=False):
    text: str


Symbol = NewType("Symbol", str)


class Plain:
    pass


@pytest.mark.parametrize(
    ("state_type", "node", "text"),
    [
        (int, "int", "int"),
        (None, "none", "None"),
        (Any, "any", "Any"),
        (Symbol, "str", "str"),
        (Annotated[int, msgspec.Meta(ge=0)], "int", "int"),
        (dt.datetime, "datetime", "datetime"),
        (list, {"kind": "list", "of": "any"}, "list[Any]"),
        (tuple, {"kind": "tuple", "of": "any"}, "tuple[Any, ...]"),
        (tuple[int, str], {"kind": "fixed", "of": ["int", "str"]}, "tuple[int, str]"),
        (tuple[()], {"kind": "fixed", "of": []}, "tuple[()]"),
        (
            dict[str, set[bytes]],
            {"kind": "dict", "key": "str", "of": {"kind": "set", "of": "bytes"}},
            "dict[str, set[bytes]]",
        ),
        (collections.Counter, {"kind": "counter", "key": "any", "of": "int"}, "counter[Any, int]"),
        (int | None, {"kind": "union", "of": ["int", "none"]}, "int | None"),
        (int | Any, "any", "Any"),
        (Literal["a", 1], {"kind": "literal", "values": ["a", 1]}, "Literal['a', 1]"),
        (Literal[Side.BUY], {"kind": "class", "name": "Side"}, "Side"),
        (collections.abc.Sequence[int], "any", "Any"),
        (Limit | Market, None, "Limit | Market"),
    ],
    ids=str,
)
def test_types_are_described_by_plain_values(state_type: Any, node: Any, text: str) -> None:
    described = describe(state_type).schema
    assert node is None or described["type"] == node
    assert node_text(described["type"]) == text
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(described)) == described


def test_classes_are_described_by_their_fields_once() -> None:
    tree = {"kind": "class", "name": "Tree"}
    assert describe(Tree).schema == {
        "type": tree,
        "classes": {
            "Tree": {
                "kind": "record",
                "fields": {
                    "name": {"type": "str", "default": "root"},
                    "parts": {"type": {"kind": "list", "of": tree}, "default": []},
                    "best": {"type": {"kind": "union", "of": [tree, "none"]}, "default": None},
                },
            }
        },
    }
    described = describe(list[Limit | Market])
    assert described.classes == {"Limit": Limit, "Market": Market, "Side": Side}
    assert described.schema["classes"]["Limit"] == {
        "kind": "record",
        "fields": {
            "price": {"type": "decimal"},
            "side": {"type": {"kind": "class", "name": "Side"}, "default": "b"},
        },
        "tag": ["type", "Limit"],
    }
    assert described.schema["classes"]["Side"] == {
        "kind": "enum",
        "members": {"BUY": "b", "SELL": "('s', 1)"},
    }
    assert describe(dict[str, Point | Note]).schema["classes"] == {
        "Point": {
            "kind": "namedtuple",
            "fields": {"x": {"type": "int"}, "y": {"type": "float", "default": 0.0}},
        },
        "Note": {"kind": "typeddict", "fields": {"text": {"type": "str", "default": None}}},
    }


def test_other_classes_may_be_given_names() -> None:
    assert describe(dict, {"order/v1": Limit}).classes == {"order/v1": Limit, "Side": Side}
    assert list(describe(dict, [Market]).classes) == ["Market"]


def other_tree() -> Any:
    @dataclasses.dataclass
    class Tree:
        n: int = 0

    return Tree


@dataclasses.dataclass
class Sloppy:
    inner: dict[str, Plain] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("state_type", "said"),
    [
        (Plain, "state: Plain is a class that declares no fields"),
        (Sloppy, r"Sloppy.inner\[\]: Plain is a class that declares no fields"),
        (dict[str, Tree | other_tree()], r"state\[\]: .*Tree and .*Tree share a name"),  # type: ignore[misc]
        (dict[str, sorted], r"state\[\]: <built-in function sorted> is not a type"),  # type: ignore[valid-type]
    ],
    ids=str,
)
def test_what_cannot_be_state_is_named_with_its_place(state_type: Any, said: str) -> None:
    with pytest.raises(UndescribableError, match=said):
        describe(state_type)
