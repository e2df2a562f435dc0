"""A broker of Kafka's protocol for tests: ``noida-db`` in a process of its own, or any cluster.

Clients reach ``noida-db`` by a relay, at which fetches wait (`tests.kafka_relay`).
``GODWIT_KAFKA=host:port`` runs the same tests against a cluster that is there; topics are made for
each test and deleted after it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import kafka_relay

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KafkaBroker", "KafkaRelay", "KafkaServer", "kafka", "kafka_server", "running_broker"]

_START_TIMEOUT_S = 120.0


class KafkaRelay:
    """The relay's process (`tests.kafka_relay`)."""

    def __init__(self, broker_port: int, log: Path) -> None:
        self._lock = threading.Lock()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", kafka_relay.__file__, str(broker_port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        self.port = int(self._line())

    def cut(self, api: str, **cut: Any) -> None:
        """Cut the connection by a request of Godwit's that is still to come, or by its answer.

        See `kafka_relay._Cut` for what is cut, and how.
        """
        self._tell({"cut": {"api": kafka_relay.APIS[api], "client": "godwit", **cut}})

    def forget_cuts(self) -> None:
        """Make none of the cuts that were not made yet."""
        self._tell({"cut": None})

    @property
    def num_cuts(self) -> int:
        """Cuts that were made so far."""
        return int(self._tell({})["cuts"])

    def end(self) -> None:
        """End it: its input does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def _tell(self, told: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        with self._lock:
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.flush()
            return json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the relay has ended"
        return line


@dataclass(slots=True)
class KafkaServer:
    """The broker's process, which can be halted, killed, and started again on the same data."""

    command: list[str]
    directory: Path
    port: int  # the broker's own
    relay: KafkaRelay  # what clients reach it by, through all of its processes
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        arguments = ["--kafka-port", str(self.port), "--data-dir", f"{self.directory}/data"]
        with (self.directory / "log").open("ab") as log:
            self.process = process = subprocess.Popen(
                [*self.command, "start", "--only", "kafka", *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        for port in (self.port, self.relay.port):  # the relay listens once the broker does
            while not _is_open(port):
                if time.monotonic() > deadline or process.poll() is not None:
                    log_text = (self.directory / "log").read_text()
                    pytest.fail(f"The broker did not start: {log_text}")
                time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to it, and to whatever it has started."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def end(self, number: int) -> None:
        """End it by a signal."""
        assert self.process is not None
        self.signal(number)
        self.process.wait(60)


@dataclass(slots=True)
class KafkaBroker:
    """A running broker, and what a test does with it beside the code that is tested."""

    servers: str
    server: KafkaServer | None = None  # its process, if it is the tests' own
    topics: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _admin: Any = None

    @property
    def pid(self) -> int | None:
        """Id of its process, if it is the tests' own."""
        process = None if self.server is None else self.server.process
        return None if process is None else process.pid

    def topic(self, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """Make a topic of a new name."""
        name = f"godwit-{uuid.uuid4().hex[:8]}-{next(self._numbers)}"
        self.make(name, partitions, config)
        self.topics.append(name)
        return name

    def make(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        from confluent_kafka.admin import NewTopic

        _done(self.admin().create_topics([NewTopic(name, partitions, 1, config=config or {})]))

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers})
        return self._admin

    def add_partitions(self, topic: str, count: int) -> None:
        from confluent_kafka.admin import NewPartitions

        _done(self.admin().create_partitions([NewPartitions(topic, count)]))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete records, as retention does."""
        from confluent_kafka import TopicPartition

        _done(self.admin().delete_records([TopicPartition(topic, partition, offset)]))

    def delete(self, *topics: str) -> None:
        _done(self.admin().delete_topics(list(topics)))

    def producer(self, transactional_id: str | None = None, **config: Any) -> Any:
        """Make a producer; of a transactional one, `init_transactions` was called."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.servers, "linger.ms": 1, **config}
        if transactional_id is None:
            return Producer(settings)
        made = Producer({**settings, "transactional.id": transactional_id})
        made.init_transactions(30)
        return made

    def put(self, topic: str, *values: bytes | None, partition: int = 0, **message: Any) -> None:
        """Write messages, without a transaction."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, partition=partition, **message)
        assert producer.flush(30) == 0

    def read(self, topic: str, *, committed: bool = True) -> list[Any]:
        """Read all messages of a topic, by partition and offset."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 10,  # what there is, not what comes
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            messages, ended = [], set[int | None]()
            deadline = time.monotonic() + 60
            while len(ended) < len(partitions):
                assert time.monotonic() < deadline, "the broker does not answer"
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    messages.append(message)
                else:
                    ended.add(message.partition())
            return sorted(messages, key=lambda m: (m.partition(), m.offset()))
        finally:
            consumer.close()

    def values(self, topic: str) -> list[bytes | None]:
        """Return what readers of committed messages see."""
        return [message.value() for message in self.read(topic)]


def _done(futures: Any) -> list[Any]:
    return [future.result(30) for future in futures.values()]


@contextlib.contextmanager
def running_broker() -> Iterator[KafkaBroker]:
    """Run a broker for as long as the context lasts, unless there is one."""
    if servers := os.environ.get("GODWIT_KAFKA"):
        yield KafkaBroker(servers)
        return
    command = _command()
    if command is None:
        pytest.skip("Kafka tests need a broker: pip install noida-db, or GODWIT_KAFKA=host:port.")
    directory = Path(tempfile.mkdtemp(prefix="godwit-kafka-"))
    held = _held_port()  # also while the broker is down
    port = int(held.getsockname()[1])
    relay = KafkaRelay(port, directory / "log")
    server = KafkaServer(command, directory, port, relay)
    try:
        server.start()
        try:
            yield KafkaBroker(f"127.0.0.1:{relay.port}", server=server)
        finally:
            server.end(signal.SIGTERM)
    finally:
        relay.end()
        held.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaBroker]:
    """Yield a broker that lives as long as the test session."""
    pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")
    with running_broker() as broker:
        yield broker


@pytest.fixture
def kafka(kafka_server: KafkaBroker) -> Iterator[KafkaBroker]:
    """Yield the broker; topics that the test makes are deleted after it."""
    broker = KafkaBroker(kafka_server.servers, server=kafka_server.server)
    yield broker
    if broker.topics and os.environ.get("GODWIT_KAFKA"):
        broker.delete(*broker.topics)


def _command() -> list[str] | None:
    beside = Path(sys.executable).with_name("noida-db")
    if beside.exists():
        return [str(beside)]
    found = shutil.which("noida-db")
    return None if found is None else [found]


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            # While nobody listens, a connection from a port to itself is possible.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def _held_port() -> socket.socket:
    """Take a free port for as long as the socket is open: nobody but a listener gets it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
