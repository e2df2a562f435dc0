"""Ranges of offsets, read by consumers that this process keeps between epochs.

A new consumer needs about a second until its first message, an open one milliseconds.  So consumers
stay open, one for each configuration and task at a time, in no group, with partitions assigned by
hand.  If a consumer has read up to the begin of the next range, its next messages are fetched
already.  So if few rows arrive, the cluster need not be asked how far the partitions reach
(`fetched_offsets`): the fetched messages can be read.

Offsets have gaps: transactions end with records of their own, aborted ones and compaction leave
none.  So a range is done when a message beyond it was seen or the partition's end was reached at or
beyond it, not when rows were counted.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from godwit.connect.kafka.client import ErrorLog, KafkaSettings, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Partition: TypeAlias = tuple[str, int]  # topic and partition

BATCH: Final = 4_096  # messages at a time: enough for whole columns, few enough for a core's cache
FEW: Final = 10_000  # up to this number of offsets, all ranges are read at once
IDLE_S: Final = 300.0
_LOST: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001  library's names
)
_OFFSET = methodcaller("offset")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of a partition between two offsets."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def topic_partition(self) -> _Partition:
        """Topic and partition."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.begin} to {self.end}"


class OffsetsLostError(Exception):
    """A partition no longer has the offsets that are to be read."""

    def __init__(self, partition: _Partition, offset: int) -> None:
        super().__init__(partition, offset)
        self.topic_partition, self.offset = partition, offset


