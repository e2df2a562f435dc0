"""Maximal frequent patterns of words over a sliding window of tweets, by a loop of feedback.

A pattern is a set of words that one tweet has. It is frequent if enough tweets of the window have
it, and maximal if no frequent pattern has all of its words and more. The topology is that of
Figure 10 of "Optimal Operator State Migration for Elastic Data Stream Processing" (Ding et al.):
each tweet counts once when it arrives and once, negatively, when the window leaves it behind; the
pattern generator makes its patterns; the detector counts each, and what is frequent goes back to
the detector, so that what is part of it is suppressed.

    python examples/frequent_patterns.py                       # tweets of a generator
    python examples/frequent_patterns.py tweets.parquet        # columns tweet_id, ts and text
    python examples/frequent_patterns.py --spark               # on Spark, not in this process

In this process key groups move and an executor dies between epochs. Every result is compared with
a count of all patterns of all tweets in the window.
"""

import argparse
import datetime as dt
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import godwit as gw

TWEETS = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("text", pa.string())]
)
MESSAGES = "pattern string, kind string, change long"
"""To the detector of a pattern: ``tweet``, a tweet that has it came or left; ``superset``, a
frequent pattern of one word more appeared or vanished. From it besides: ``report``."""

MAX_WORDS = 8  # of a tweet that patterns are made of
MAX_LENGTH = 3  # words of a pattern
STOP = frozenset(
    re.findall(
        r"\w+",
        """
        a about all am amp an and are as at be been bit but by can co com do for from get go had has
        have he her his http https i if im in is it its just like ly me my no not now of off on or
        our out rt she so that the them there they this to today too up us via was we what when who
        will with www you your
        """,
    )
)


@dataclass(frozen=True)
class Question:
    """What is asked of the stream."""

    window: dt.timedelta = dt.timedelta(seconds=90)
    support: int = 12  # tweets of the window that have a frequent pattern


def patterns_of(text: str) -> list[str]:
    """Return the patterns of a tweet: words in alphabetical order, joined by blanks."""
    found = dict.fromkeys(re.findall(r"[a-z]{2,}", text.lower()))
    words = sorted([word for word in found if word not in STOP][:MAX_WORDS])
    return [
        " ".join(chosen)
        for length in range(1, MAX_LENGTH + 1)
        for chosen in combinations(words, length)
    ]


# -- the flow -------------------------------------------------------------------------------------


def generate(tweets: pa.Table) -> pa.Table:
    """Make the patterns of tweets that arrive or leave: the pattern generator."""
    made = [patterns_of(text) for text in tweets["text"].to_pylist()]
    counts = [len(patterns) for patterns in made]
    changes = tweets["change"].to_numpy().repeat(counts)
    patterns = pa.array([one for patterns in made for one in patterns], pa.string())
    kinds = pa.repeat(pa.scalar("tweet"), len(patterns))
    return pa.table({"pattern": patterns, "kind": kinds, "change": pa.array(changes, pa.int64())})


def of_kind(kind: str) -> Callable[[pa.Table], pa.Table]:
    """Return a map that keeps messages of one kind."""
    return lambda messages: messages.filter(pc.equal(messages["kind"], kind))


def build(source: Any, sink: Any, question: Question) -> gw.Flow:
    """Describe the flow."""
    window, support = question.window, question.support

    def arrive(_key: Any, rows: Any, state: dict) -> Iterator[tuple[str, int]]:
        for tweet in rows:
            state["text"] = tweet.text
            rows.timers.set(tweet.at + window)
            yield tweet.text, 1

    def leave(_key: Any, timer: Any, state: dict) -> Iterator[tuple[str, int]]:
        yield state["text"], -1
        timer.drop_state()

    def detect(
        key: tuple[str], rows: gw.types.KeyRows, state: dict
    ) -> Iterator[tuple[str, str, int]]:
        (pattern,) = key
        tweets, supersets = state.get("tweets", 0), state.get("supersets", 0)
        was_frequent = tweets >= support
        was_maximal = was_frequent and not supersets
        for message in rows:
            if message.kind == "tweet":
                tweets += message.change
            else:
                supersets += message.change
        state["tweets"], state["supersets"] = tweets, supersets
        if not tweets and not supersets:
            rows.drop_state()
        is_frequent = tweets >= support
        is_maximal = is_frequent and not supersets
        words = pattern.split(" ")
        if is_frequent != was_frequent and len(words) > 1:
            for part in combinations(words, len(words) - 1):
                yield " ".join(part), "superset", 1 if is_frequent else -1
        if is_maximal != was_maximal:
            yield pattern, "report", 1 if is_maximal else -1

    flow = gw.Flow("frequent_patterns", num_key_groups=32)
    tweets = flow.source("tweets", source, event_time="at", max_ahead="36500 days")
    in_window = tweets.key_by("id").process(
        arrive,
        name="window",
        state=dict,
        timers=gw.types.OnTimer(leave, clock="event"),
        output="text string, change long",
    )
    frequent = flow.feedback("frequent", MESSAGES)
    detected = (
        in_window.map(generate, schema=MESSAGES)
        .union(frequent)
        .key_by("pattern")
        .process(detect, name="detector", state=dict, output=MESSAGES)
    )
    detected.map(of_kind("superset"), schema=MESSAGES).feed_back_to(frequent)
    flow.sink("maximal", detected.map(of_kind("report"), schema=MESSAGES), sink)
    return flow


