"""Waiting for several queries of one process, each of which ends by itself."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from godwit.model.frames import user_call
from godwit.runtime.lifecycle import EndingSignals
from godwit.runtime.query import end_on_signals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.runtime.query import Query

_LOOK_S: Final = 0.1
_logger = logging.getLogger("godwit")


@user_call
def await_all(queries: Iterable[Query]) -> None:
    """Wait until all of several queries have ended, each by itself.

    A query that fails, or is stopped, leaves the others: its failure is logged at once, and raised
    once the others have ended too. Ctrl-C and SIGTERM stop all, as in `Query.awaitTermination`.

    Parameters
    ----------
    queries
        Queries of this process, usually in one Spark session.

    Raises
    ------
    GodwitError
        The failure of the first query that failed; a note names the others that did.

    Examples
    --------
    >>> gw.await_all([query])  # doctest: +SKIP
    >>> gw.await_all([])  # no query is left to wait for
    """
    running = list(queries)
    failures: list[tuple[str, Exception]] = []

    def wait(timeout_s: float | None) -> bool:
        """Wait until all queries have ended; note failures as they happen."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for query in [query for query in running if not query.isActive]:
                running.remove(query)
                if (failure := query.exception()) is not None:
                    failures.append((query.name, failure))
                    with suppress(Exception):  # a log handler of the user's
                        _logger.error(
                            "Query %r failed: %s. %d others go on.",
                            query.name,
                            str(failure).partition("\n")[0],
                            len(running),
                        )
            if not running:
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOOK_S)

    with EndingSignals() as signals:
        signals.wait(wait, None)
        if signals.asked:
            end_on_signals(running, signals)
    if signals.asked:
        signals.raise_asked()
    if failures:
        name, failure = failures[0]
        failure.add_note(f"It is of query {name!r}.")
        for other, later in failures[1:]:
            failure.add_note(f"Query {other!r} failed too: {later}")
        raise failure
