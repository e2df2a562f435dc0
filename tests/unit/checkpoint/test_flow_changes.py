from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.flow_versions import flow, operator

from godwit.checkpoint.evolution import STATELESS, FlowChanges, FlowVersion, compare_flows
from godwit.checkpoint.records import EditRecord
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection


def changes(
    stored: FlowVersion, given: FlowVersion, *, starts_empty: Collection[str] = ()
) -> FlowChanges:
    return compare_flows(given, stored, previous=0, uri="ck", starts_empty=starts_empty)


def after(stored: FlowVersion, given: FlowVersion) -> FlowVersion:
    """Give the version that a run of `given` commits, as the next one reads it."""
    version = changes(stored, given).version
    assert version is not None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=FlowVersion)


STORED = flow(a=operator("t"), b=operator("n"))


def test_the_same_flow_needs_no_version_in_whatever_order_it_is_written() -> None:
    again = flow(b=operator("n"), a=operator("t"))
    assert changes(STORED, again).version is None
    assert changes(after(STORED, flow(a=operator("t"))), flow(a=operator("t"))).version is None


def test_a_new_operator_starts_empty_and_a_removed_one_is_kept() -> None:
    changed = changes(STORED, flow(a=operator("t"), c=operator("x")), starts_empty={"c"})
    assert (changed.added, changed.removed, changed.returned) == (("c",), ("b",), ())
    assert changed.version is not None
    assert changed.version.retained == {"b": msgspec.structs.replace(STORED.operators["b"], left=0)}
    assert changed.version.previous == 0


def test_a_removed_operator_finds_its_state_again() -> None:
    without = after(STORED, flow(a=operator("t")))
    back = changes(without, flow(a=operator("t"), b=operator("n")))
    assert (back.added, back.returned, back.removed) == ((), ("b",), ())
    assert back.version is not None
    assert back.version.retained == {}


def test_a_declared_renaming_is_done_once() -> None:
    given = flow(c=operator("t", formerly="a"), b=operator("n"))
    first = changes(STORED, given)
    assert (first.renamed, first.added, first.removed) == ({"a": "c"}, (), ())
    second = changes(after(STORED, given), given)
    assert (second.renamed, second.added, second.version) == ({}, (), None)


def test_names_can_be_exchanged_and_are_not_exchanged_back() -> None:
    given = flow(a=operator("n", formerly="b"), b=operator("t", formerly="a"))
    first = changes(STORED, given)
    assert first.renamed == {"a": "b", "b": "a"}
    assert changes(after(STORED, given), given).version is None


def test_a_new_operator_may_take_the_name_of_a_renamed_one() -> None:
    given = flow(c=operator("t", formerly="a"), a=operator("x"), b=operator("n"))
    changed = changes(STORED, given)
    assert (changed.renamed, changed.added, changed.removed) == ({"a": "c"}, ("a",), ())
    assert changed.version is not None
    assert changed.version.retained == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (flow(a=operator("t"), c=operator("n", formerly="d")), "'c' says that it was 'd', but"),
        (flow(a=operator("t", formerly="b")), "the checkpoint has state of both"),
        (flow(a=operator("t", key="j"), b=operator("n")), r"operator 'a': keys was .*'k'.*'j'"),
        (
            flow(a=msgspec.structs.replace(operator("t"), kind="process"), b=operator("n")),
            "operator 'a': kind was 'compute' and is 'process'",
        ),
    ],
)
def test_what_cannot_be_taken_up_is_refused(given: FlowVersion, message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=message):
        changes(STORED, given)


def test_an_operator_that_nobody_named_does_not_lose_its_state_by_an_added_result() -> None:
    stored = flow(rows_t_by_k=operator("t", named=False))
    given = flow(rows_n_t_by_k=operator("n", "t", named=False))
    with pytest.raises(CheckpointMismatchError, match="give it name='rows_t_by_k'"):
        changes(stored, given)
    named = flow(rows_n_t_by_k=operator("n", "t"))
    with pytest.raises(CheckpointMismatchError, match=r"give it .*formerly='rows_t_by_k'"):
        changes(stored, named)
    assert changes(stored, named, starts_empty={"rows_n_t_by_k"}).added == ("rows_n_t_by_k",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (flow(a=operator("t"), c=operator("n")), "'c' would .* of 'b' .*formerly='b'"),
        (flow(c=operator("t")), "of 'a' and 'b' any more .*formerly='a'.* or .*formerly='b'"),
        (flow(a=operator("t"), c=operator("n", key="j")), r"'b' any more \(if it is to start"),
        (flow(b=operator("t", formerly="a"), c=operator("n")), None),  # b is nobody's now
    ],
)
def test_an_operator_is_not_silently_empty_beside_state_that_nobody_reads(
    given: FlowVersion, message: str | None
) -> None:
    with pytest.raises(CheckpointMismatchError, match=message or "state of both"):
        changes(STORED, given)
    if message is not None:
        assert changes(STORED, given, starts_empty={"c"}).added == ("c",)
        kept = after(STORED, flow(a=operator("t")))
        assert changes(kept, flow(a=operator("t"), c=operator("n"))).added == ("c",)


