"""Requests to an object store in an epoch: at the server, and as the query counts them.

    python -m benchmarks.object_store [--epochs 12]

A query on Spark with four lanes sums generated rows by key.  Its checkpoint is on a server that
speaks S3, on this machine, behind a proxy that counts the requests.  Epochs are small (1,000 rows
of 1,000 keys) or large (1,000,000 rows of 400,000 keys: several MB of state in a lane).  Printed
are the requests of an epoch by kind (the median), their sum (the median and the maximum), and the
requests of the whole query, as the query and as the proxy counted them: a reader compares the two.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session
from tests.support.counting_proxy import by_kind, counted_store
from tests.support.s3_server import s3_server

import godwit as gw

if TYPE_CHECKING:
    from tests.support.counting_proxy import CountingProxy

_SIZES: Final = {"small": (1_000, 1_000), "large": (1_000_000, 400_000)}
_SKIPPED = 2  # epochs at the beginning
_LANES = 4


def measure(name: str, uri: str, proxy: CountingProxy, epochs: int) -> None:
    """Run a query for some epochs, and print its requests."""
    rows, keys = _SIZES[name]
    flow = gw.Flow(name)
    source = gw.sources.rate(rows, num_keys=keys, paced=False, max_rows_per_epoch=rows)
    totals = flow.source("rows", source).key_by("key").compute(n=gw.count())
    flow.sink("none", totals, gw.sinks.foreach_table(lambda _rows, _epoch: None))
    query = flow.start(
        checkpoint=uri.replace("/ck?", f"/{name}?"), trigger={"processingTime": "0.2 seconds"}
    )
    seen: dict[int, dict[str, Any]] = {}
    end_s = time.monotonic() + 400
    while len(seen) < epochs and time.monotonic() < end_s:
        time.sleep(0.2)
        seen |= {p["epoch"]: p["requests"] for p in query.recentProgress}
    query.stop()
    seen |= {p["epoch"]: p["requests"] for p in query.recentProgress}
    at_end = query._run.log.storage.requests_beside()  # noqa: SLF001  after the last report
    at_proxy = Counter(by_kind(proxy.taken()))
    totals_by_path = {
        path: sum((Counter(counts[path]) for counts in seen.values()), Counter[str]())
        for path in ("epoch", "beside")
    }
    usual = [seen[epoch]["epoch"] for epoch in sorted(seen)[_SKIPPED:]]
    kinds = sorted({kind for counts in usual for kind in counts})
    figures = [f"{kind} {median(c.get(kind, 0) for c in usual):g}" for kind in kinds]
    sums = [sum(counts.values()) for counts in usual]
    print(f"{name}: {len(usual)} epochs of {_LANES} lanes, of {rows} rows")
    print(f"  an epoch: {', '.join(figures)}; in all {median(sums):g}, at most {max(sums)}")
    print(f"  a lane: {median(sums) / _LANES:g}")
    ours = totals_by_path["epoch"] + totals_by_path["beside"] + Counter(at_end)
    print(f"  counted by the query: {dict(sorted(ours.items()))}")
    print(f"  counted by the proxy: {dict(sorted(at_proxy.items()))}")


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, epochs=12)
    session(_LANES + 1)
    with (
        temporary_directory() as directory,
        s3_server(directory) as uri,
        counted_store(uri) as (through, proxy),
    ):
        for name in _SIZES:
            measure(name, through, proxy, options.epochs)


if __name__ == "__main__":
    main()
