"""Client of a Kafka cluster for source and sink: settings, errors, topics and offsets.

librdkafka connects in the background and retries without end.  It reports the cause of a failure to
a callback, not to the call that waits.  So `ErrorLog` collects the errors of a client, and
`KafkaSettings.wait_for` adds them to the error of a call that timed out.  Wrong credentials end the
wait at once.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import spark_argument
from godwit.model.naming import type_name
from godwit.model.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

__all__ = [
    "ClusterAdmin",
    "ErrorLog",
    "KafkaFailedError",
    "KafkaSettings",
    "LibraryLog",
    "TopicPartition",
    "TopicState",
    "check_settings",
]

T = TypeVar("T")

_SECRET: Final = re.compile(r"password|secret|token|\.pem$|credential|jaas", re.IGNORECASE)
_REFUSED: Final = frozenset(  # errors that waiting does not mend
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001  names of the library
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_STALE: Final = frozenset(  # answers of brokers that know a change of topics, or leaders, not yet
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
_AWAY: Final = frozenset(  # for example while a broker restarts
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001  no leader was found
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_NO_ID: Final = "A" * 22  # what brokers before 2.8 say for a topic's id
_OFTEN_S: Final = 0.1


class KafkaFailedError(Exception):
    """The cluster refused a request, or failed to answer it; the text has no secrets."""

    def __init__(self, text: str, *, code: int | None = None, refused: bool = False) -> None:
        super().__init__(text)
        self.code = code  # of `KafkaError`
        self.refused = refused  # whether credentials or certificates are why

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaFailedError, (str(self),), {"code": self.code, "refused": self.refused}


class LibraryLog:
    """Logger for clients that passes on a few lines of each kind, and counts the others.

    librdkafka logs a line each millisecond while it looks for a broker that it has dropped.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._now_s, self._lock = logger, now_s, threading.Lock()
        # facility and client → when the last lines began to be counted, and how many there were
        self._lines: dict[tuple[object, ...], tuple[float, int]] = {}

    def log(self, level: int, text: str, *args: object) -> None:
        """Log a line of librdkafka; `args`: its facility, the client's name and the message."""
        kind, now_s, left_out = args[:2], self._now_s(), 0
        with self._lock:
            began_s, lines = self._lines.get(kind, (now_s, 0))
            if now_s - began_s >= _LINES_S:
                began_s, lines, left_out = now_s, 0, max(0, lines - _LINES)
            if len(self._lines) >= _MAX_KINDS:
                self._lines.clear()
            self._lines[kind] = began_s, lines + 1
        if lines >= _LINES:
            return
        if left_out:
            text, args = text + " (%d similar lines were suppressed before)", (*args, left_out)
        self._logger.log(level, text, *args)


_LINES: Final = 5  # of a kind in this many seconds
_LINES_S: Final = 10.0
_MAX_KINDS: Final = 1_000
_LIBRARY_LOG: Final = LibraryLog(logging.getLogger("godwit"))


