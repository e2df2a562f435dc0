"""``python -m lab.tests.histories [--histories N] [--seed S] [--only SEED] [--steady N] …``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from functools import partial

from lab.tests import histories
from lab.tests.histories.drawing import BASELINES, PLANNED_BY, draw
from lab.tests.histories.playing import play
from lab.tests.histories.steady import FIRST_S, count_moves

from godwit.model import events
from godwit.placement.preview import table

_QUIET = (events.EpochCommitted, events.KeyGroupsWarmed, events.WarmingStarted)


def _tell(seed: int, planners: tuple[str, ...]) -> int:
    """Tell one history whole."""
    played = play(draw(seed, planners))
    for event in played.simulation.history.events:
        if not isinstance(event, _QUIET):
            print(f"{event.at_s:7.1f}  {event.describe()}")
    print()
    for record in played.simulation.history.epochs[::5]:
        print(
            f"{record.ended_s:7.1f}  {record.took_s:5.2f} s, {record.executors} executors, "
            f"load distance {record.load_distance:6.1%}, {record.lag_rows} rows behind"
        )
    drawn = played.drawn
    print(f"\nseed {seed}: {drawn.planner}, {drawn.trouble} at {drawn.at_s:.1f} s")
    print("\n".join(played.faults) or "every promise was kept")
    return bool(played.faults)


def _judged(planners: tuple[str, ...], seed: int) -> tuple[str, list[str], bool, float]:
    """Play one history; return its planner, faults, whether its balance was judged, CPU time."""
    began_s = time.process_time()
    played = play(draw(seed, planners))
    drawn = played.drawn
    said = [f"seed {seed} ({drawn.planner}, {drawn.trouble}): {f}" for f in played.faults]
    return drawn.planner, said, played.balance, time.process_time() - began_s


def _steady(streams: int, first: int, minutes: float, processes: int) -> int:
    """Play steady streams, and tell in how many key groups moved."""
    hours = (60 * minutes - FIRST_S) / 3600
    at_rest, moves, key_groups, cpu_s = 0, 0, 0.0, 0.0
    with multiprocessing.Pool(processes) as pool:
        played = pool.imap(partial(count_moves, minutes), range(first, first + streams))
        for drawn, count, took_s in played:
            at_rest += not count
            moves += count
            key_groups += drawn.scenario.components[0].key_groups * hours
            cpu_s += took_s
            if count:
                print(f"{count:4d} moves: {drawn.describe()}", flush=True)
    print(
        f"{at_rest} of {streams} streams ({at_rest / streams:.1%}) moved nothing after the first "
        f"{FIRST_S / 60:g} minutes; {moves / key_groups:.3%} of key groups moved an hour; "
        f"{cpu_s:.0f} s of CPU time"
    )
    return int(at_rest < 0.95 * streams or moves > 0.01 * key_groups)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=histories.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="SEED", help="tell this history whole")
    parser.add_argument("--planner", choices=[*PLANNED_BY, *BASELINES], help="only this planner")
    parser.add_argument("--baselines", action="store_true", help="the baselines, to compare")
    parser.add_argument("--steady", type=int, metavar="N", help="play N steady streams instead")
    parser.add_argument("--minutes", type=float, default=65.0, help="of each steady stream")
    given = parser.parse_args()
    if given.steady:
        return _steady(given.steady, given.seed, given.minutes, given.processes)
    planners = BASELINES if given.baselines else PLANNED_BY
    if given.planner:
        planners = (given.planner,)
    if given.only is not None:
        return _tell(given.only, planners)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    cpu_s, seeds = 0.0, range(given.seed, given.seed + given.histories)
    with multiprocessing.Pool(given.processes) as pool:
        for planner, said, balance, took_s in pool.imap(partial(_judged, planners), seeds, 16):
            counts[planner].update(histories=1, broken=bool(said), balance=balance)
            cpu_s += took_s
            for line in said:
                print(line, flush=True)
    rows = [
        (name, str(c["histories"]), str(c["balance"]), str(c["broken"]))
        for name, c in sorted(counts.items())
    ]
    print(table(("planner", "histories", "balance judged", "with a broken promise"), rows))
    print(f"{cpu_s:.0f} s of CPU time")
    return any(c["broken"] for c in counts.values())


if __name__ == "__main__":
    sys.exit(main())
