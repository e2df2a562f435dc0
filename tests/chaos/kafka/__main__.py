"""The command: live histories one after another, and say which ended wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.kafka.broker_losses import losses
from tests.chaos.kafka.histories import SOURCES, STEPS, TARGETS, draw_history
from tests.chaos.kafka.rounds import Driver, LocalDriver, live
from tests.chaos.kafka.spark_driver import SparkDriver
from tests.kafka_broker import running_broker
from tests.postgres_server import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka_broker import KafkaBroker


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds in all (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the first history (default 1)")
    parser.add_argument("--length", type=int, default=8, help="rounds of one history (default 8)")
    parser.add_argument("--keep", action="store_true", help="keep what good histories left, too")
    parser.add_argument("--spark", action="store_true", help="drivers on Spark")
    parser.add_argument("--sources", nargs="+", default=[*SOURCES], help="that are read")
    parser.add_argument("--targets", nargs="+", default=[*TARGETS], help="of the sinks")
    parser.add_argument(
        "--broker-losses", action="store_true", help="say what the broker loses by itself, and end"
    )
    args = parser.parse_args()
    if args.broker_losses:
        for line in losses():
            print(line, flush=True)
        return 0
    again = " --spark" if args.spark else ""
    base = Path(tempfile.mkdtemp(prefix="godwit-kafka-campaign-"))
    failed, lived, seed = 0, 0, args.seed
    deaths: Counter[str] = Counter()
    with running_broker() as broker, _postgres("postgres" in args.targets) as dsn:
        while lived < args.rounds:
            directory = base / str(seed)
            directory.mkdir()
            started, cuts_before = time.monotonic(), _cuts(broker)
            driver = _driver(seed, spark=args.spark)
            history = draw_history(
                seed,
                args.length,
                sources=tuple(args.sources),
                targets=tuple(args.targets),
                parts=driver.parts,
            )
            try:
                wrong = live(history, directory, broker, dsn, driver)
            finally:
                driver.kill()
            lived += args.length
            deaths.update(path.read_text() for path in directory.glob("died-*"))
            outputs = ", ".join(f"{kind} to {target}" for kind, target in history.outputs.items())
            verdict = "; ".join(wrong) or "as it should be"
            took = time.monotonic() - started
            cuts = _cuts(broker) - cuts_before
            about = f"history {seed} ({history.source}: {outputs}), {cuts} cuts"
            print(f"{about}: {verdict} ({took:.0f} s)", flush=True)
            if wrong:
                failed += 1
                print(
                    f"  again: --rounds {args.length} --length {args.length} --seed {seed}{again}"
                )
                print(f"  what it left: {directory}", flush=True)
            elif not args.keep:
                shutil.rmtree(directory)
            seed += 1
        cuts = _cuts(broker)
    died = ", ".join(f"{step} {deaths[step]}" for step in STEPS)
    print(f"{lived} rounds in {seed - args.seed} histories, {cuts} cuts; deaths: {died}")
    print(f"{failed} histories wrong")
    return 1 if failed else 0


def _cuts(broker: KafkaBroker) -> int:
    """Return how many connections were cut so far."""
    assert broker.server is not None, "the relay before the tests' own broker cuts them"
    return broker.server.relay.num_cuts


def _driver(seed: int, *, spark: bool) -> Driver:
    if not spark:
        return LocalDriver()
    return SparkDriver(executors=seed % 2 == 0, resident=seed % 4 in (1, 2))


@contextmanager
def _postgres(wanted: bool) -> Iterator[str | None]:
    if not wanted:
        yield None
        return
    with running_postgres() as server:
        yield server.dsn


if __name__ == "__main__":
    sys.exit(main())
