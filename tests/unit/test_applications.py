"""Applications among the examples: equal to their oracles, by their own generators, when played."""

from __future__ import annotations

import datetime as dt
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    """Import an example as a module; nothing of it runs."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_frequent_patterns_are_those_of_a_count_of_all_patterns_through_migrations() -> None:
    patterns = example("frequent_patterns")
    tweets = list(patterns.invented(300, seed=5))
    question = patterns.Question(window=dt.timedelta(seconds=30), support=6)
    assert patterns.play(tweets, question, epochs=5) == 5
    longest = max(len(one.split()) for one in patterns.counted(tweets[:150], question))
    assert longest > 1, "or nothing is suppressed"


def test_the_oracle_of_frequent_patterns_tells_a_missing_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patterns = example("frequent_patterns")
    monkeypatch.setattr(patterns, "of_kind", lambda kind: _none if kind == "superset" else _reports)
    question = patterns.Question(window=dt.timedelta(seconds=30), support=6)
    with pytest.raises(AssertionError):
        patterns.play(list(patterns.invented(300, seed=5)), question, epochs=5)


def _none(messages: Any) -> Any:
    return messages.slice(0, 0)


def _reports(messages: Any) -> Any:
    import pyarrow.compute as pc

    return messages.filter(pc.equal(messages["kind"], "report"))


def test_words_are_counted_in_all_and_per_minute() -> None:
    words = example("word_count")
    texts = list(words.invented(800, seed=1))
    total, minutes = words.play(texts, epochs=4)
    said = sum(len(words.words_of(text["text"])) for text in texts)
    assert words.check(texts, total, minutes).startswith(f"{said:,} words")
    with pytest.raises(AssertionError):
        words.check(texts[:-1], total, minutes)


def test_a_geohash_is_that_of_its_definition() -> None:
    edits = example("top_edits")
    assert edits.geohash(np.array([57.64911]), np.array([10.40744]), 11).tolist() == ["u4pruydqqvj"]


def test_articles_that_are_edited_most_are_those_of_pandas() -> None:
    edits = example("top_edits")
    made = edits.invented(800, per_second=10)
    rows, minutes = edits.check(made, edits.play(made, epochs=4))
    assert minutes > 1
    assert rows == edits.TOP * minutes, "or nothing is left out"


@pytest.mark.parametrize("job", [2, 4])
def test_delays_are_those_of_pandas(job: int) -> None:
    delays = example("delays")
    data = delays.invented(600)
    rows = delays.check(delays.play(data, job, epochs=4), data, job)
    assert set(rows) == {"by_plane", *(["by_route", "couriers"] if job == 4 else [])}
    assert min(rows.values()) > 10


def test_the_oracle_of_delays_tells_a_wrong_score(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = example("delays")
    data = delays.invented(200)
    monkeypatch.setattr(delays, "score", lambda key, rows, most: ((key[0], r.at, 0) for r in rows))
    with pytest.raises(AssertionError, match="couriers"):
        delays.check(delays.play(data, 4, epochs=2), data, 4)


def test_what_the_exchange_says_is_what_all_its_orders_say() -> None:
    exchange = example("exchange")
    orders = exchange.invented(900, per_second=5)
    limits = exchange.limits_of(orders)
    found, expected = exchange.play(orders, limits, epochs=4), exchange.expected(orders, limits)
    rows = exchange.check(found, expected)
    results = {of.__name__ for of in (*exchange.STATISTICS, *exchange.EVENTS)}
    assert set(rows) == {"trades", *results}
    assert min(rows.values()) > 0
    for name in ("composite_index", "wash_trade"):
        with pytest.raises(AssertionError, match=name):
            exchange.check({name: found[name][1:]}, expected)


def test_sums_over_overlapping_windows_are_those_of_pandas() -> None:
    windows = example("overlapping_windows")
    rows, source = windows.invented(300, keys=10), windows.gw.sources.memory(windows.ROWS)
    (found,) = windows.play(windows.simple(source, "apart"), rows, epochs=4).values()
    assert windows.check(found, windows.expected(rows, windows.SIMPLE)) > 100
    fast = windows.play(windows.fast(source), rows, epochs=4).values()
    for length, sums in zip(windows.FAST, fast, strict=True):
        windows.check(sums, windows.expected(rows, (length,)))
