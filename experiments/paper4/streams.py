"""Workload of paper 4 §5: streams S1 and S2 and words of tweets, balanced over two hours.

S1 has Gaussian partition keys, S2 Zipf ones, of equal mean; both have 100 substreams and Poisson
arrivals with λ = 10,000 rows a second.  A statistic window is a minute.  The tweets are not public:
words are drawn with Zipf frequencies whose order changes slowly, or taken from ``tweets.parquet``
where ``--data`` has it.  State is one tenth of a window's rows.  Substreams are our key groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import GodwitError
from godwit.planning.balancing import plan_clb, plan_elb
from godwit.planning.baselines import hash_choice, plan_pkg, plan_universal_hashing
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.cli.reproduce.figure import FigureRun, Row
    from godwit.planning.arrays import FloatArray

WINDOWS, SUBSTREAMS, RATE, INSTANCES = 120, 100, 10_000.0, 10
SYSTEMS = ("UHLB", "PKG", "ELB", "CLB")
CLB_EVERY = 24
"""Windows from one balancing of CLB to the next: five in two hours, as in the paper."""
RANGE = 0.2
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
            f"{path} is no Parquet file with a column of text named 'text': {error}",
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
    largest: FloatArray  # load of the busiest instance over the mean

    @property
    def moved_in_a_balancing(self) -> float:
        """Mean share of the state that a balancing moves."""
        return float(self.moved[self.moved > 0].mean()) if (self.moved > 0).any() else 0.0

    @property
    def moved_in_a_window(self) -> float:
        """Mean share of the state that is moved in a window."""
        return float(self.moved.mean())


def balance(system: str, stream: Stream, run: FigureRun, *, instances: int = INSTANCES) -> Balanced:
    """Let a system assign substreams before every window, by the windows before it.

    Switched off, all of them are universal hashing.
    """
    histograms, rng = stream.histograms, run.rng(6)
    current = hash_choice(SUBSTREAMS, instances, run.seed)
    variance, moved, largest = [], [], []
    for window, rows in enumerate(histograms):
        after = current
        if window:
            known = histograms[max(0, window - CLB_EVERY) : window]
            used = "UHLB" if run.off else system
            after = _assign(used, known, current, rng, instances=instances, window=window)
        state = histograms[max(window - 1, 0)] / 10
        moved.append(float(state[after != current].sum() / state.sum()))
        current = after
        loads = np.bincount(current, weights=rows, minlength=instances)
        variance.append(float(loads.var()))
        largest.append(float(loads.max() / loads.mean()))
    return Balanced(variance=np.array(variance), moved=np.array(moved), largest=np.array(largest))


def _assign(
    system: str,
    known: FloatArray,
    current: np.ndarray,
    rng: np.random.Generator,
    *,
    instances: int,
    window: int,
) -> np.ndarray:
    """Plan by what is known of the windows so far."""
    mean = float(known[-1].sum()) / instances
    problem = Problem(
        executors=tuple(f"o{i}" for i in range(instances)),
        load=known[-1],
        state_bytes=known[-1] / 10,
        current=current,
        history=known,
        limits=Limits(load_low=(1 - RANGE) * mean, load_high=(1 + RANGE) * mean)
        if system == "ELB"
        else Limits(),
    )
    if system == "ELB":
        return plan_elb(problem, resize=False).assignment
    if system == "CLB":
        due = window % CLB_EVERY == 0 and len(known) > 1
        return plan_clb(problem).assignment if due else current
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
        for name, found in balanced.items()
        for window, (variance, moved) in enumerate(zip(found.variance, found.moved, strict=True))
    ]


def notes_of(streams: Sequence[Stream]) -> tuple[str, ...]:
    """Return the notes of streams that have one."""
    return tuple(stream.note for stream in streams if stream.note)
