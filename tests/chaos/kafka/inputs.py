"""What a flow reads while it lives through a history: a topic of Kafka, or files of JSON lines.

What is written comes from the campaign's process, so what a killed driver leaves half done is never
input.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.kafka.oracle import Contents

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

__all__ = ["PATIENCE_S", "Files", "Input", "Messages"]

KEYS = 12
PATIENCE_S = 60.0
_BAD = (b"{", b"\xff\x00", b'{"k":"x"}')  # which no decoder reads
_ONCE: dict[str, Any] = {
    "enable.idempotence": True
}  # a message that is sent again is not there twice


@dataclass(slots=True, kw_only=True)
class Input:
    """Rows that are numbered by key, in the order in which they are to be processed.

    Subclasses write them; `put` has the kinds of `tests.chaos.kafka.histories.PUTS`.
    """

    rng: random.Random
    era: int = 0  # event time is two days later in each
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    open: list[Any] = field(default_factory=list)  # what is begun, and not there for readers
    writing: threading.Lock = field(default_factory=threading.Lock)

    def put(self, kind: str, rows: int) -> None:
        """Write rows, or what cannot be read."""
        with self.writing:
            self._put(kind, rows)

    def _put(self, kind: str, rows: int) -> None:
        raise NotImplementedError

    def end_all(self) -> None:
        """End everything that is open."""
        raise NotImplementedError

    def add_partitions(self, count: int) -> None:
        """Add partitions, where there are such."""

    def contents(self) -> Contents:
        """Read everything that readers are to see."""
        raise NotImplementedError

    def _row(self, k: int) -> bytes:
        self.counts[k] += 1
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=2 * self.era)
        at = start + dt.timedelta(seconds=self.rng.randrange(10_000))
        row = {"k": k, "n": self.counts[k], "v": self.rng.randint(-9, 9), "at": at.isoformat()}
        return json.dumps(row).encode()


@dataclass(slots=True, kw_only=True)
class Messages(Input):
    """Messages of a topic, with and without transactions.

    A transaction that is aborted has a producer of its own, which writes nothing afterwards: the
    broker of the tests names aborted transactions that lie before the offset that is fetched, and
    librdkafka would leave out what the same producer commits later.
    """

    broker: KafkaBroker
    topic: str
    partitions: int
    places: dict[int, int] = field(default_factory=dict)  # key → partition
    producers: int = 0

    def _put(self, kind: str, rows: int) -> None:
        match kind:
            case "plain" | "bad":
                self._send(self.broker.producer(**_ONCE), rows, bad=kind == "bad")
            case "end":
                self.end_all()
            case _:
                producer = self._transactional()
                self._send(producer, rows)
                if kind == "open":
                    self.open.append(producer)
                elif kind == "aborted":
                    producer.abort_transaction(PATIENCE_S)
                else:
                    producer.commit_transaction(PATIENCE_S)

    def end_all(self) -> None:
        """Commit or abort every transaction."""
        while self.open:
            producer, commits = self.open.pop(), self.rng.random() < 0.5
            end = producer.commit_transaction if commits else producer.abort_transaction
            end(PATIENCE_S)

    def _transactional(self) -> Any:
        self.producers += 1
        producer = self.broker.producer(f"{self.topic}-{self.producers}")
        producer.begin_transaction()
        return producer

    def _send(self, producer: Any, rows: int, *, bad: bool = False) -> None:
        for _ in range(rows):
            k = self.rng.randrange(KEYS)
            partition = self.places.setdefault(k, self.rng.randrange(self.partitions))
            value = self.rng.choice(_BAD) if bad else self._row(k)
            producer.produce(self.topic, value, partition=partition, key=b"%d" % k)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0, "the broker took no messages"

    def add_partitions(self, count: int) -> None:
        """See `Input.add_partitions`."""
        self.partitions += count
        self.broker.add_partitions(self.topic, self.partitions)

    def contents(self) -> Contents:
        """See `Input.contents`."""
        return Contents.of_topic(self.broker, self.topic)


@dataclass(slots=True, kw_only=True)
class Files(Input):
    """Files of JSON lines, each renamed into place once it is whole.

    What is aborted or open is half a file, by a name that sources pass over.
    """

    directory: Path
    files: int = 0

    def _put(self, kind: str, rows: int) -> None:
        match kind:
            case "end":
                self.end_all()
            case "aborted" | "open":
                begun = self._begun(b'{"k":0,"n":')
                if kind == "open":
                    self.open.append(begun)
                else:
                    begun.unlink()
            case _:
                bad = kind == "bad"
                lines = [
                    self.rng.choice(_BAD) if bad else self._row(self.rng.randrange(KEYS))
                    for _ in range(rows)
                ]
                begun = self._begun(b"".join(line + b"\n" for line in lines))
                begun.rename(begun.with_name(begun.name.removeprefix("_")))

    def _begun(self, text: bytes) -> Path:
        self.files += 1
        path = self.directory / f"_{self.files:06d}.json"
        path.write_bytes(text)
        return path

    def end_all(self) -> None:
        """See `Input.end_all`."""
        while self.open:
            self.open.pop().unlink()

    def contents(self) -> Contents:
        """See `Input.contents`."""
        return Contents.of_files(self.directory)
