"""`godwit sim`: a scenario on a simulated cluster, left alone and controlled, side by side."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.control.scaling import utilisation
from godwit.control.settings import BY_PLAN, STATIC, Control
from godwit.model import events, plugins
from godwit.ops.arguments import save_picture
from godwit.placement.preview import table
from godwit.placement.problem import Problem
from godwit.placement.registry import PLANNERS
from godwit_lab.simulator import Simulation, calibration, controlled_by
from godwit_lab.simulator.scenario import SCENARIOS, Size, scenario

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit_lab.simulator import History

_DECISIONS = (
    events.RebalancingStarted,
    events.ScaledOut,
    events.ScaledIn,
    events.ScalingRefused,
    events.DecisionJudged,
    events.RebalancingJudged,
    events.ExecutorsReturned,
    events.PlannerFailed,
    events.PlanAbandoned,
    events.ExecutorLost,
)
_EPILOG = """\
what the figures mean:
  rows/s          source rows that were processed, per second of the run
  epoch           from its start to its commit; median, and 99th percentile
  delay           from a row's arrival to the commit of its epoch, exact; mean, and 99th percentile
  load distance   largest distance of an executor's load from the mean, over time
  moved           state read to warm copies, and by lanes that loaded it
  rows behind     what the source still has at the end

examples:
  godwit sim skew                                keys are shuffled twice a minute
  godwit sim surge --executors 4 --events        ... and every decision, with its reason
  godwit sim straggler --planner flux
  godwit sim pairs --planner albic --key-groups 128
  godwit sim skew --executors 60 --cores 4 --key-groups 8192 --keys 100000 --figure skew.png

The coordinator, the planners and the controller are the real ones; executors, rows and time are
numbers. Equal arguments give equal results. Exit status 0; 2 if an argument makes no sense.
"""


def add_sim_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit sim`, and its function as ``run``."""
    parser.description = (
        "Run a scenario on a simulated cluster twice: left alone, and balanced and "
        "scaled by the controller. The same rows arrive in both."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    size = Size()
    firsts = {name: (make.__doc__ or "").splitlines()[0] for name, make in SCENARIOS.items()}
    stories = "; ".join(
        f"{name}: {re.sub('^Return the scenario (in which|of) ', '', first).rstrip('.')}"
        for name, first in firsts.items()
    )
    parser.add_argument("scenario", choices=[*SCENARIOS], metavar="SCENARIO", help=stories)
    for name, what in (
        ("executors", "executors there are at first"),
        ("cores", "cores of each"),
        ("key_groups", "key groups of every component"),
        ("keys", "keys"),
        ("zipf", "exponent of their frequencies"),
        ("load", "share of the time that cores are busy at the usual rate"),
        ("duration_s", "seconds of virtual time"),
    ):
        default = getattr(size, name)
        parser.add_argument(
            "--" + name.removesuffix("_s").replace("_", "-"),
            dest=name,
            type=type(default),
            default=default,
            help=f"{what} (default: {default})",
        )
    planners = [p.name for p in PLANNERS.values() if p.asks is Problem]
    parser.add_argument("--planner", choices=planners, default="milp", metavar="PLANNER",
                        help=f"one of {', '.join(planners)} (default: milp)")  # fmt: skip
    elasticities = (BY_PLAN, STATIC, *plugins.names("policies"))
    parser.add_argument("--elasticity", choices=elasticities, default=BY_PLAN,
                        help="how work and cores are matched")  # fmt: skip
    parser.add_argument("--no-scaling", action="store_true", help="keep the number of executors")
    parser.add_argument("--period", type=float, default=5.0, help="seconds between decisions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--events", action="store_true", help="tell every decision")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw both runs into this file")
    parser.set_defaults(run=_run_sim)


def _run_sim(args: argparse.Namespace) -> int:
    """Run the simulations of `godwit sim`, and print or draw them; return the exit status."""
    size = Size(
        executors=args.executors,
        cores=args.cores,
        key_groups=args.key_groups,
        keys=args.keys,
        zipf=args.zipf,
        load=args.load,
        duration_s=args.duration_s,
    )
    played = scenario(args.scenario, size)
    settings = Control(
        planner=args.planner,
        elasticity=args.elasticity,
        period=f"{args.period} seconds",
        scaling=None if args.no_scaling or played.cluster.pool.most is None else utilisation(),
    )
    runs: Mapping[str, History] = {
        "left alone": Simulation(played, seed=args.seed).run(),
        "controlled": Simulation(played, seed=args.seed, control=controlled_by(settings)).run(),
    }
    if args.json:
        print(json.dumps({name: history.summary() for name, history in runs.items()}, indent=2))
    else:
        _print_histories(runs, tell=args.events)
    if args.figure is not None:
        title = f"{args.scenario}, {settings.planner_name}"
        save_picture(
            lambda plots: plots.histories_figure(runs, title=title),
            args.figure,
            "godwit_lab.cli.plots",
            "--figure",
        )
    return 0


def _print_histories(runs: Mapping[str, History], *, tell: bool) -> None:
    """Print a table of the runs, and with `tell` their events."""
    figures = [history.summary() for history in runs.values()]
    rows = [
        ("rows/s", *(f"{f['rows_per_s']:,.0f}" for f in figures)),
        ("epoch, median (ms)", *(f"{f['epoch_ms']:,.0f}" for f in figures)),
        ("epoch, 99th percentile (ms)", *(f"{f['epoch_p99_ms']:,.0f}" for f in figures)),
        ("delay, mean (s)", *(f"{f['delay_mean_s']:.2f}" for f in figures)),
        ("delay, 99th percentile (s)", *(f"{f['delay_p99_s']:.2f}" for f in figures)),
        ("load distance", *(f"{f['load_distance']:.1%}" for f in figures)),
        ("executors", *(f"{f['executors']:.1f}" for f in figures)),
        ("key groups moved", *(f"{f['moves']:.0f}" for f in figures)),
        ("state moved (MB)", *(f"{f['moved_mb']:.1f}" for f in figures)),
        ("rows behind", *(f"{f['lag_rows']:,.0f}" for f in figures)),
    ]
    print(table(("", *runs), rows))
    decisions = runs["controlled"].of_kind(*_DECISIONS)
    print()
    if tell:
        for event in decisions:
            print(f"{event.at_s:7.1f} s  {event.describe()}")
    else:
        print(f"{len(decisions)} decisions and losses; --events tells them.")
    if not decisions:
        print(
            "The controller found no move or step that pays for itself. Raise --load or --zipf, or "
            "give it more time with --duration."
        )
    off = calibration()["median_error_held_out"]
    print(f"Costs are fitted to real epochs; half of those not fitted to are within {off:.0%}.")
