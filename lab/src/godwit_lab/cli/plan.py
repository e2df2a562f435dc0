"""`godwit plan`: run planners on a problem, without moving anything.

One sub-command a planner, generated from the registry, so that a new planner appears here by
itself; beside them `compare`, `precompute` (projected costs), `schema` and `example`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.model.text import human_bytes
from godwit.ops.arguments import save_picture
from godwit.placement.preview import PlanPreview, preview, table
from godwit.placement.problem import Problem
from godwit.placement.registry import PLANNERS, Planner, planner
from godwit.placement.solution import Solution
from godwit_lab.cli.plan_json import EXAMPLES, plain, problem_from_json, schema_of, solution_to_dict
from godwit_lab.planners.intervals.pmc import approximate_projected_cost, projected_cost, serially
from godwit_lab.planners.intervals.projected import ProjectedCost, Transitions, estimate_transitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.planners.intervals.pmc import BlockMap

_PLOTS = "godwit_lab.cli.plots"
_EPILOG = """\
exit status:
  0    a plan within all limits
  2    the problem is wrong, or not for this planner; the message says what and where
  3    no plan keeps all limits; the best one found is shown

examples:
  godwit plan example assignment > problem.json
  godwit plan compare problem.json
  godwit plan ssm problem.json
  godwit plan ssm --help
