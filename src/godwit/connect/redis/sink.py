"""Rows in hashes of Redis by key, exactly once: the epoch's number is written after the rows.

The invariant: the hash ``<prefix>:godwit:epochs`` says epoch n of a sink if the rows of every epoch
up to n are written.  Rows are written in transactions, each of which is refused if the number has
changed since it was read, and the last one writes the number.  A delivery that is repeated writes
the same rows to the same keys, so parts of an epoch without its number do no harm.

Values are text: numbers as in JSON, text and bytes as they are, times in ISO form, and nested
values as JSON.  A null has no field.
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis.exceptions import RedisError, WatchError

from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.signed import CHANGE
from godwit.columns.types import is_binary, is_text
from godwit.connect.row_checks import KNOWN_YEARS, NO_NANOSECONDS, ColumnCheck, RowChecks, Rule
from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.rows import split_batch, storable_schema
from godwit.sinks.target_sink import CommitRetries, TargetSink
from godwit.sinks.writing import Writing

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator, Sequence

    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import EpochOutput, Sink, SinkContext

    Row = tuple[bytes, dict[str, bytes | str] | None]  # name of a hash; ``None``: it is deleted

_EPOCHS: Final = "godwit:epochs"  # behind the prefix: hash of the sinks' epochs
_ROWS: Final = 1_000  # of a transaction, which the server runs in one go
_BYTES: Final = 4 * 2**20
_TIMEOUT_S: Final = 30.0


class RedisSink(TargetSink):
    """Writes rows to hashes of Redis (see `gw.sinks.redis`)."""

    failures = (RedisError, OSError)
    takes_other_writers = True
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write
    deletes = True

    def __init__(
        self, url: str, prefix: str, *, keys: str | Sequence[str] | None, rejects: Sink | None
    ) -> None:
        self._writing = Writing(mode="upsert", keys=keys)
        self._url, self._prefix = url, prefix
        super().__init__("Redis", secrets=Secrets.of_uri(url), rejects=rejects, prefix=prefix)
        try:
            redis.ConnectionPool.from_url(url)
        except ValueError as error:
            raise SinkError(
                f"Redis sink: the URL is not valid: {self._secrets.hide(str(error))}.",
                remedy='Write it as in "redis://user:password@host:6379/0".',
            ) from None
        self._client: redis.Redis | None = None

    def __repr__(self) -> str:
        return f"gw.sinks.redis({shown_uri(self._url)!r}, {self._prefix!r})"

    @property
    def destination(self) -> str:
        """Server and database, without secrets, and prefix."""
        return f"{shown_uri(self._url)} {self._prefix}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The prefix of the keys, after server and number of the database; empty for a socket."""
        known = redis.ConnectionPool.from_url(self._url).connection_kwargs
        if "path" in known:
            return ()
        server = f"redis://{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        return (f"{server}/{known.get('db', 0)}.{self._prefix}",)

    def row_check(self) -> RowCheck:
        """Return the check for rows without a key, or with times outside of ISO 8601."""
        keys, rules = self._layout.keys, (KNOWN_YEARS, NO_NANOSECONDS)
        name = (_NOT_RESERVED,) if len(keys) == 1 else ()
        checks = [
            ColumnCheck(
                field.name,
                (*rules, *(name if field.name in keys else ())),
                nullable=field.name not in keys,
            )
            for field in self._schema
        ]
        return self._layout.check(RowChecks(tuple(checks)))

    def _fit(self, context: SinkContext) -> None:
        """Set the columns; raise if rows have no key, or are a complete result."""
        context = self._set_layout(context)
        if context.complete:
            raise self._target_error(
                "cannot replace a complete result: hashes of keys that were removed would stay",
                'Omit output="complete", so that only the rows of changed keys replace their '
                "hashes.",
            )
        self._schema = storable_schema(context.schema)
        self._epochs = f"{self._prefix}:{_EPOCHS}"
        self._epoch_field = f"{context.query_id} {context.writer}"

    def _try_target(self) -> RowCheck:
        """Check the server."""
        self._client = None  # not that of the sink itself
        try:
            self._check_server()
        finally:
            self.close()
        return self.row_check()

    def open(self, context: SinkContext) -> None:
        """Connect, or raise; read the last epoch."""
        self._fit(context)
        try:
            self._check_server()
            point = self.last_delivered()
        except SinkError:
            self.close()
            raise
        self._last_epoch = -1 if point is None else point.epoch

    def _check_server(self) -> None:
        """Raise if the server cannot be reached, or may evict rows."""
        with self._translating_errors("cannot be opened", "Check the server and the URL."):
            client = self._connected_client()
            cluster = client.info("cluster").get("cluster_enabled")
            policy = str(client.info("memory").get("maxmemory_policy", ""))
        if cluster:
            raise self._target_error(
                "is a cluster, which does not support transactions over all keys",
                "Write to a single server, or to a topic from which a program fills the cluster.",
            )
        if policy.startswith("allkeys"):
            raise self._target_error(
                f"evicts keys when its memory is full (maxmemory-policy {policy}), including "
                "rows and epochs",
                "CONFIG SET maxmemory-policy noeviction",
            )

    def _connected_client(self) -> redis.Redis:
        """Return the client of the server."""
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
            )
        return self._client

    def _reading_epochs(self) -> contextlib.AbstractContextManager[None]:
        return self._translating_errors(
            "its recorded epochs cannot be read", "Check the server, and start the query again."
        )

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch of this sink; ``None`` if it has none."""
        with self._reading_epochs():
            return _point_of(self._connected_client().hget(self._epochs, self._epoch_field))

    def cannot_roll_back(self) -> str:
        """Return, as text, that replaced rows cannot be restored."""
        return (
            "rows that were replaced by later ones cannot be restored (later ones will be "
            "written again)"
        )

    def continue_after(self, point: HistoryPoint) -> None:
        """Record `point` as the last epoch, unconditionally."""
        with self._reading_epochs():
            self._connected_client().hset(
                self._epochs, self._epoch_field, msgspec.json.encode(point)
            )
        self._last_epoch = point.epoch

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's rows, and then its number, unless that is recorded."""
        with self._translating_errors(
            f"epoch {output.epoch} cannot be written",
            "Fix the cause and start the query again: the epoch is written again, as a whole.",
            epoch=output.epoch,
        ):
            retries = CommitRetries(self._retry_policy)
            while True:
                retries.begin(0)
                try:
                    self._write_epoch(output)
                except WatchError:
                    if not retries.wait_after_conflict():
                        raise
                else:
                    self._last_epoch = max(self._last_epoch, output.epoch)
                    return

    def _write_epoch(self, output: EpochOutput) -> None:
        """Write an epoch in parts, the last one with its number."""
        part: list[Row] = []
        for batch in self._layout.rows(output, self._schema):
            for rows in split_batch(batch, rows=_ROWS, size_bytes=_BYTES):
                if part and not self._write_transaction(part, output, is_last=False):
                    return
                part = list(self._names_and_fields(rows.to_pylist()))
        self._write_transaction(part, output, is_last=True)

    def _write_transaction(
        self, rows: Sequence[Row], output: EpochOutput, *, is_last: bool
    ) -> bool:
        """Write rows in a transaction; `is_last`: with the epoch. Return whether that is new."""
        with self._connected_client().pipeline(transaction=True) as transaction:
            transaction.watch(self._epochs)  # type: ignore[no-untyped-call]
            point = _point_of(transaction.hget(self._epochs, self._epoch_field))
            before = -1 if point is None else point.epoch
            if before >= output.epoch:
                return False
            if before < self._last_epoch:
                raise self._target_error(
                    f"has epochs up to {before}, and epochs up to {self._last_epoch} were "
                    "delivered to it in this run: the server has lost its last writes",
                    "Start from a backup of the checkpoint from that time; or continue without "
                    'the epochs in between, start(on_divergence="new_writer").',
                    epoch=output.epoch,
                )
            transaction.multi()
            for name, values in rows:
                transaction.delete(name)
                if values is not None:
                    transaction.hset(name, items=list(itertools.chain(*values.items())))
            if is_last:
                number = msgspec.json.encode(output.point)
                transaction.hset(self._epochs, self._epoch_field, number)
            else:  # so that another delivery, which has read the number, is refused
                transaction.hset(self._epochs, f"{self._epoch_field} part", output.epoch)
            transaction.execute()
        return True

    def _names_and_fields(self, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
        """Yield the name of each row's hash, and its fields."""
        keys, signed = self._layout.keys, self._context.kind != "rows"
        for row in rows:
            texts = [_field_text(row[key]) for key in keys]
            last = (
                texts[0] if len(keys) == 1 else _json_text([_json_value(row[key]) for key in keys])
            )
            name = last if isinstance(last, bytes) else last.encode()
            is_deleted = signed and row.pop(CHANGE.name) < 0
            values = {key: _field_text(value) for key, value in row.items() if value is not None}
            yield self._prefix.encode() + b":" + name, None if is_deleted else values

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _point_of(text: Any) -> HistoryPoint | None:
    """Return an epoch from its JSON text; ``None`` if there is no text."""
    return None if text is None else msgspec.json.decode(text, type=HistoryPoint)


def _field_text(value: Any) -> bytes | str:
    """Return a value as the text of a field."""
    plain = value if isinstance(value, bytes) else _json_value(value)
    return plain if isinstance(plain, bytes | str) else _json_text(plain)


def _json_text(value: Any) -> str:
    """Return a plain value as JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _json_value(value: Any) -> Any:
    """Convert a value to JSON: times in ISO form, decimals as text, bytes in base 64."""
    if isinstance(value, dt.datetime):
        utc = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return utc.isoformat() + ("" if value.tzinfo is None else "Z")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _json_value_within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value_within(item) for item in value]
    return value


def _json_value_within(value: Any) -> Any:
    """Convert a nested value to JSON, which has no NaN and no infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else _json_value(value)


def _is_reserved(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of keys whose hash would be that of the epochs; ``None`` for other types."""
    if not (is_text(values.type) or is_binary(values.type)):
        return None
    return pc.equal(values, pa.scalar(_EPOCHS.encode(), pa.binary()).cast(values.type))


_NOT_RESERVED: Final = Rule(f"is {_EPOCHS!r}, which the sink reserves for its epochs", _is_reserved)
