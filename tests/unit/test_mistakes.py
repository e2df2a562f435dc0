"""Mistakes of a new user are answered at once, with what is wrong, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.mistakes.listed import ALL, IN_ONE_PROCESS
from tests.mistakes.mistake import Mistake, answer_to, grade, namespace

import godwit as gw
from godwit.time.durations import elapsed_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("mistake", IN_ONE_PROCESS, ids=lambda mistake: mistake.code[:60])
def test_a_mistake_is_answered_with_what_to_do(mistake: Mistake, tmp_path: Path) -> None:
    given = grade(mistake, answer_to(mistake, namespace(tmp_path)))
    assert given.partition(":")[0] == ("usable" if mistake.usable else "clear"), given


class _Session:
    """A session left over from something else, whose DataFrames refuse whatever is asked."""

    def createDataFrame(self, _: object) -> object:  # noqa: N802
        class Refusing:
            columns: tuple[str, ...] = ("k",)

            def __getattr__(self, name: str) -> object:
                msg = f"{name}: [UNRESOLVED_COLUMN]"
                raise RuntimeError(msg)

        return Refusing()


@pytest.mark.parametrize(
    "mistake", [m for m in IN_ONE_PROCESS if "orders.map" in m.code], ids=lambda m: m.code[:60]
)
def test_an_answer_does_not_depend_on_a_session_that_was_left(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = answer_to(mistake, namespace(tmp_path))
    monkeypatch.setattr("godwit.api.stand_in._active_session", _Session)
    assert answer_to(mistake, namespace(tmp_path)) == without


def test_nearly_all_answers_are_clear() -> None:
    assert len(ALL) >= 100
    assert sum(mistake.usable for mistake in ALL) <= 10
    assert len({mistake.code for mistake in ALL}) == len(ALL)


def test_names_of_hidden_attributes_are_asked_for_as_of_any_object() -> None:
    flow = gw.Flow("flow")
    assert not hasattr(flow, "_anything")
    assert not hasattr(flow, "groupBy")
    assert not hasattr(gw.testing, "_anything")


@pytest.mark.parametrize("server", ["h:1", "PLAINTEXT://h:9092", "[::1]:9092", "a:1,b:2"])
def test_servers_that_kafka_takes_are_taken(server: str) -> None:
    gw.sources.kafka(server, "t")


def test_long_times_have_long_units() -> None:
    texts = [elapsed_text(ms) for ms in (850, 12_345, 600_000, 36_000_000, 864_000_000)]
    assert texts == ["850 ms", "12.3 s", "10.0 min", "10.0 h", "10.0 days"]