"""


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit plan`, and its function as ``run``."""
    parser.description = (
        "Ask a planner what it would do with a problem in a file; nothing is carried "
        "out.\n\n" + _methods()
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    # The methods stand in the description, with more than a line each, and not twice.
    methods = parser.add_subparsers(
        dest="method", required=True, metavar="METHOD", help="one of the above, or:"
    )
    for entry in PLANNERS.values():
        _add_method(methods, entry)
    compare = methods.add_parser("compare", help="every applicable planner side by side")
    compare.set_defaults(run=_run_compare)
    _add_arguments(compare, shown="solutions")
    _add_precompute(methods)
    schema = methods.add_parser("schema", help="print the JSON Schema of a kind of problem")
    kinds = (*EXAMPLES, "solution")
    schema.add_argument("what", choices=kinds, metavar="KIND", help=", ".join(kinds))
    schema.set_defaults(run=lambda args: _print_json(schema_of(args.what)))
    example = methods.add_parser("example", help="print an example of a kind of problem")
    example.add_argument("what", choices=tuple(EXAMPLES), metavar="KIND", help=", ".join(EXAMPLES))
    example.set_defaults(run=lambda args: _print_json(EXAMPLES[args.what]))


def _print_json(values: Any) -> int:
    """Print values as JSON; return exit status 0."""
    print(json.dumps(values, indent=2))
    return 0


def _methods() -> str:
    """Return a table of all planners as text."""
    rows = [(p.name, p.kind, p.paper, p.minimises) for p in PLANNERS.values()]
    return table(("method", "kind", "paper", "minimises"), rows, left=4)


def _add_method(methods: Any, entry: Planner) -> None:
    """Add the subcommand of a planner; `methods`: argparse's subcommands."""
    parser = methods.add_parser(
        entry.name,
        description=(
            f"{entry.name} ({entry.kind}; paper {entry.paper})\n\n"
            f"minimises:    {entry.minimises}\n"
            f"constraints:  {entry.constraints}\n"
            f"cost:         {entry.cost}\n"
            f"options:      {_options(entry)}"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser, shown="solution")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an option; VALUE is JSON (overrides `options` in the problem)",
    )
    if entry.name == "mtm":
        parser.add_argument(
            "--projected", type=Path, metavar="FILE", help="table made by `godwit plan precompute`"
        )
    parser.set_defaults(run=_solve_with_planner)


def _options(entry: Planner) -> str:
    """Return a planner's options, with their defaults, as text."""
    try:
        defaults = {**entry.defaults(), **entry.for_streams}
    except InvalidProblemError as error:
        return str(error)
    return ", ".join(f"{name}={default!r}" for name, default in defaults.items()) or "none"


def _add_arguments(parser: argparse.ArgumentParser, *, shown: str) -> None:
    """Add the arguments that the commands for one planner and for a comparison share.

    `shown`: what ``--plot`` draws.
    """
    parser.add_argument("problem", type=Path, metavar="PROBLEM.json")
    parser.add_argument("--json", action="store_true", help=f"print the {shown} as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it (.png, .svg, .pdf)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=125e6,
        metavar="BYTES_PER_S",
        help="of one executor's link, for the predicted pause (default: one gigabit)",
    )


def _add_precompute(methods: Any) -> None:
    """Add the subcommand that computes projected migration costs."""
    parser = methods.add_parser(
        "precompute",
        help="projected migration costs for mtm (paper 1 §5.2)",
        description=(
            "Compute what the future costs from each partitioning. Exact where all partitionings "
            "are at most --at-most; with --sample, over a sample (upper bounds)."
        ),
    )
    parser.add_argument("problem", type=Path, metavar="PROBLEM.json")
    parser.add_argument(
        "--transitions",
        type=Path,
        required=True,
        metavar="FILE",
        help='JSON: {"sizes": [...], "probability": [[...]]} or {"log": [...]}',
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--gamma", type=float, default=0.8, help="discount factor (default 0.8)")
    parser.add_argument("--at-most", type=int, default=20_000, metavar="N")
    parser.add_argument("--sample", type=int, metavar="N", help="sample N partitionings")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--spark", action="store_true", help="compute on Spark")
    parser.set_defaults(run=_run_precompute)


def _solve_with_planner(args: argparse.Namespace) -> int:
    """Solve the problem in a file by the planner in `args`; return the exit status."""
    problem, options = _read_problem(args.problem)
    entry = planner(args.method)
    chosen = {**entry.for_streams, **options.get(args.method, {}), **_parse_settings(args.set)}
    if getattr(args, "projected", None):
        chosen["projected"] = ProjectedCost.from_bytes(_read_file(args.projected))
    solution = entry(problem, **chosen)
    shown = (
        preview(solution, bandwidth_bytes_per_s=args.bandwidth)
        if isinstance(solution, Solution)
        else None
    )
    if args.json:
        _print_json(solution_to_dict(solution))
    elif shown:
        print(shown.to_text())
    else:
        print("\n".join(f"{name}: {value}" for name, value in plain(solution).items()))
    if args.plot:
        if shown is None:
            raise InvalidProblemError(
                f"--plot does not draw the answers of {args.method}.",
                remedy="Use --json.",
                field="plot",
                value=str(args.plot),
            )
        save_picture(lambda plots: plots.preview_figure(shown), args.plot, module=_PLOTS)
    return 3 if str(getattr(solution, "status", "")) == "infeasible" else 0


def _run_compare(args: argparse.Namespace) -> int:
    """Solve a problem by several planners, and print a comparison; return the exit status."""
    problem, options = _read_problem(args.problem)
    if not isinstance(problem, Problem):
        raise InvalidProblemError(
            "compare takes problems of kind assignment.",
            remedy="Ask one method.",
            field="kind",
            value=type(problem).__name__,
        )
    solutions, refused = [], []
    for entry in PLANNERS.values():
        if entry.asks is not Problem:
            continue
        reason = entry.refusal(problem)
        if not reason:
            try:
                chosen = {**entry.for_streams, **options.get(entry.name, {})}
                solutions.append(entry(problem, **chosen))
            except InvalidProblemError as error:
                reason = error.message
        if reason:
            refused.append((entry.name, reason))
    shown = [preview(s, bandwidth_bytes_per_s=args.bandwidth) for s in solutions]
    if args.json:
        refusals = [{"method": name, "reason": reason} for name, reason in refused]
        values = {"solutions": [solution_to_dict(s) for s in solutions], "refused": refusals}
        _print_json(values)
    else:
        print(_comparison(solutions, shown))
        for name, reason in refused:
            print(f"not {name}: {reason}")
    if args.plot:
        single = shown[0] if len(shown) == 1 else None
        save_picture(
            lambda plots: plots.preview_figure(single) if single else plots.compare_figure(shown),
            args.plot,
            module=_PLOTS,
        )
    return 0


def _comparison(solutions: Sequence[Solution], shown: Sequence[PlanPreview]) -> str:
    """Return a table of the solutions of several planners as text; `shown`: their previews."""
    return table(
        ("method", "status", "load distance", "variance", "moves", "bytes", "collocated", "pause",
         "time"),
        [
            (
                s.method,
                s.status.value,
                f"{s.load_distance:.4g}",
                f"{s.variance:.4g}",
                str(s.num_moves),
                human_bytes(s.moved_bytes),
                f"{s.collocation_factor:.1%}",
                f"{p.pause_s['live']:.3g} s",
                f"{s.elapsed_s * 1e3:.3g} ms",
            )
            for s, p in zip(solutions, shown, strict=True)
        ],
    )  # fmt: skip


def _run_precompute(args: argparse.Namespace) -> int:
    """Compute projected migration costs, and write them to a file; return the exit status."""
    problem, _ = _read_problem(args.problem)
    transitions = _transitions(args.transitions)
    block_map: BlockMap = serially
    if args.spark:
        from pyspark.sql import SparkSession  # noqa: PLC0415  Spark is slow to import

        from godwit_lab.planners.intervals.on_spark import SparkBlockMap  # noqa: PLC0415  for the same reason

        session = SparkSession.builder.appName("godwit plan precompute").getOrCreate()
        block_map = SparkBlockMap(session.sparkContext)
    common: dict[str, Any] = {"gamma": args.gamma, "block_map": block_map}
    if args.sample is None:
        costs = projected_cost(problem, transitions, max_partitionings=args.at_most, **common)
    else:
        rng = np.random.default_rng(args.seed)
        costs = approximate_projected_cost(
            problem, transitions, num_partitionings=args.sample, rng=rng, **common
        )
    args.output.write_bytes(costs.to_bytes())
    kind = "exact" if costs.exact else "sampled (upper bounds)"
    error, on_average = costs.measured_error, costs.measured_mean_error
    print(
        f"{kind}: {costs.num_partitionings} of {costs.partitionings_in_all} "
        f"partitionings, {costs.sweeps} sweeps, {costs.elapsed_s:.3g} s"
        + ("" if error is None else f", greatest relative error {error:.3g}, mean {on_average:.3g}")
    )
    return 0


def _transitions(path: Path) -> Transitions:
    """Return transition probabilities from a file, or estimated from a log of sizes."""
    values = _parse_json(_read_file(path).decode("utf-8", "replace"), str(path))
    if isinstance(values, dict) and set(values) == {"log"}:
        return estimate_transitions(values["log"])
    if isinstance(values, dict) and set(values) == {"sizes", "probability"}:
        return Transitions(sizes=values["sizes"], probability=values["probability"])
    raise InvalidProblemError(
        f"transitions in {path} are wrong.",
        remedy='Give {"sizes": [...], "probability": [[...]]} or {"log": [...]}.',
        field="transitions",
        value=values,
    )


def _parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Return name → value of the ``NAME=VALUE`` pairs of ``--set``; raise for other texts."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidProblemError(
                f"--set {pair} is wrong.", remedy="Write NAME=VALUE.", field="set", value=pair
            )
        settings[name] = _parse_json(value, f"--set {name}")
    return settings


def _parse_json(text: str, where: str) -> Any:
    """Return the values of a JSON text; errors name `where` the text is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise InvalidProblemError(
            f"{where} is not JSON: {error}.", remedy="Correct it.", field=where, value=text[:40]
        ) from None


def _read_problem(path: Path) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the problem in a file, and planning method → its options."""
    return problem_from_json(_read_file(path).decode("utf-8", "replace"))


def _read_file(path: Path) -> bytes:
    """Return the content of a file, or raise the error that it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidProblemError(
            f"{path} cannot be read: {error.strerror}.",
            remedy="Give the path of a file that exists.",
            field="path",
            value=str(path),
        ) from None