def with_readers(version: FlowVersion, **readers: str) -> FlowVersion:
    for name, sink in readers.items():
        version.operators[name] = msgspec.structs.replace(
            version.operators[name], readers=(f"sink {sink}",)
        )
    return version


def test_operators_that_are_alike_are_told_apart_by_their_readers_where_nothing_changed() -> None:
    def exchanged() -> FlowVersion:
        return flow(a=operator("t", formerly="b"), b=operator("t", formerly="a"))

    alike = flow(a=operator("t"), b=operator("t"))
    once = with_readers(after(alike, exchanged()), a="A", b="B")
    assert changes(once, with_readers(exchanged(), a="A", b="B")).renamed == {}
    for given in (exchanged(), with_readers(exchanged(), a="B", b="A")):
        with pytest.raises(CheckpointMismatchError, match="'a' was 'b' and 'b' was 'a', as the"):
            changes(once, given)
    plainly = with_readers(flow(a=operator("t"), b=operator("t")), a="A", b="B")
    assert changes(after(once, plainly), exchanged()).renamed == {"a": "b", "b": "a"}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_second_exchange_of_edited_operators_is_refused(names: str) -> None:
    def program(suffix: str, *, formerly: bool) -> FlowVersion:
        passed = dict(zip(names, names[1:] + names[:1], strict=True))
        return flow(
            **{
                name: operator(f"r{name}{suffix}", formerly=passed[name] if formerly else "")
                for name in names
            }
        )

    once = after(program("", formerly=False), program("", formerly=True))
    assert changes(once, program("", formerly=True)).renamed == {}
    with pytest.raises(CheckpointMismatchError, match="first start the program as it was"):
        changes(once, program("2", formerly=True))


def test_an_exchange_is_told_by_results_where_functions_are_none() -> None:
    once = after(
        flow(a=operator("t"), b=operator("n")),
        flow(b=operator("t", formerly="a"), a=operator("n", formerly="b")),
    )
    again = flow(a=operator("t", "more", formerly="b"), b=operator("n", formerly="a"))
    assert changes(once, again).renamed == {"a": "b", "b": "a"}


def test_a_link_left_in_a_chain_counts_anew_where_another_takes_its_state() -> None:
    stored = after(STORED, flow(b=operator("t", formerly="a"), c=operator("n", formerly="b")))
    longer = flow(b=operator("t", formerly="a"), d=operator("n", formerly="c"))
    assert changes(stored, longer).renamed == {"c": "d"}
    shifted = flow(c=operator("t", formerly="b"), d=operator("n", formerly="c"))
    assert changes(stored, shifted).renamed == {"b": "c", "c": "d"}
    gone = flow(
        b=operator("x", formerly="a"),
        c=operator("t", formerly="b"),
        d=operator("n", formerly="c"),
    )
    with pytest.raises(CheckpointMismatchError, match="'b' says that it was 'a', but the"):
        changes(stored, gone)


def test_a_link_left_beside_an_operator_that_leaves_is_told_by_what_stayed() -> None:
    renamed = flow(c=operator("t", formerly="a"), b=operator("n"))
    stored = after(after(STORED, renamed), flow(a=operator("x"), **renamed.operators))
    left = flow(c=operator("t", formerly="a"), b=operator("n"))
    assert changes(stored, left).removed == ("a",)
    with pytest.raises(CheckpointMismatchError, match="state of both"):
        changes(stored, flow(c=operator("x", formerly="a"), b=operator("n")))
    with pytest.raises(CheckpointMismatchError, match="nothing tells"):
        changes(stored, flow(c=operator("y", formerly="a"), b=operator("n")))


def test_operators_that_exchange_their_names_without_a_word_are_refused() -> None:
    def program(a: str, b: str) -> FlowVersion:
        given = flow(a=operator("t"), b=operator("t"))
        for name, origin in {"a": a, "b": b}.items():
            given.operators[name] = msgspec.structs.replace(given.operators[name], origin=origin)
        return given

    stored = program("1", "2")
    assert changes(stored, program("1", "3")).added == ()
    with pytest.raises(CheckpointMismatchError, match="'a' and 'b' have exchanged their names"):
        changes(stored, program("2", "1"))
    without_state = [program("1", "2"), program("2", "1")]
    for version in without_state:
        for name, of in version.operators.items():
            version.operators[name] = msgspec.structs.replace(of, kind=STATELESS)
    assert changes(*without_state).added == ()


def test_a_formerly_means_nothing_where_there_is_no_checkpoint_yet() -> None:
    given = flow(a=operator("t", formerly="old"))
    assert compare_flows(given, None, previous=-1, uri="ck").version == given


