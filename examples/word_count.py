"""Word count of a stream of texts: in all and per minute, while bursts of one word come and go.

    python examples/word_count.py                   # texts of a generator
    python examples/word_count.py tweets.parquet    # columns ts and text

It is the workload of load balancing (Minimum-Cost-Load-Balance, MCLB): words follow Zipf's law, and
now and then a burst makes a rare one frequent. Key groups move while it runs, an executor dies, and
every count is compared with one that is made at the end.
"""

import argparse
import datetime as dt
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw

TEXTS = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("text", pa.string())])
WORDS = pa.schema([("word", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return re.findall(r"\w+", text.lower())


def split(texts: pa.Table) -> pa.Table:
    """Make a row of every word."""
    found = [words_of(text) for text in texts["text"].to_pylist()]
    at = texts["at"].to_numpy().repeat([len(words) for words in found])
    words = pa.array([word for words in found for word in words], pa.string())
    return pa.table({"word": words, "at": pa.array(at)}).cast(WORDS)


def build(source: Any, store: Callable[[str], Any]) -> gw.Flow:
    """Describe the flow; `store` makes the sink of a result."""
    flow = gw.Flow("word_count", num_key_groups=32)
    texts = flow.source("texts", source, event_time="at", max_ahead="36500 days")
    words = texts.map(split, schema=WORDS).key_by("word")
    flow.sink("total", words.compute(name="total", n=gw.count()), store("total"))
    per_minute = words.window(gw.tumbling("1 minute"), name="per_minute")
    flow.sink("per_minute", per_minute.compute(n=gw.count()), store("per_minute"))
    return flow


def invented(count: int, seed: int = 3) -> Iterator[dict]:
    """Yield texts of a generator, of which a burst of one word is a part now and then."""
    dice = random.Random(seed)
    words = [f"word{number}" for number in range(2000)]
    weights = [1 / rank for rank in range(1, 2001)]
    at, burst = dt.datetime(2024, 5, 1, tzinfo=dt.UTC), ""
    for number in range(count):
        if number % 400 == 0:
            burst = dice.choice(words) if dice.random() < 0.5 else ""
        at += dt.timedelta(seconds=dice.expovariate(5))
        said = dice.choices(words, weights, k=6) + [burst] * (3 if burst else 0)
        yield {"at": at, "text": " ".join(said)}


def recorded(path: Path, count: int) -> Iterator[dict]:
    """Yield the first texts of a Parquet file, in the order of their times."""
    table = pq.read_table(path, columns=["ts", "text"]).sort_by("ts").slice(0, count)
    for row in table.to_pylist():
        yield {"at": row["ts"], "text": row["text"] or ""}


def check(texts: Sequence[dict], total: pa.Table, per_minute: pa.Table) -> str:
    """Compare the counts in all and per minute with those of all texts; say how many there are."""
    words = [(word, text["at"]) for text in texts for word in words_of(text["text"])]
    counts = Counter(word for word, _ in words)
    minutes = Counter((word, at.replace(second=0, microsecond=0).timestamp()) for word, at in words)
    assert {row["word"]: row["n"] for row in total.to_pylist()} == counts
    found = per_minute.to_pylist()
    assert len(found) == len(minutes)
    assert {(row["word"], row["window_start"].timestamp()): row["n"] for row in found} == minutes
    return f"{len(words):,} words, {len(counts):,} of them different, {len(found):,} per minute"


def play(texts: Sequence[dict], epochs: int) -> tuple[pa.Table, pa.Table]:
    """Play the flow while key groups move; return the counts in all and per minute."""
    source = gw.sources.memory(TEXTS)
    share = -(-len(texts) // epochs)
    flow = build(source, lambda _name: gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2) as run:
        for number in range(epochs):
            source.add(list(texts[number * share : (number + 1) * share]))
            run.epoch()
            executors = sorted(run.executors)
            component = ("total", "per_minute")[number % 2]
            run.migrate(executors[number % len(executors)], component=component)
            if number == epochs // 2:
                run.add("new")
                run.kill(executors[0])
        run.end_input()
        return run.current("total"), run.rows("per_minute")


def main() -> None:
    """Read the command line, count, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("texts", nargs="?", help="a Parquet file; by default texts are invented")
    options.add_argument("--count", type=int, default=4000, help="texts that are taken")
    options.add_argument("--epochs", type=int, default=10)
    given = options.parse_args()
    path = given.texts or os.environ.get("GODWIT_TWEETS")
    texts = list(recorded(Path(path), given.count) if path else invented(given.count))
    print(check(texts, *play(texts, given.epochs)))


if __name__ == "__main__":
    main()
