"""The guide's page about state does what it says."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from tests.oracles.lane import Lane

from godwit.checkpoint.evolution import plain
from godwit.library.process import ProcessOperator
from godwit.model.errors import CheckpointMismatchError, StateEncodingError
from godwit.values.codec import make_codec

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "state.md"


class Orders:
    """Stands for a stream; remembers what was asked of it."""

    def key_by(self, *keys: str) -> Orders:
        self.keys = keys
        return self

    def process(self, function: Any, **options: Any) -> dict[str, Any]:
        return {"function": function, **options}


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    module = ModuleType("state_guide")
    names = vars(module)
    names["orders"] = Orders()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "state_guide", module)  # where dataclasses look for it
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
        yield names


def operator(function: Any, state_type: Any, **options: Any) -> ProcessOperator:
    return ProcessOperator(
        name="book",
        keys=pa.schema({"symbol": pa.string()}),
        inputs=pa.schema({"price": pa.float64(), "size": pa.int64()}),
        function=function,
        state_type=state_type,
        output=pa.schema({"symbol": pa.string(), "price": pa.float64()}),
        **options,
    )


ROWS = pa.record_batch({"symbol": ["ABC"], "price": [2.5], "size": [3]})


def test_its_class_comes_back_as_it_was(page: dict[str, Any]) -> None:
    book = page["OrderBook"](
        bids=[page["Level"](1.5, [2])],
        last=page["Side"].BUY,
        opened=dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        seen={(2**70, "a")},
        notes={("a", 1): {dt.date(2024, 1, 2)}, "level": page["Level"]()},
    )
    codec = make_codec("book", "msgpack", page["OrderBook"])
    (back,) = codec.decode([memoryview(blob) for blob in codec.encode([book])])
    assert back == book
    assert back.opened.utcoffset() == dt.timedelta(hours=2)


def test_its_refusal_is_the_one_that_is_shown(page: dict[str, Any]) -> None:
    def spoil(key: Any, rows: Any, book: Any) -> None:
        book.bids.append(page["Level"]("high"))

    with pytest.raises(StateEncodingError) as caught:
        Lane(operator(spoil, page["OrderBook"])).epoch(ROWS)
    assert caught.value.message in " ".join(PAGE.read_text().split())


def test_its_upgrade_brings_old_state_forward(page: dict[str, Any]) -> None:
    def remember(key: Any, rows: Any, book: Any) -> None:
        book.bids += [page["Level"](order.price, [order.size]) for order in rows]
        book.last = page["Side"].SELL

    before = operator(remember, page["OrderBook"])
    lane = Lane(before)
    lane.epoch(ROWS)
    described = before.describe_state()
    stored = msgspec.structs.replace(described, type=plain(described.type))
    with pytest.raises(CheckpointMismatchError, match="gone and levels new"):
        operator(page["quote"], page["Quotes"]).upgrade_from(stored)

    asked = page["best"]
    after = operator(
        asked["function"], asked["state"].value_type, state_upgrade=asked["state"].upgrade
    )
    upgrade = after.upgrade_from(stored)
    assert upgrade is not None
    old = pa.RecordBatch.from_pylist(list(lane.store.values()), schema=after.schema.values)
    lane = Lane(after)
    lane.store = {("ABC",): upgrade(old).to_pylist()[0]}
    assert lane.epoch(ROWS).output.to_pylist() == [{"symbol": "ABC", "price": 2.5}]
    (state,) = after._codec.decode([memoryview(lane.store[("ABC",)]["state"])])
    level = page["Level"](2.5, [3])
    assert state == page["Quotes"](levels=[level, level], last=page["Side"].SELL)
