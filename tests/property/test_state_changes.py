"""Old bytes say the same to a changed class, or the change is refused; damaged ones are refused."""

from __future__ import annotations

import datetime as dt
from types import GenericAlias
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, description_in, plain
from godwit.library.process import ProcessOperator
from godwit.model.errors import CheckpointMismatchError, StateEncodingError
from godwit.values.checks import UnencodableError
from godwit.values.codec import make_codec

PROFILE = settings(derandomize=True, deadline=None, max_examples=rounds(30, 150), database=None)

KINDS: dict[str, tuple[Any, Any, st.SearchStrategy[Any]]] = {
    "int": (int, 0, st.integers(-(2**50), 2**50)),
    "long": (int, 0, st.integers(2**53, 2**53 + 9) | st.integers(2**64, 2**70)),
    "float": (float, 0.0, st.floats(allow_nan=False)),
    "text": (str, "", st.text(max_size=4)),
    "optional": (int | None, None, st.none() | st.integers(-9, 9)),
    "pairs": (
        list[tuple[int, str]],
        (),
        st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2))),
    ),
    "sums": (dict[str, int], (), st.dictionaries(st.text(max_size=2), st.integers(0, 9))),
    "open": (list, (), st.lists(st.tuples(st.integers(), st.dates()), max_size=2)),
    "when": (dt.datetime | None, None, st.none() | st.datetimes(timezones=st.just(dt.UTC))),
}
# What a type may become, and must not refuse (a number that is not exact is refused by its key).
WIDER: dict[str, Any] = {
    "int": float | None,
    "long": float,
    "float": float | None,
    "text": str | None,
    "optional": float | None,
    "sums": dict[str, float],
}
NARROWER: dict[str, Any] = {"float": int, "optional": int, "open": list[int], "pairs": list[str]}
DEFAULTS = {int: 0}


def struct(fields: dict[str, Any]) -> type:
    def field(default: Any) -> Any:
        return msgspec.field(default_factory=list) if default == () else default

    return msgspec.defstruct(
        "State",
        [
            (
                name,
                kind,
                msgspec.field(default_factory=dict) if name[:4] == "sums" else field(default),
            )
            for name, (kind, default) in fields.items()
        ],
    )


def operator(state_type: Any) -> ProcessOperator:
    return ProcessOperator(
        name="o",
        keys=pa.schema({"k": pa.int64()}),
        inputs=pa.schema({"v": pa.int64()}),
        function=lambda key, rows, state: None,
        state_type=state_type,
        output=pa.schema({"n": pa.int64()}),
    )


@PROFILE
@given(data=st.data())
def test_old_state_says_the_same_to_a_changed_class_or_the_change_is_refused(data: Any) -> None:
    kept = data.draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True, max_size=5))
    gone = data.draw(st.lists(st.sampled_from(["text", "sums", "open"]), unique=True, max_size=1))
    added = data.draw(
        st.lists(st.sampled_from(["float", "pairs", "when"]), unique=True, max_size=1)
    )
    changed = {name: data.draw(st.sampled_from(["same", "wider", "narrower"])) for name in kept}
    old_fields = {f"{name}_k": KINDS[name][:2] for name in kept}
    new_fields = dict(old_fields)
    for name in kept:
        into = {"wider": WIDER, "narrower": NARROWER}.get(changed[name], {}).get(name)
        if into is not None:
            new_fields[f"{name}_k"] = (into, DEFAULTS.get(into, KINDS[name][1]))
    old_fields |= {f"{name}_gone": KINDS[name][:2] for name in gone}
    new_fields |= {f"{name}_new": KINDS[name][:2] for name in added}
    old, new = operator(struct(old_fields)), operator(struct(new_fields))
    description_in = old.describe_state()
    stored = msgspec.structs.replace(description_in, type=plain(description_in.type))
    refused = bool(gone and added) or any(
        changed[name] == "narrower" and name in NARROWER for name in kept
    )
    try:
        upgrade = new.upgrade_from(stored)
    except CheckpointMismatchError:
        assert refused
        return
    assert not refused

    values = {name: data.draw(KINDS[name.split("_")[0]][2]) for name in old_fields}
    (blob,) = old._codec.encode([old._state_type(**values)])
    if upgrade is not None:
        batch = pa.record_batch({"state": pa.array([blob], pa.large_binary())})
        exact = all(
            float(values["long_k"]) == values["long_k"]
            for name in kept
            if name == "long" and changed[name] == "wider"
        )
        refusal = None
        try:
            blob = upgrade(batch).column(0)[0].as_py()
        except StateEncodingError as error:
            refusal = str(error)
        if refusal is not None:
            assert not exact
            assert "a number that the declared type does not" in refusal
            return
    (state,) = new._codec.decode([memoryview(blob)])
    fresh = new._state_type()
    for name in new_fields:
        assert getattr(state, name) == values.get(name, getattr(fresh, name))


