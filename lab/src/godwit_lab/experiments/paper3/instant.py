"""Paper 3, figures 10 to 12: pauses and costs of instant migration, and of split and combine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from godwit.migration import Strategy
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    rank_correlation,
    sweep,
)
from godwit_lab.experiments.paper3.checkout import use_benchmarks


@figure(
    title="Size of state against the latency of a migration",
    claim="Instant migration has negligible latency; that of disruptive migration grows with the "
    "size of the state.",
    workload="All key groups of one of three executors migrate while a window is open; the real "
    "coordinator, lanes and stores in one process, without Spark. The pause is what the three "
    "epochs after the migration take longer than others.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="mib", y="pause_ms", by="strategy", x_label="state that migrates (MiB)",
              y_label="pause (ms)", log_x=True, log_y=True),
    ),
    mechanism="instant migration",
    reason="An instant migration takes some tens of milliseconds whatever the state: the slot that "
    "takes the rows from then on gets a table.",
)  # fmt: skip
def figure10(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms

    strategies = {
        "instant": Strategy.DISRUPTIVE if run.off else Strategy.INSTANT,
        "disruptive": Strategy.DISRUPTIVE,
    }
    keys = run.pick((100_000, 400_000, 2_000_000), (10_000, 100_000, 1_000_000, 5_000_000))
    found: dict[str, list[float]] = {name: [] for name in strategies}

    def measure(keys: int, strategy: str) -> Row:
        with tempfile.TemporaryDirectory() as directory:
            pause, size = pause_ms(Path(directory), strategies[strategy], keys, 2_000)
        found[strategy].append(pause)
        return {"mib": size / 2**20, "pause_ms": max(pause, 0.1)}

    rows = sweep(run, measure, keys=keys, strategy=strategies)
    return FigureResult(
        rows=rows,
        checks=(
            at_least("disruptive migration pauses longer with more state (rank correlation)",
                     rank_correlation(keys, found["disruptive"]), 0.9),
            at_most("instant migration is negligible with the largest state: ratio to disruptive",
                    found["instant"][-1] / max(found["disruptive"][-1], 1e-9), 0.2,
                    decisive=True),
        ),
        notes=("pauses are CPU times on the machine at hand, medians of three streams",),
    )  # fmt: skip


@figure(
    title="Overhead of split and combine",
    claim="A component is split without a pause. Combining it pauses as long as a disruptive "
    "migration of its state, or not at all but until the longest window has ended.",
    workload="Windows of 20 and 30 seconds that are open; they are split, all key groups of one of "
    "three executors migrate instantly, and they are combined, while epochs of a second go on. The "
    "real coordinator, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="keys", y="pause_ms", by="action", x_label="keys of the open windows",
              y_label="longest pause of an epoch (ms)", log_x=True, log_y=True),
    ),
    mechanism="changing layouts without moving state at once",
    reason="Godwit combines in a third way: state goes to its new place beside the epochs, which "
    "takes some epochs and no pause.",
)  # fmt: skip
def figure11(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms
    from benchmarks.windows.regrouping import pauses_ms

    rows: list[Row] = []
    pause: dict[tuple[str, int], float] = {}
    epochs: list[int] = []
    counts = run.pick((100_000, 1_000_000), (10_000, 100_000, 1_000_000))
    for keys in counts:
        run.progress(f"{keys:,} keys")
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            disruptive, _ = pause_ms(place / "moved", Strategy.DISRUPTIVE, keys, 2_000)
            found = {"disruptive migration": (disruptive, 1)}
            found |= pauses_ms(place / "regrouped", keys)
        for name, (ms, took) in found.items():
            # Switched off, a change of layout is a disruptive migration of the state.
            pause[name, keys] = disruptive if run.off else ms
            epochs.append(took)
            rows.append({"keys": keys, "action": name, "pause_ms": max(pause[name, keys], 0.1)})
    most = counts[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("splitting pauses a fraction of a disruptive migration: ratio with most keys",
                    pause["split", most] / pause["disruptive migration", most], 0.3, decisive=True),
            at_most("combining does so, too: ratio with most keys",
                    pause["combine", most] / pause["disruptive migration", most], 0.3,
                    decisive=True),
            at_most("combining ends within the longest window, of thirty seconds: epochs",
                    float(max(epochs)), 30.0),
        ),
        notes=("pauses are CPU times on the machine at hand",),
    )  # fmt: skip


_STRATEGIES = {"instant": Strategy.INSTANT, "disruptive": Strategy.DISRUPTIVE}


@figure(
    title="Overhead of instant and disruptive migration by share of the state",
    claim="Both cost about the same in all, the more the larger the share of the state that "
    "migrates: what instant migration does not move, it consolidates later.",
    workload="Two windows in a row with a row of every key; while the first is open, 0 to 100 % of "
    "the key groups of one of three executors migrate. CPU time until both windows have come out; "
    "the real coordinator, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="share", y="overhead", by="strategy", x_label="key groups that migrate (%)",
              y_label="additional CPU time (%)"),
    ),
)  # fmt: skip
def figure12(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.regrouping import spent_ms

    keys, rounds = run.pick((200_000, 7), (300_000, 9))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    took: dict[tuple[str, float], list[float]] = {}
    for turn in range(rounds):
        for name, strategy in _STRATEGIES.items():
            for share in shares:
                run.progress(f"round {turn + 1} of {rounds}, {name}, {share:.0%}")
                with tempfile.TemporaryDirectory() as directory:
                    spent = spent_ms(Path(directory), keys, share, strategy)
                took.setdefault((name, share), []).append(spent)
    nothing = median(ms for (_, share), times in took.items() for ms in times if not share)
    over = {key: 100 * (median(times) / nothing - 1) for key, times in took.items()}
    rows: list[Row] = [
        {"strategy": name, "share": 100 * share, "overhead": percent}
        for (name, share), percent in over.items()
    ]
    apart = [abs(max(over["instant", s], 0) - max(over["disruptive", s], 0)) for s in shares]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("the overhead of both is similar: largest difference", max(apart), 15.0,
                    unit="percentage points", decisive=True),
            at_most("instant migration of all of it costs little in all",
                    over["instant", 1.0], 30.0, unit="%"),
        ),
        notes=(
            (
                "CPU times are medians of few rounds on the machine at hand; an executor without "
                "key groups costs less than one with few, which counts as no overhead"
            ),
        ),
    )  # fmt: skip