class ErrorLog:
    """The last errors that a client met in the background; given to it as its ``error_cb``."""

    def __init__(self) -> None:
        self._errors: deque[tuple[float, KafkaError]] = deque(maxlen=8)

    def __call__(self, error: KafkaError) -> None:
        """Record an error; called from any thread."""
        self._errors.append((time.monotonic(), error))

    def since(self, start_s: float) -> list[KafkaError]:
        """Return the errors logged since the monotonic time `start_s`, oldest first."""
        return [error for at_s, error in list(self._errors) if at_s >= start_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Settings of clients, such as servers; picklable, and shown without secrets."""

    servers: str
    timeout_s: float
    config: Mapping[str, Any] = field(repr=False)  # of librdkafka, the user's

    @property
    def secrets(self) -> Secrets:
        """Values of the settings that are confidential."""
        return Secrets.of_values({n: v for n, v in self.config.items() if _SECRET.search(n)})

    @property
    def key(self) -> tuple[str, ...]:
        """Value that identifies the settings, secrets included."""
        return (self.servers, *(f"{n}={_stable_text(v)}" for n, v in sorted(self.config.items())))

    def client(self, log: ErrorLog, **overrides: Any) -> dict[str, Any]:
        """Return the settings of one client; those in `ours` override the user's."""
        dotted = {name.replace("_", "."): value for name, value in overrides.items()}
        return {
            "client.id": "godwit",
            "logger": _LIBRARY_LOG,
            "reconnect.backoff.max.ms": 1_000,  # the library's 10 s are long for a restarted broker
            **self.config,
            "bootstrap.servers": self.servers,
            "error_cb": log,
            **dotted,
        }

    def text_of(self, error: BaseException | KafkaError) -> str:
        """Return the text of a library error, without secrets."""
        if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
            error = error.args[0]
        if isinstance(error, KafkaError):
            return self.secrets.hide(f"{error.str()} ({error.name()})")
        return self.secrets.hide(str(error))

    def to_error(self, error: Exception, log: ErrorLog, start_s: float) -> KafkaFailedError:
        """Return a `KafkaFailedError` for a library error, with errors logged since `start_s`."""
        code = error.args[0].code() if _is_kafka(error) else None
        texts = [self.text_of(error)]
        for met in log.since(start_s):
            if (text := self.text_of(met)) not in texts:
                texts.append(text)
        refused = code in _REFUSED or any(e.code() in _REFUSED for e in log.since(start_s))
        return KafkaFailedError("; ".join(texts[:3]), code=code, refused=refused)

    def wait_for(
        self, future: Future[T], log: ErrorLog, start_s: float, poll: Callable[[float], object]
    ) -> T:
        """Return the result of `future`; raise `KafkaFailedError` after a time-out.

        `start_s`: monotonic time of the request. `poll`: the client's, called while waiting, so
        that it reports errors to `log`.
        """
        while True:
            try:
                return future.result(_OFTEN_S)
            except TimeoutError as error:
                poll(0)
                met = [e for e in log.since(start_s) if e.code() in _REFUSED]
                if met:
                    raise self.to_error(KafkaException(met[0]), log, start_s) from None
                if time.monotonic() - start_s > self.timeout_s + 5:
                    raise self.to_error(error, log, start_s) from None
            except KafkaException as error:
                raise self.to_error(error, log, start_s) from None


def _is_kafka(error: BaseException) -> bool:
    """Return whether an exception of confluent-kafka has an error code of Kafka."""
    return isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError)


