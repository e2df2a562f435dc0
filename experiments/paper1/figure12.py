"""Paper 1, figure 12: load balancing threshold τ against migration cost, five strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper1.migrations import (
    APPLICATIONS,
    MTM,
    NOTE,
    RING,
    SSM,
    TAUS,
    migrations,
    strategies,
)
from godwit.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    RunsOn,
    at_least,
    at_most,
    rank_correlation,
)

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    shares: dict[tuple[str, float], dict[str, float]] = {}
    for application in APPLICATIONS:
        for tau in TAUS:
            run.progress(f"{application}, τ = {tau}")
            of = migrations(run, application, count=run.pick(40, 100), tau=tau)
            shares[application, tau] = strategies(run, of)
    every = shares.values()
    gaps = [shares["word count", tau][SSM] - shares["word count", tau][MTM] for tau in TAUS]
    falls = {
        application: shares[application, TAUS[0]][SSM] - shares[application, TAUS[-1]][SSM]
        for application in APPLICATIONS
    }
    return FigureResult(
        rows=[
            {"application": application, "tau": tau, "strategy": name, "moved_percent": 100 * share}
            for (application, tau), found in shares.items()
            for name, share in found.items()
        ],
        checks=(
            at_most("SSM moves less than consistent hashing at the default τ: larger ratio",
                    max(shares[name, 1.2][SSM] / shares[name, 1.2][RING]
                        for name in APPLICATIONS), 0.999, decisive=True),
            at_most("and at every τ: largest ratio", max(s[SSM] / s[RING] for s in every), 0.999),
            at_most("MTM moves less than SSM at the default τ: larger ratio",
                    max(shares[name, 1.2][MTM] / shares[name, 1.2][SSM]
                        for name in APPLICATIONS), 0.999, decisive=True),
            at_most("and at every τ: largest ratio", max(s[MTM] / s[SSM] for s in every), 1.0),
            at_least("Storm moves more than twice what SSM moves: smallest ratio",
                     min(s["Storm"] / s[SSM] for s in every), 2.0),
            at_most("SSM moves less as τ grows (rank correlation, word count)",
                    rank_correlation(TAUS, [shares["word count", t][SSM] for t in TAUS]), -0.5),
            at_least("the gap between SSM and MTM grows with τ (rank correlation, word count)",
                     rank_correlation(TAUS, gaps), 0.5),
            at_least("word count gains more from τ than frequent patterns: ratio of the gains",
                     falls["word count"] / max(falls["frequent patterns"], 1e-9), 1.0),
        ),
        notes=(NOTE,),
    )  # fmt: skip


FIGURE = Figure(
    title="Load balancing threshold τ against migration cost",
    claim="Storm's default moves more than twice as much state as the proposed strategies, "
    "consistent hashing moves more at every τ, and the gap grows with τ; MTM-aware migration moves "
    "less than single-step.",
    workload="100 migrations (40 if quick) between 8 and 16 executors, 64 key groups; hourly "
    "rates, words (in bursts) and patterns are generated, as the paper's tweets are not public.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=tuple(
        Chart(
            x="tau",
            y="moved_percent",
            by="strategy",
            only=("application", application),
            title=application,
            x_label="load balancing threshold τ",
            y_label="state moved by a migration (%)",
        )
        for application in APPLICATIONS
    ),
    mechanism="the choice of what moves (SSM and MTM)",
    reason="Where τ is 0.2 the balance itself forces SSM to move, the more so after bursts; "
    "consistent hashing does not keep it. MTM's projected costs are those of usual loads and of a "
    "sample of partitionings, too small in a quick run.",
)
