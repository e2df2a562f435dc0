"""Formats of messages: what is read is what was written; a bad message is known by its place."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import godwit as gw
from godwit.connect.formats.message_formats import UnwritableError, as_format
from godwit.model.errors import InvalidFlowError

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("text", pa.string()),
        ("yes", pa.bool_()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("took", pa.duration("us")),
        ("list", pa.list_(pa.int32())),
        ("inner", pa.struct([("a b", pa.float64()), ("c", pa.list_(pa.string()))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
ROW = {
    "n": 2**62,
    "x": 0.1,
    "text": 'a "quoted"\n\u2028 line',
    "yes": True,
    "raw": b"\x00\xff",
    "at": dt.datetime(2013, 1, 1, 10, 0, 0, 5, tzinfo=dt.UTC),
    "day": dt.date(2013, 1, 1),
    "price": Decimal("-12.50"),
    "took": dt.timedelta(seconds=-1, microseconds=3),
    "list": [1, None],
    "inner": {"a b": 1.0, "c": ["x", None]},
    "counts": [("k", 1), ("l", None)],
}
NOTHING = dict.fromkeys(ROW)


def test_json_is_read_as_it_was_written() -> None:
    json = gw.formats.json(SCHEMA)
    rows = pa.RecordBatch.from_pylist([ROW, NOTHING, ROW], SCHEMA)
    decoded = pickle.loads(pickle.dumps(json)).decode(json.encode(rows), SCHEMA.names)
    assert decoded.bad == ()
    assert decoded.rows.equals(rows)
    some = json.decode(json.encode(rows), ["text", "n"])
    assert some.rows.schema.names == ["text", "n"]
    assert json.decode(json.encode(rows), []).rows.num_rows == 3


def test_json_lacks_fields_has_others_and_tombstones() -> None:
    json = gw.formats.json("n bigint, text string")
    messages = [b'{"other":{"n":1}}', None, b' {"text":"t",\n"n":null}', b'{"n":1}']
    assert json.decode(messages, ["n", "text"]).rows.to_pylist() == [
        {"n": None, "text": None},
        {"n": None, "text": None},
        {"n": None, "text": "t"},
        {"n": 1, "text": None},
    ]


BAD = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{",
    b'{"n":1}{"n":2}',
    b'{"n":1},{"n":2}',
    b'{"n":1} null',
    b'{"n":1.5}',
    b'{"n":"1"}',
    b'{"n":99999999999999999999}',
    b'{"n":NaN}',
    b'{"text":"\xff"}',
    b'{"n":1}]',
    b"\x00\x00\x00\x00\x01",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_message_takes_no_other_with_it(bad: bytes) -> None:
    json = gw.formats.json("n bigint, text string")
    decoded = json.decode([b'{"n":1}', bad, b'{"n":3}'], ["n", "text"])
    assert decoded.rows["n"].to_pylist() == [1, 3]
    ((position, reason),) = decoded.bad
    assert position == 1
    assert reason


def test_messages_that_make_json_only_together_are_each_bad() -> None:
    messages = [b'{"n":1},{"n":2}', b'{"n":3,"x":[4', b"5]}", b'{"n":6}']
    decoded = gw.formats.json("n bigint").decode(messages, ["n"])
    assert decoded.rows["n"].to_pylist() == [6]
    assert [position for position, _ in decoded.bad] == [0, 1, 2]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(BAD), st.integers(0, 9)), max_size=12))
def test_of_any_mixture_the_good_ones_are_read_in_order(mixture: list[bytes | int | None]) -> None:
    json = gw.formats.json("n bigint")
    messages = [b'{"n":%d}' % m if isinstance(m, int) else m for m in mixture]
    decoded = json.decode(messages, ["n"])
    refused = {b for b in BAD if json.decode([b], ["n"]).bad}  # without the column text, one less
    assert [position for position, _ in decoded.bad] == [
        position for position, m in enumerate(mixture) if m in refused
    ]
    good = [m if isinstance(m, int) else None for m in mixture if m not in refused]
    assert decoded.rows["n"].to_pylist() == good


def test_not_a_number_is_written_as_null_and_empty_rows_as_empty_objects() -> None:
    rows = pa.RecordBatch.from_pydict({"x": [float("nan"), 1.0]})
    assert gw.formats.json().encode(rows) == [b'{"x":null}', b'{"x":1.0}']
    empty = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert gw.formats.json().encode(empty) == [b"{}", b"{}"]


def test_a_value_that_json_cannot_have_is_unwritable() -> None:
    far = pa.array([2**60], pa.timestamp("us"))  # of the year 38506
    with pytest.raises(UnwritableError):
        gw.formats.json().encode(pa.RecordBatch.from_arrays([far], ["at"]))


def test_types_without_a_form_are_refused_by_column() -> None:
    with pytest.raises(
        InvalidFlowError, match="'i' of type month_day_nano_interval cannot be written"
    ):
        gw.formats.json(pa.schema([("i", pa.month_day_nano_interval())]))


def test_bytes_and_text_are_one_column() -> None:
    for format_ in (gw.formats.raw(), gw.formats.text()):
        decoded = format_.decode([b"a", None, "é".encode()], ["value"])
        assert format_.encode(decoded.rows) == [b"a", None, "é".encode()]
        format_.check_columns(decoded.rows.schema, "The sink")
        with pytest.raises(InvalidFlowError, match="needs exactly one column of text or bytes"):
            format_.check_columns(SCHEMA, "The sink")
    decoded = gw.formats.text().decode([b"a", b"\xff", b"c"], ["value"])
    assert decoded.rows["value"].to_pylist() == ["a", "c"]
    assert [position for position, _ in decoded.bad] == [1]


def test_formats_go_by_name() -> None:
    assert as_format("text", "It").schema == pa.schema([("value", pa.string())])
    with pytest.raises(InvalidFlowError, match="'xml' is not a format"):
        as_format("xml", "It")
    with pytest.raises(InvalidFlowError, match="of type int"):
        as_format(5, "It")