def _stable_text(value: object) -> str:
    """Return a setting's value as text, identical in every process."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return str(value)


_OURS: Final = {
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    "isolation.level": "isolation",
    "group.id": "group",
    "enable.auto.commit": None,
    "enable.auto.offset.store": None,
    "enable.partition.eof": None,
    "auto.offset.reset": "start",
    "error_cb": None,
    "transactional.id": None,
    "enable.idempotence": None,
    "transaction.timeout.ms": "transaction_timeout",
}
"""Settings that Godwit controls → the option for them; ``None`` if there is none."""


_ARGUMENTS: Final = (
    *("servers", "topics", "topic", "start", "max_rows_per_epoch", "on_data_loss", "group"),
    "include",
)
"""Option of Spark → the equivalent argument."""


_SERVER: Final = re.compile(
    r"(?:(?P<protocol>\w+)://)?(?P<host>\[[^\]]+\]|[^:/@\s]+):(?P<port>\d+)"
)
_PROTOCOLS: Final = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})


def check_server(where: str, server: str) -> None:
    """Raise `InvalidFlowError` for a bootstrap server that no client could reach.

    `where`: the source or sink, for errors.
    """
    scheme, separator, address = server.rpartition("://")
    if separator and scheme.lower() not in _PROTOCOLS:
        shown, problem = f"{scheme}://...", "a URL"
        suggested = address.rpartition("@")[2].partition("/")[0] or "broker:9092"
        remedy = f'Give only {suggested!r}: "host:port" without {scheme}://.'
    elif (match := _SERVER.fullmatch(server)) is None or not 0 < int(match["port"]) < 2**16:
        shown = server.rpartition("@")[2]
        problem, remedy = "not host:port", 'Give "host:port", as in "broker:9092".'
    else:
        return
    raise InvalidFlowError(f"{where}: the server {shown!r} is {problem}.", remedy=remedy)


def check_topic(where: str, name: str) -> None:
    """Raise `InvalidFlowError` for a name that no topic can have.

    `where`: the source or sink, for errors.
    """
    if re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        return
    parts = [part.strip() for part in name.split(",")]
    listed = f"A source takes a list of topics, {parts!r}. " if len(parts) > 1 else ""
    raise InvalidFlowError(
        f"{where} has the topic {name!r}, which is not a valid name.",
        remedy=f"{listed}A name has letters, digits, '.', '_' and '-', at most 249; it is not "
        "a pattern.",
    )


def check_settings(
    where: str, servers: str | Sequence[str], config: Mapping[str, Any] | None, timeout_s: float
) -> KafkaSettings:
    """Return a user's servers and settings, checked. `where`: the source or sink, for errors."""
    names = [servers] if isinstance(servers, str) else list(servers)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidFlowError(
            f"{where} has no servers.", remedy='Give "host:port", or a list of them.'
        )
    for name in (part for listed in names for part in listed.split(",")):
        check_server(where, name.strip())
    if config is not None and not isinstance(config, dict):
        raise InvalidFlowError(
            f"{where}: config is of type {type_name(config)}.",
            remedy='Give a dict of librdkafka\'s settings, as in {"security.protocol": "ssl"}.',
        )
    for name in config or {}:
        if name in _OURS:
            option = _OURS[name]
            raise InvalidFlowError(
                f"{where}: config= has {name!r}, which Godwit sets itself.",
                remedy=f"Use the option {option}=... instead." if option else "Leave it out.",
            )
        if str(name).startswith("kafka.") or spark_argument(name, _ARGUMENTS):
            argument = spark_argument(name, _ARGUMENTS)
            raise InvalidFlowError(
                f"{where}: config= has {name!r}, which is an option only of Spark.",
                remedy=f"Use the argument {argument}= instead."
                if argument
                else f"Write {name.removeprefix('kafka.')!r}; config= takes librdkafka's names.",
            )
    return KafkaSettings(
        servers=",".join(name.strip() for name in names),
        config=dict(config or {}),
        timeout_s=timeout_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as it is now."""

    id: str  # empty where the cluster gives topics none
    num_partitions: int


def dataset_of_topic(servers: str, topic: str) -> str:
    """Return the URI of a topic for lineage: by its first bootstrap server, as OpenLineage has it.

    Examples
    --------
    >>> dataset_of_topic("one:9092,two:9093", "flights")
    'kafka://one:9092/flights'
    """
    return f"kafka://{servers.partition(',')[0]}/{topic}"


class ClusterAdmin:
    """Requests to a cluster, each answered within the settings' time-out, or failing."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.log = ErrorLog()
        try:
            self._admin = AdminClient(settings.client(self.log))
        except (KafkaException, ValueError, TypeError) as error:
            raise settings.to_error(error, self.log, time.monotonic()) from None

    def topics(self, names: Iterable[str]) -> dict[str, TopicState | None]:
        """Return topic → its state in the cluster; ``None`` if it is missing. Creates no topic."""
        start_s = time.monotonic()
        collection = TopicCollection(list(names))
        while True:
            futures = self._admin.describe_topics(
                collection, request_timeout=self._settings.timeout_s
            )
            try:
                return {
                    name: self._topic_state(future, start_s) for name, future in futures.items()
                }
            except KafkaFailedError as error:
                if error.code not in _AWAY or self._is_timed_out(start_s):
                    raise
            time.sleep(_OFTEN_S)

    def _topic_state(self, future: Future[Any], start_s: float) -> TopicState | None:
        """Return the state of a topic from its description; ``None`` if it is missing."""
        try:
            topic = self._wait_for(future, start_s)
        except KafkaFailedError as error:
            if error.code in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
                return None
            raise
        topic_id = str(topic.topic_id)
        return TopicState(
            id="" if topic_id == _NO_ID else topic_id, num_partitions=len(topic.partitions)
        )

    def offsets(
        self, partitions: Mapping[tuple[str, int], OffsetSpec], *, committed: bool
    ) -> dict[tuple[str, int], int]:
        """Look up an offset of each partition; -1 if no message is that late.

        `partitions`: (topic, partition) → first, last, or first since a time. With `committed`,
        the last is before open transactions.
        """
        if not partitions:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        start_s = time.monotonic()
        offsets: dict[tuple[str, int], int] = {}
        while len(offsets) < len(partitions):
            asked = self._admin.list_offsets(
                {TopicPartition(*p): spec for p, spec in partitions.items() if p not in offsets},
                isolation_level=level,
                request_timeout=self._settings.timeout_s,
            )
            stale = None
            for partition, future in asked.items():
                try:
                    answer: Any = self._wait_for(future, start_s)
                except KafkaFailedError as error:
                    if error.code not in _STALE | _AWAY:
                        raise
                    stale = error
                else:
                    if answer.offset == OFFSET_INVALID:  # the library's, where an answer was lost
                        lost = f"no response for {partition.topic} [{partition.partition}]"
                        stale = KafkaFailedError(lost, code=KafkaError._TRANSPORT)  # noqa: SLF001
                        continue
                    offsets[partition.topic, partition.partition] = answer.offset
            if stale is not None:
                if self._is_timed_out(start_s):
                    raise stale
                self._refresh_metadata({topic for topic, _ in partitions})
        return offsets

    def _is_timed_out(self, start_s: float) -> bool:
        """Return whether the time-out of a request sent at `start_s` has passed."""
        return time.monotonic() - start_s > self._settings.timeout_s

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, committed: bool
    ) -> dict[Any, int]:
        """Return (topic, partition) → its end offset.

        With `committed`, before open transactions.
        """
        return self.offsets({p: OffsetSpec.latest() for p in partitions}, committed=committed)

    def first_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[Any, int]:
        """Return (topic, partition) → the first offset that has not been deleted."""
        return self.offsets({p: OffsetSpec.earliest() for p in partitions}, committed=False)

    def offsets_at_time(
        self, partitions: Iterable[tuple[str, int]], time_ms: int
    ) -> dict[Any, int]:
        """Return (topic, partition) → offset of the first message since a time.

        -1 if there is none.
        """
        spec = OffsetSpec.for_timestamp(time_ms)
        return self.offsets(dict.fromkeys(partitions, spec), committed=False)

    def topic_setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic; ``None`` if the cluster does not report it."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415

        asked = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=self._settings.timeout_s
        )
        try:
            (future,) = asked.values()
            settings: Any = self._wait_for(future, time.monotonic())
        except KafkaFailedError:  # who may write need not be allowed to ask
            return None
        value = settings[name].value if name in settings else None
        return None if value is None else str(value)

    def _refresh_metadata(self, topics: Iterable[str]) -> None:
        """Refresh the client's metadata of topics whose partitions or leaders have changed."""
        time.sleep(_OFTEN_S)
        for topic in topics:
            try:
                self._admin.list_topics(topic, timeout=self._settings.timeout_s)
            except KafkaException as error:
                raise self._settings.to_error(error, self.log, time.monotonic()) from None

    def _wait_for(self, future: Future[T], start_s: float) -> T:
        """Return the cluster's response to a request sent at `start_s`.

        Raise if it takes too long.
        """
        return self._settings.wait_for(future, self.log, start_s, self._admin.poll)