class RangeReader:
    """A consumer, and its fetched messages that no split has read yet."""

    def __init__(self, settings: KafkaSettings, isolation: str) -> None:
        self._settings = settings
        self._log = ErrorLog()
        # Unless the user sets them. A partition that is assigned during the wait for an empty one
        # is fetched when that wait ends.
        config = {"fetch.wait.max.ms": 100, "check.crcs": True}
        ours = settings.client(
            self._log,
            group_id="godwit",  # which the library insists on; it is never joined
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            isolation_level=isolation,
        )
        try:
            self._consumer = Consumer({**config, **ours})
        except (KafkaException, ValueError, TypeError) as error:
            raise settings.to_error(error, self._log, time.monotonic()) from None
        self._next_offsets: dict[_Partition, int] = {}  # assigned partition → next offset to return
        self._seen_up_to: dict[
            _Partition, int
        ] = {}  # up to where all messages were returned or are held
        self._held_messages: dict[_Partition, list[Message]] = {}
        self._topics: set[str] = set()  # whose leaders the consumer knows
        self.idle_since_s = time.monotonic()

    def num_continued(self, ranges: Sequence[OffsetRange]) -> int:
        """Count the ranges that begin at the offset this reader has reached in their partition."""
        return sum(self._next_offsets.get(r.topic_partition) == r.begin for r in ranges)

    def num_partitions_followed(self, begins: Mapping[_Partition, int]) -> tuple[int, int]:
        """Count the partitions of `begins` that this reader reads: at that or any offset."""
        followed = sum(
            self._next_offsets.get(partition) == begin for partition, begin in begins.items()
        )
        return followed, len(begins.keys() & self._next_offsets.keys())

    def collect_fetched(self, begins: Mapping[_Partition, int]) -> dict[_Partition, int] | None:
        """Collect fetched messages without waiting; return partition → offset after the last.

        Partitions that the reader does not read yet are fetched from now on. Returns ``None`` if it
        is at other offsets, or far behind the partitions' ends: then the cluster has to be asked.
        """
        partitions = [partition for partition in begins if partition in self._next_offsets]
        if any(self._next_offsets[partition] != begins[partition] for partition in partitions):
            if any(self._next_offsets[partition] < begins[partition] for partition in partitions):
                self._discard_fetched()  # others have read on
            return None
        if not partitions:
            return None
        if len(partitions) < len(begins):
            self._start_fetching([OffsetRange(*p, begin, begin) for p, begin in begins.items()])
        if sum(map(len, self._held_messages.values())) < FEW:
            self._poll_messages(0)
        reached = {partition: self._seen_up_to[partition] for partition in begins}
        near = 0 if reached == begins else BATCH
        for partition, seen in reached.items():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            if not 0 <= end <= seen + near:
                return None
        return reached

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, list[Message]]]:
        """Yield the messages of each range in turn, in batches.

        Raises `KafkaFailedError` if no message comes within the time-out, `OffsetsLostError` if the
        partition no longer has them.
        """
        is_small = sum(offset_range.end - offset_range.begin for offset_range in ranges) <= FEW
        waves = [list(ranges)] if is_small else [[offset_range] for offset_range in ranges]
        for wave in waves:
            complete = False
            try:
                self._start_fetching(wave)
                for offset_range in wave:
                    yield from self._read_range(offset_range)
                complete = is_small
            except KafkaException as error:
                raise self._settings.to_error(error, self._log, time.monotonic()) from None
            finally:
                if not complete:  # do not fetch messages that are not asked for
                    self._discard_fetched()

    def _start_fetching(self, ranges: Sequence[OffsetRange]) -> None:
        """Start fetching the messages of these ranges, unless they are already being fetched."""
        if all(self._next_offsets.get(r.topic_partition) == r.begin for r in ranges):
            return
        elsewhere = any(
            self._next_offsets.get(r.topic_partition, r.begin) != r.begin for r in ranges
        )
        for topic in {r.topic for r in ranges} - self._topics:
            # Left to itself, a new consumer looks for leaders once a second.
            self._consumer.list_topics(topic, timeout=self._settings.timeout_s)
            self._topics.add(topic)
        begins = {r.topic_partition: r.begin for r in ranges}
        new = {p: begin for p, begin in begins.items() if elsewhere or p not in self._next_offsets}
        if elsewhere:  # the ranges read so far say nothing about the next ones
            self._next_offsets, self._seen_up_to, self._held_messages = {}, {}, {}
        self._next_offsets |= new
        self._seen_up_to |= new
        self._held_messages |= {partition: [] for partition in new}
        assigned = [TopicPartition(*partition, offset) for partition, offset in new.items()]
        if len(new) == len(self._next_offsets):
            self._consumer.assign(assigned)
        else:
            self._consumer.incremental_assign(assigned)

    def _discard_fetched(self) -> None:
        """Discard fetched messages and assignments."""
        self._next_offsets, self._seen_up_to, self._held_messages = {}, {}, {}
        self._consumer.unassign()

    def _read_range(self, offset_range: OffsetRange) -> Iterator[tuple[OffsetRange, list[Message]]]:
        """Yield the messages of one range in batches, each with the range."""
        start_s = progress_s = time.monotonic()
        while (seen := self._seen_up_to[offset_range.topic_partition]) < offset_range.end:
            fetched = self._held_messages[offset_range.topic_partition]
            if len(fetched) >= BATCH:
                self._held_messages[offset_range.topic_partition] = []
                yield offset_range, fetched
                progress_s = time.monotonic()
            self._poll_messages()
            if self._seen_up_to[offset_range.topic_partition] > seen:
                progress_s = time.monotonic()
            else:
                self._check_progress(offset_range, start_s, progress_s)
        fetched = self._held_messages[offset_range.topic_partition]
        cut = len(fetched)
        if fetched and (fetched[-1].offset() or 0) >= offset_range.end:
            cut = bisect_left(fetched, offset_range.end, key=_OFFSET)
        self._held_messages[offset_range.topic_partition] = fetched[cut:]
        self._next_offsets[offset_range.topic_partition] = offset_range.end
        if cut:
            yield offset_range, fetched[:cut]

    def _poll_messages(self, wait_s: float = 0.1) -> None:
        """Store messages that were fetched; wait up to `wait_s` seconds if there are none."""
        messages = self._consumer.consume(BATCH, 0)
        if not messages:
            first = self._consumer.poll(wait_s) if wait_s else None
            if first is None:
                return
            messages = [first, *self._consumer.consume(BATCH - 1, 0)]
        if len(self._next_offsets) == 1 and not any(map(Message.error, messages)):
            (partition,) = self._next_offsets
            self._held_messages[partition] += messages
            self._seen_up_to[partition] = max(
                self._seen_up_to[partition], _OFFSET(messages[-1]) + 1
            )
            return
        for message in messages:
            self._store_message(message)

    def _store_message(self, message: Message) -> None:
        """Store one polled message in the queue of its partition; raise if it is an error."""
        partition = (message.topic() or "", message.partition() or 0)
        offset: Any = message.offset()
        error = message.error()
        if error is None:
            if partition in self._held_messages and offset >= self._seen_up_to[partition]:
                self._held_messages[partition].append(message)
                self._seen_up_to[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if partition in self._seen_up_to:
                self._seen_up_to[partition] = max(self._seen_up_to[partition], offset)
        elif error.code() in _LOST:
            raise OffsetsLostError(partition, self._seen_up_to.get(partition, offset))
        else:
            raise KafkaException(error)

    def _check_progress(self, offset_range: OffsetRange, start_s: float, progress_s: float) -> None:
        """Raise if the cluster refuses requests, or no message of the range arrived for too long.

        `start_s`: when reading began. `progress_s`: when the last message arrived.
        """
        now_s = time.monotonic()
        waited = KafkaException(
            KafkaError(
                KafkaError._TIMED_OUT,  # noqa: SLF001
                f"no message of {offset_range} arrived within {self._settings.timeout_s:g} s",
            )
        )
        failed = self._settings.to_error(waited, self._log, start_s)
        if failed.refused or now_s - progress_s > self._settings.timeout_s:
            raise failed

    def close(self) -> None:
        """Close the consumer."""
        self._held_messages = {}
        with contextlib.suppress(KafkaException, RuntimeError):
            self._consumer.close()


_Key: TypeAlias = tuple[str, ...]

_kept: dict[_Key, list[RangeReader]] = {}
_inherited: list[object] = []  # of the process that this one was forked from: not to be touched
_owner = os.getpid()
_lock = threading.Lock()


@contextlib.contextmanager
def leased_reader(
    settings: KafkaSettings, isolation: str, ranges: Sequence[OffsetRange]
) -> Iterator[RangeReader]:
    """Context with a reader for a split: an idle one of these settings, or a new one."""
    key = (*settings.key, isolation)
    with _lock:
        idle = _idle_readers(key)
        reader = max(idle, key=lambda each: each.num_continued(ranges), default=None)
        if reader is not None:
            idle.remove(reader)
    if reader is None:
        reader = RangeReader(settings, isolation)
    try:
        yield reader
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            reader.close()  # its connection may be why
            raise
        _keep_idle(key, reader)
        raise
    _keep_idle(key, reader)


def fetched_offsets(
    settings: KafkaSettings, isolation: str, begins: Mapping[_Partition, int]
) -> dict[_Partition, int] | None:
    """Return the offsets up to which this process has fetched messages, without waiting.

    `begins`: offsets to continue from. ``None`` if no idle reader continues there: then only the
    cluster knows.
    """
    key = (*settings.key, isolation)
    with _lock:
        idle = _idle_readers(key)
        reader = max(idle, key=lambda each: each.num_partitions_followed(begins), default=None)
        if reader is None or not any(reader.num_partitions_followed(begins)):
            return None
        idle.remove(reader)
    try:
        reached = reader.collect_fetched(begins)
    except (KafkaException, OffsetsLostError):
        reader.close()  # the next request to the cluster raises the reason
        return None
    _keep_idle(key, reader)
    return reached


def _keep_idle(key: _Key, reader: RangeReader) -> None:
    """Keep a reader for the next split of its settings; close readers that were idle for long."""
    reader.idle_since_s = time.monotonic()
    with _lock:
        _idle_readers(key).append(reader)
    close_idle()


def _idle_readers(key: _Key) -> list[RangeReader]:
    """Return the idle readers of these settings, without those of a parent process."""
    global _owner
    if _owner != os.getpid():
        _inherited.append(dict(_kept))
        _kept.clear()
        _owner = os.getpid()
    return _kept.setdefault(key, [])


def close_idle(idle_s: float = IDLE_S) -> None:
    """Close readers that were idle for `idle_s` seconds."""
    before_s = time.monotonic() - idle_s
    _close_matching(lambda _, reader: reader.idle_since_s <= before_s)


def close_readers(settings: KafkaSettings | None = None) -> None:
    """Close the idle readers of some settings; ``None``: of all."""
    prefix = settings.key if settings else ()
    _close_matching(lambda key, _: key[: len(prefix)] == prefix)


def _close_matching(matches: Any) -> None:
    """Close the idle readers for which ``matches(key, reader)`` is true."""
    closing: list[RangeReader] = []
    with _lock:
        if _owner != os.getpid():
            return
        for key, readers in _kept.items():
            closing += (gone := [r for r in readers if matches(key, r)])
            _kept[key] = [r for r in readers if r not in gone]
    for reader in closing:
        reader.close()


atexit.register(close_readers)