def standing(reports: Iterable[dict]) -> set[str]:
    """Return the patterns that are maximal after all reports."""
    sums: Counter = Counter()
    for report in reports:
        sums[report["pattern"]] += report["change"]
    assert set(sums.values()) <= {0, 1}, "a pattern was reported twice in a row"
    return {pattern for pattern, sum_ in sums.items() if sum_}


# -- the oracle -----------------------------------------------------------------------------------


def counted(tweets: Sequence[dict], question: Question) -> set[str]:
    """Return the maximal frequent patterns of the window that ends with the newest tweet."""
    now = max(tweet["at"] for tweet in tweets)
    counts: Counter = Counter()
    for tweet in tweets:
        if tweet["at"] + question.window > now:
            counts.update(patterns_of(tweet["text"]))
    frequent = [set(pattern.split()) for pattern, n in counts.items() if n >= question.support]
    return {" ".join(sorted(one)) for one in frequent if not any(one < more for more in frequent)}


# -- tweets ---------------------------------------------------------------------------------------


def invented(count: int, seed: int = 1) -> Iterator[dict]:
    """Yield tweets of a generator: words by Zipf's law, and topics that come and go."""
    dice = random.Random(seed)
    words = [chr(97 + i // 26) + chr(97 + i % 26) + "word" for i in range(400)]
    weights = [1 / rank for rank in range(5, 405)]
    at = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    topic: list[str] = []
    for number in range(count):
        if number % 150 == 0:
            topic = dice.sample(words, 4)
        at += dt.timedelta(seconds=dice.expovariate(4))
        said = dice.choices(words, weights, k=4) + (topic if dice.random() < 0.3 else [])
        yield {"id": number, "at": at, "text": " ".join(said)}


def recorded(path: Path, count: int) -> Iterator[dict]:
    """Yield the first tweets of a Parquet file, in the order of their times."""
    table = pq.read_table(path, columns=["tweet_id", "ts", "text"]).sort_by("ts").slice(0, count)
    for number, row in enumerate(table.to_pylist()):
        # One identifier may stand for several rows of such a file: each is a tweet here.
        yield {"id": number, "at": row["ts"], "text": row["text"] or ""}


# -- what runs it ---------------------------------------------------------------------------------


def play(tweets: Sequence[dict], question: Question, epochs: int) -> int:
    """Play the flow in this process, through migrations and a loss; return the results compared."""
    flow = build(gw.testing.stream(TWEETS), gw.sinks.noop(), question)
    share = -(-len(tweets) // epochs)
    compared = 0
    with gw.testing.cluster(flow, executors=2) as run:
        for number in range(epochs):
            part = list(tweets[number * share : (number + 1) * share])
            if not part:
                break
            run.epoch({"tweets": part})
            executors = sorted(run.executors)
            if number % 3 == 0:  # while what is frequent goes round
                run.migrate(executors[number % len(executors)], component="detector")
            elif number % 3 == 1:
                run.add(f"new-{number}")
                run.kill(executors[0])
            run.go_round()
            found = standing(run.rows("maximal").to_pylist())
            expected = counted(tweets[: (number + 1) * share], question)
            assert found == expected, (number, found ^ expected)
            compared += 1
        print(f"maximal at the end: {', '.join(sorted(found)) or 'none'}")
    return compared


def stream(tweets: Sequence[dict], question: Question, epochs: int) -> int:
    """Run the flow on Spark; return the results compared."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  in this process nobody needs it

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source, result = gw.sources.memory(TWEETS), gw.sinks.memory()
    flow = build(source, result, question)
    query = flow.start(checkpoint=tempfile.mkdtemp(prefix="godwit-example-"))
    share = -(-len(tweets) // epochs)
    for first in range(0, len(tweets), share):
        source.add(list(tweets[first : first + share]))
        query.processAllAvailable()
    query.stop()
    found = standing(result.table().to_pylist())
    assert found == counted(tweets, question), found
    print(f"maximal at the end: {', '.join(sorted(found)) or 'none'}")
    spark.stop()
    return 1


def main() -> None:
    """Read the command line, run the flow, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("tweets", nargs="?", help="a Parquet file; by default tweets are invented")
    options.add_argument("--count", type=int, default=1200, help="tweets that are taken")
    options.add_argument("--window", type=float, default=90, help="seconds")
    options.add_argument("--support", type=int, default=12, help="tweets of a frequent pattern")
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--spark", action="store_true", help="run on Spark")
    given = options.parse_args()
    path = given.tweets or os.environ.get("GODWIT_TWEETS")
    tweets = list(recorded(Path(path), given.count) if path else invented(given.count))
    question = Question(window=dt.timedelta(seconds=given.window), support=given.support)
    run = stream if given.spark else play
    compared = run(tweets, question, given.epochs)
    print(f"{len(tweets)} tweets; {compared} results are those of a count of all patterns")


if __name__ == "__main__":
    main()
