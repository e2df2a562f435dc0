"""Redis: ``gw.sinks.redis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.connect.options import check_columns, wrong_option
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.connect.redis.sink import RedisSink
    from godwit.sinks.sink import Sink


@user_call
def redis(
    url: str,
    prefix: str,
    *,
    keys: str | Sequence[str] | None = None,
    rejects: Sink | None = None,
) -> RedisSink:
    """Write each row to a hash of Redis, and delete the hashes of deleted rows; exactly-once.

    **Exactly-once**: the epoch's number is written in the transaction (``MULTI``) of its last rows.
    An epoch of up to 1,000 rows is one transaction. Of a larger one readers see parts; after a
    crash the parts are written again, with the same result, since rows replace rows by key. A
    server that loses its last second of writes, as Redis does by default when it crashes, loses
    epochs, which is noticed before the next one is written.

    Parameters
    ----------
    url
        Server as redis-py writes it: ``"redis://user:password@host:6379/0"``, ``"rediss://..."``,
        ``"unix://path"``. The password is not shown in errors or plans. Not a cluster.
    prefix
        First part of the names of all hashes: the row of key ``N1`` is at ``<prefix>:N1``. If rows
        have several keys, the name ends with a JSON list of them.
    keys
        Columns that identify a row; by default those that identify a row of the result: the key
        columns, and the window. They cannot be null.
    rejects
        Sink of the rows that Redis cannot take, with the text columns ``sink``, ``reason``, ``key``
        and ``row`` (the last two as JSON). ``None``: such a row fails its epoch.

    Raises
    ------
    SinkError
        If redis is not installed, or an option is wrong.

    Examples
    --------
    >>> gw.sinks.redis("redis://host/0", "by_plane")
    gw.sinks.redis('redis://host/0', 'by_plane')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Redis sink", "redis", "redis", SinkError):
        from godwit.connect.redis.sink import RedisSink  # noqa: PLC0415 - redis is optional
    for option, value in (("url", url), ("prefix", prefix)):
        if not isinstance(value, str) or not value:
            raise wrong_option("Redis", option, value, 'text, as in "redis://host/0", "by_plane"')
    check_columns("Redis", keys=keys)
    return RedisSink(**options)