def test_edits_come_before_what_the_program_says() -> None:
    edits = (
        EditRecord(number=0, flow=0, renamed={"a": "x"}),
        EditRecord(number=1, flow=0, dropped=("b",)),
        EditRecord(number=2, flow=0, renamed={"x": "b"}),
    )
    given = flow(c=operator("t", formerly="b"), b=operator("n"))
    changed = compare_flows(given, STORED, previous=0, uri="ck", edits=edits)
    assert (changed.renamed, changed.added) == ({"a": "c"}, ("b",))
    assert changed.version is not None
    assert (changed.version.dropped, changed.version.retained) == (("b",), {})


def test_an_edit_alone_makes_a_version() -> None:
    edits = (EditRecord(flow=0, dropped=("b",)),)
    stored = after(STORED, flow(a=operator("t")))
    changed = compare_flows(flow(a=operator("t")), stored, previous=0, uri="ck", edits=edits)
    assert changed.version is not None
    assert (changed.version.dropped, changed.version.retained) == (("b",), {})


@pytest.mark.parametrize(
    ("stored", "given", "said"),
    [
        (("a", "b"), ("a", "b"), None),
        (("a",), ("b",), None),  # there is one, whatever it is called
        (("a",), ("a", "b"), "source 'b' was added"),
        (("a", "b"), ("b",), "source 'a' is gone"),
    ],
)
def test_sources_stay_since_spark_numbers_them(
    stored: tuple[str, ...], given: tuple[str, ...], said: str | None
) -> None:
    def reads(sources: tuple[str, ...]) -> FlowVersion:
        return FlowVersion(operators={"a": operator("t")}, sources=sources)

    if said is None:
        changes(reads(stored), reads(given))
    else:
        with pytest.raises(CheckpointMismatchError, match=said):
            changes(reads(stored), reads(given))


@pytest.mark.parametrize(
    ("stored", "given", "kept"),
    [
        ({"a": "ts"}, {"a": "ts"}, {"a": "ts"}),
        ({}, {"a": "ts"}, {"a": "ts"}),  # it had none, or the version did not say
        ({"a": "ts"}, {}, {"a": "ts"}),  # nothing goes by it now, but its watermark stays
        ({"a": "ts"}, {"b": "ts"}, {"a": "ts", "b": "ts"}),
        ({"a": "ts"}, {"a": "dep"}, "source 'a' was 'ts' and is 'dep'"),
    ],
)
def test_the_event_time_of_a_source_stays_the_same_column(
    stored: dict[str, str], given: dict[str, str], kept: dict[str, str] | str
) -> None:
    def timed(times: dict[str, str]) -> FlowVersion:
        return FlowVersion(operators={"o": operator("t")}, sources=("a", "b"), times=times)

    if isinstance(kept, str):
        with pytest.raises(CheckpointMismatchError, match=kept):
            changes(timed(stored), timed(given))
        return
    version = changes(timed(stored), timed(given)).version
    assert (stored if version is None else version.times) == kept
    if version is not None:
        assert changes(version, timed(given)).version is None


def test_the_event_time_of_a_single_source_stays_whatever_it_is_called() -> None:
    def timed(source: str, column: str) -> FlowVersion:
        operators = {"o": operator("t")}
        return FlowVersion(operators=operators, sources=(source,), times={source: column})

    changed = changes(timed("a", "ts"), timed("b", "ts")).version
    assert changed is not None
    assert changed.times == {"b": "ts"}
    with pytest.raises(CheckpointMismatchError, match="event time of source 'b'"):
        changes(timed("a", "ts"), timed("b", "dep"))


def test_a_part_does_not_take_the_state_of_an_operator_that_happens_to_have_its_name() -> None:
    part = msgspec.structs.replace(operator("t"), part_of="w")
    own = flow(w=operator("t"), w_second=operator("t"))
    apart = flow(w=operator("t"), w_second=part)
    for stored, given in ((own, apart), (apart, own)):
        with pytest.raises(CheckpointMismatchError, match="operator 'w_second' was"):
            changes(stored, given)
    renamed = flow(
        v=operator("t", formerly="w"),
        v_second=msgspec.structs.replace(part, part_of="v", formerly="w_second"),
    )
    assert changes(apart, renamed).renamed == {"w": "v", "w_second": "v_second"}


def test_names_that_are_exchanged_a_second_time_take_their_state_along() -> None:
    def named(first: str, second: str) -> FlowVersion:
        given = flow(a=operator("t", formerly="b"), b=operator("t", formerly="a"))
        origins = {first: "1", second: "2"}
        for name, origin in origins.items():
            given.operators[name] = msgspec.structs.replace(given.operators[name], origin=origin)
        return given

    once = after(flow(a=operator("t"), b=operator("t")), named("b", "a"))
    assert changes(once, named("b", "a")).renamed == {}
    assert changes(once, named("a", "b")).renamed == {"a": "b", "b": "a"}
    twice = after(once, named("a", "b"))
    assert changes(twice, named("a", "b")).renamed == {}
