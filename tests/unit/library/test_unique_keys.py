"""Columns that identify the rows of a result, for every operator and the maps after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.window_flows import ROWS

from godwit.api.flow import LogicalFlow
from godwit.library import aggregates as gw
from godwit.operators.window_specs import hopping, rows, session, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.streams import KeyedStream, Stream

HOUR, DAY = tumbling("1 hour"), tumbling("1 day")
ONE_LENGTH = (("k", "window_start", "window_end"), ("k", "window_start"), ("k", "window_end"))
SEVERAL = (("k", "window_start", "window_end"),)


def nothing(key: Any, rows: Any, window: Any) -> None: ...


@pytest.mark.parametrize(
    ("made", "unique_keys"),
    [
        (lambda k: k.compute(n=gw.count()), (("k",),)),
        (lambda k: k.compute(n=gw.count()).key_by("n").compute(m=gw.count()), (("n",),)),
        (lambda k: k.process(lambda key, rows, state: None, state=int, output="k int"), ()),
        (lambda k: k.window(HOUR).compute(n=gw.count()), ONE_LENGTH),
        (lambda k: k.window(HOUR, output="update").compute(n=gw.count()), ONE_LENGTH),
        (lambda k: k.window(HOUR, consolidate="apart").compute(n=gw.count()), ONE_LENGTH),
        (lambda k: k.window(hopping("6 hours", every="1 hour")).compute(n=gw.count()), ONE_LENGTH),
        (lambda k: k.window(HOUR, DAY).compute(n=gw.count()), SEVERAL),
        (lambda k: k.window(session("1 hour")).compute(n=gw.count()), ONE_LENGTH),
        (lambda k: k.window(rows(9)).compute(n=gw.count()), (("k", "window_number"),)),
        (lambda k: k.window(HOUR).process(nothing, output="k string"), ()),
        (lambda k: k.window(session("1 hour")).process(nothing, output="k string"), ()),
    ],
)
def test_a_result_is_told_apart_by_key_and_window_and_rows_of_functions_by_nothing(
    made: Callable[[KeyedStream], Stream], unique_keys: tuple[tuple[str, ...], ...]
) -> None:
    assert unique_keys_of(made) == unique_keys


@pytest.mark.parametrize(
    ("dropped", "unique_keys"),
    [
        ("n", ONE_LENGTH),
        ("window_end", (("k", "window_start"),)),
        ("k", ()),
    ],
)
def test_what_maps_take_away_tells_no_rows_apart(
    dropped: str, unique_keys: tuple[tuple[str, ...], ...]
) -> None:
    def made(keyed: KeyedStream) -> Stream:
        counted = keyed.window(HOUR).compute(n=gw.count())
        return counted.map(lambda rows: rows.drop_columns([dropped]))

    assert unique_keys_of(made) == unique_keys


def unique_keys_of(made: Callable[[KeyedStream], Stream]) -> tuple[tuple[str, ...], ...]:
    frame: Any = FakeDataFrame(ROWS)
    flow = LogicalFlow("flow")
    flow.sink("out", made(flow.source("rows", frame, event_time="ts").key_by("k")), FakeSink())
    (output,) = flow.compile(resolver(flow)).outputs
    return output.unique_keys
