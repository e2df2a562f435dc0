from __future__ import annotations

import msgspec
import pyarrow as pa
from tests.support.flow_versions import flow, operator, state

from godwit.checkpoint.evolution import (
    FlowVersion,
    WrittenState,
    description_in,
    plain,
    type_text,
)


def line(*versions: FlowVersion) -> dict[int, FlowVersion]:
    return {
        number: msgspec.structs.replace(version, previous=number - 1)
        for number, version in enumerate(versions)
    }


def results(found: WrittenState | None) -> list[str]:
    assert found is not None
    return list(found.description.type)


def test_state_is_described_as_the_version_that_wrote_it_has_it() -> None:
    versions = line(flow(a=operator("t", "n")), flow(a=operator("n", "t", "x")))
    assert description_in(versions, 1, "a", "state", 0) == WrittenState.of(state("t", "n"))
    assert description_in(versions, 1, "a", "state", 1) == WrittenState.of(state("n", "t", "x"))


def test_a_result_that_some_version_did_not_have_is_gone_though_it_came_back() -> None:
    versions = line(flow(a=operator("t", "n")), flow(a=operator("n")), flow(a=operator("n", "t")))
    found = description_in(versions, 2, "a", "state", 0)
    assert results(found) == ["n"]
    assert found is not None
    assert found.live == {"n"}
    assert found.description.columns == state("t", "n").columns  # they are in the bytes


def test_state_is_found_through_renamings_and_while_an_operator_was_away() -> None:
    versions = line(
        flow(a=operator("t")),
        FlowVersion(operators={"b": operator("t")}, renamed={"a": "b"}),
        FlowVersion(retained={"b": operator("t")}),
        flow(b=operator("t")),
    )
    assert description_in(versions, 3, "b", "state", 0) == WrittenState.of(state("t"))
    assert description_in(versions, 3, "a", "state", 0) is None


def test_state_of_a_dropped_operator_is_not_its_successors() -> None:
    versions = line(flow(a=operator("t")), FlowVersion(dropped=("a",)), flow(a=operator("t")))
    assert description_in(versions, 2, "a", "state", 0) is None


def test_plain_values_are_what_a_record_gives_back() -> None:
    assert plain({"a": (1, ("b",))}) == {"a": [1, ["b"]]}


def test_types_of_instants_have_no_zone_wherever_they_stand() -> None:
    moment = pa.timestamp("us", tz="Etc/UTC")
    nested = pa.struct([("at", pa.list_(moment)), ("local", pa.timestamp("us"))])
    assert type_text(nested) == (
        "struct<at: list<item: timestamp[us, tz=UTC]>, local: timestamp[us]>"
    )
