"""The fast job of paper 3 (§7.7, Figure 16): four operators in a row, none to all of them fused.

``python -m benchmarks.fusion [--rows N] [--keys N] [--epochs N] [--rounds N] [--contained]
[--executors N]``

Four sums in a row over one key; every operator emits each key that an epoch touched, so the next
one gets nearly as many rows as there were.  After a warm-up the plans take turns, round by round,
in one session, each on a new checkpoint; figures are medians over the second half of the epochs,
and ratios are within one round.  (The paper's operators sum over windows of 1 to 20 minutes, and
send every tuple on at once; what is compared is the way between them.)

``--contained`` compares a sum by (area, user) and one behind it by area, of 100 users each: placed
by all their columns, with an exchange between; and both by area, in one component.

``--executors`` runs on a cluster of so many processes of this machine, so that an exchange crosses
their sockets; else all is in one process (``local[2]``).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.options import append_json, read_options, temporary_directory
from benchmarks.streaming.inputs import keyed_rows
from benchmarks.streaming.programs import epochs_of, session, stream

OPERATORS = ("minute", "five", "ten", "twenty")
FUSED = (0, 2, 3, 4)


def fast_job(spark: Any, source: Path, fused: int, work: Path) -> dict[str, float]:
    """Run all epochs with the first `fused` operators in one component.

    Returns median milliseconds of an epoch (Spark's ``triggerExecution``), of its stages, and of
    what its lanes did, the sum over lanes and levels.
    """
    import godwit as gw

    flow = gw.Flow("fast_job", num_key_groups=256)
    keyed = flow.source("rows", stream(spark, str(source))).key_by("key")
    made = keyed.compute(name=OPERATORS[0], n=gw.count(), v=gw.sum("v"))
    for name in OPERATORS[1:]:
        made = made.key_by("key").compute(name=name, n=gw.sum("n"), v=gw.sum("v"))
    flow.sink("out", made, gw.sinks.noop())
    components = {"row": OPERATORS[:fused]} if fused else {}
    return _played(flow, work / f"fused-{fused}", components)


def contained_job(spark: Any, source: Path, together: int, work: Path) -> dict[str, float]:
    """Run all epochs of sums by area and user, and by area, apart or together."""
    import godwit as gw

    frame = stream(spark, str(source)).selectExpr("substring(key, 1, 10) AS area", "key", "v")
    flow = gw.Flow("contained", num_key_groups=256)
    rows = flow.source("rows", frame)
    users = rows.key_by("area", "key", partition_by="area" if together else None).compute(
        name="users", n=gw.count(), v=gw.sum("v")
    )
    areas = users.key_by("area").compute(name="areas", n=gw.count(), v=gw.max("v"))
    flow.sink("out", areas, gw.sinks.noop())
    return _played(flow, work / "contained", {"both": ["users", "areas"]} if together else {})


def _played(flow: Any, checkpoint: Path, components: dict[str, Any]) -> dict[str, float]:
    """Run a flow over all that there is; see `fast_job`."""
    query = flow.start(checkpoint=checkpoint, components=components)
    query.processAllAvailable()
    epochs = epochs_of(query._driver.spark_query.recentProgress)  # noqa: SLF001  the same clock
    own = [p for p in query.recentProgress if p["numInputRows"]]
    query.stop()
    steady = slice(len(epochs) // 2, None)
    return {
        "epoch_ms": median(e["ms"] for e in epochs[steady]),
        "stages_ms": median(p["durationMs"]["stages"] for p in own[steady]),
        "lanes_ms": median(p["laneMs"]["lane"] for p in own[steady]),
    }


def in_turns(plans: tuple[int, ...], rounds: int) -> list[tuple[int, int]]:
    """List rounds and their plans, after a round 0 of the first one for the JVM to compile."""
    return [(0, plans[0]), *product(range(1, rounds + 1), plans)]


def open_session(executors: int, stack: ExitStack) -> Any:
    """Start a session in this process, or one with executors of their own until `stack` ends."""
    if not executors:
        return session()
    from godwit.cluster.spark.platform.local_cluster import LocalCluster

    settings = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    cluster = stack.enter_context(LocalCluster(executors, memory="2g"))
    return cluster.session("fusion", settings)


def main() -> None:
    given = read_options(
        __doc__,
        rows=1_000_000,
        keys=1_000_000,
        epochs=16,
        rounds=3,
        inputs=Path("artifacts/inputs"),
        json=Path("artifacts/fusion.jsonl"),
        contained=False,
        executors=0,
    )
    plans, job = (FUSED, fast_job) if not given.contained else ((0, 2), contained_job)
    source = keyed_rows(given.inputs, epochs=given.epochs, rows=given.rows, keys=given.keys)
    found: dict[int, list[dict[str, float]]] = {fused: [] for fused in plans}
    with ExitStack() as stack:
        spark = open_session(given.executors, stack)
        for turn, fused in in_turns(plans, given.rounds):
            with temporary_directory() as work:
                took = job(spark, source, fused, work)
            if not turn:
                continue
            found[fused].append(took)
            print(
                f"round {turn}  {fused} fused  {took['epoch_ms']:7.0f} ms an epoch, "
                f"{took['stages_ms']:7.0f} its stages, {took['lanes_ms']:7.0f} its lanes, load "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for fused in plans[1:]:
        for what in ("epoch_ms", "stages_ms"):
            ratios = [
                none[what] / some[what] for none, some in zip(found[0], found[fused], strict=True)
            ]
            print(
                f"none / {fused} fused, {what}: {median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
    append_json(given.json, {"fusion": vars(given) | {"found": found}})


if __name__ == "__main__":
    main()