def list_of(of: Any) -> Any:
    return GenericAlias(list, (of,))


def dict_of(of: Any) -> Any:
    return GenericAlias(dict, (str, of))


NESTED: dict[str, tuple[Any, Any]] = {
    "itself": (lambda cls: cls, lambda one: one),
    "in a list": (list_of, lambda one: [one]),
    "in a dict": (dict_of, lambda one: {"k": one}),
    "in a tuple": (
        lambda cls: list_of(GenericAlias(tuple, (int, cls))),
        lambda one: [(1, one)],
    ),
    "in lists": (lambda cls: dict_of(list_of(cls)), lambda one: {"k": [one]}),
    "or none": (lambda cls: list_of(cls | None), lambda one: [None, one]),
}


@PROFILE
@given(data=st.data(), nested=st.sampled_from(sorted(NESTED)))
def test_fields_that_some_version_did_not_have_begin_with_their_defaults(
    data: Any, nested: str
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True, min_size=1))
    away = data.draw(st.sets(st.sampled_from(names)))
    fields = {f"{name}_k": KINDS[name][:2] for name in names}
    cls, fewer = (
        struct({field: of for field, of in fields.items() if field[:-2] not in gone})
        for gone in (frozenset[str](), away)
    )
    type_of, of_one = NESTED[nested]
    whole, less = operator(type_of(cls)), operator(type_of(fewer))
    line = [
        FlowVersion(
            previous=number - 1,
            operators={
                "o": OperatorVersion(
                    kind="process", keys=(("k", "int64"),), states=of.describe_states()
                )
            },
        )
        for number, of in enumerate((whole, less))
    ]
    versions = dict(enumerate(msgpack_round(version) for version in line))
    written = description_in(versions, 1, "o", "state", 0)
    assert written is not None
    upgrade = whole.upgrade_state_from("state", written)
    values = {field: data.draw(KINDS[field[:-2]][2]) for field in fields}
    (blob,) = whole._codec.encode([of_one(cls(**values))])
    if upgrade is not None:
        blob = (
            upgrade(pa.record_batch({"state": pa.array([blob], pa.large_binary())}))
            .column(0)[0]
            .as_py()
        )
    (state,) = whole._codec.decode([memoryview(blob)])
    kept = {field: value for field, value in values.items() if field[:-2] not in away}
    assert state == of_one(cls(**kept))


def msgpack_round(version: FlowVersion) -> FlowVersion:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=FlowVersion)


@PROFILE
@given(data=st.data())
def test_damaged_state_is_read_as_something_or_refused(data: Any) -> None:
    value = {
        "a": [(1, 2.5, "x"), {dt.date(2024, 1, 2)}, 2**70, bytearray(b"xy")],
        ("k", 1): dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    }
    codec = make_codec("o", "msgpack", dict)
    blob = bytearray(codec.encode([value])[0])
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))]
    _decoded_or_refused(codec, bytes(blob))


@PROFILE
@given(blob=st.binary(max_size=60))
def test_bytes_that_never_were_state_are_read_as_something_or_refused(blob: bytes) -> None:
    for state_type in (dict, list, set):
        _decoded_or_refused(make_codec("o", "msgpack", state_type), blob)


def _decoded_or_refused(codec: Any, blob: bytes) -> None:
    """Fail if bytes are neither one value, which can be encoded, nor refused by our error."""
    try:
        values = codec.decode([memoryview(blob)])
    except UnencodableError:
        return
    assert len(codec.encode(list(values))) == 1
