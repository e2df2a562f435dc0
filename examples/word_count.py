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
from collections.abc import Iterator, Sequence
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


def build(source: Any) -> gw.Flow:
    """Describe the flow."""
    flow = gw.Flow("word_count", num_key_groups=32)
    texts = flow.source("texts", source, event_time="at", max_ahead="36500 days")
    words = texts.map(split, schema=WORDS).key_by("word")
    flow.sink("total", words.compute(name="total", n=gw.count()), gw.sinks.noop())
    per_minute = words.window(gw.tumbling("1 minute"), name="per_minute")
    flow.sink("per_minute", per_minute.compute(n=gw.count()), gw.sinks.noop())
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


def play(texts: Sequence[dict], epochs: int) -> tuple[dict, dict]:
    """Play the flow while key groups move; return the counts in all and per minute."""
    source = gw.sources.memory(TEXTS)
    share = -(-len(texts) // epochs)
    with gw.testing.cluster(build(source), executors=2) as run:
        for number in range(epochs):
            source.add(list(texts[number * share : (number + 1) * share]))
            run.epoch()
            executors = sorted(run.executors)
            run.migrate(("total", "per_minute")[number % 2], executors[number % len(executors)])
            if number == epochs // 2:
                run.add("new")
                run.kill(executors[0])
        run.end_input()
        total = {row["word"]: row["n"] for row in run.current("total").to_pylist()}
        minutes = run.rows("per_minute").to_pylist()
    return total, {(row["word"], row["window_start"].timestamp()): row["n"] for row in minutes}


def main() -> None:
    """Read the command line, count, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("texts", nargs="?", help="a Parquet file; by default texts are invented")
    options.add_argument("--count", type=int, default=4000, help="texts that are taken")
    options.add_argument("--epochs", type=int, default=10)
    given = options.parse_args()
    path = given.texts or os.environ.get("GODWIT_TWEETS")
    texts = list(recorded(Path(path), given.count) if path else invented(given.count))
    total, minutes = play(texts, given.epochs)
    words = [(word, text["at"]) for text in texts for word in words_of(text["text"])]
    assert total == Counter(word for word, _ in words)
    assert minutes == Counter(
        (word, at.replace(second=0, microsecond=0).timestamp()) for word, at in words
    )
    print(f"{len(words):,} words, {len(total):,} of them different, {len(minutes):,} per minute")


if __name__ == "__main__":
    main()
