"""Least squares on the runs that are for it; simulated epochs beside real ones on the others."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

import godwit_lab.simulator
from godwit.placement.preview import table
from godwit_lab.experiments.calibration.runs import RUNS, RealRun
from godwit_lab.simulator import (
    CostModel,
    Keys,
    KeySpread,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["draw", "fit", "nonnegative_least_squares"]

_KEY_BYTES = 24
_QUANTILE = 0.25
"""Of the epochs of a run: what disturbs a machine only ever makes epochs longer."""
_NAMES = ("fixed_ms", "source_row_ms", "row_ms", "key_ms", "key_group_ms")


def fit(real: Path, *, drawing: Path) -> str:
    """Fit, simulate, write ``calibration.json`` into the package and a figure; return a table."""
    measured: dict[str, Any] = json.loads(real.read_text("utf-8"))
    epoch_ms = np.array(
        [
            np.quantile(next(m["epoch_ms"] for m in measured["runs"] if m["run"] == at), _QUANTILE)
            for at in range(len(RUNS))
        ]
    )
    parameters = _fitted(epoch_ms) | _fitted_warming(measured["warmings"])
    costs = CostModel(**parameters)
    simulated = np.array([_simulated_ms(run, costs) for run in RUNS])
    off = simulated / epoch_ms - 1
    fits = np.array([run.fits for run in RUNS])
    rows = [
        {
            "run": run.name,
            "fitted": run.fits,
            "measured_ms": round(float(epoch_ms[at]), 1),
            "simulated_ms": round(float(simulated[at]), 1),
        }
        for at, run in enumerate(RUNS)
    ]
    kept = {
        "parameters": parameters,
        "provenance": {
            "how": "python -m godwit_lab.experiments.calibration measure, then fit: first "
            "quartiles of the epochs of short streams on Spark local[2] (a process operator that "
            "counts, two executors of one core), non-negative least squares on relative errors",
            "taken": measured["taken"],
            "machine": measured["machine"],
            "spark": measured["spark"],
            "epochs_a_run": len(measured["runs"][0]["epoch_ms"]),
        },
        "median_error_fitted": round(float(np.median(np.abs(off[fits]))), 3),
        "median_error_held_out": round(float(np.median(np.abs(off[~fits]))), 3),
        "greatest_error_held_out": round(float(np.abs(off[~fits]).max()), 3),
        "runs": rows,
    }
    target = Path(godwit_lab.simulator.__file__).with_name("calibration.json")
    target.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    draw(kept, drawing)
    body = [
        (
            run.name,
            "fitted" if run.fits else "held out",
            f"{epoch_ms[at]:.0f}",
            f"{simulated[at]:.0f}",
            f"{100 * off[at]:+.0f} %",
        )
        for at, run in enumerate(RUNS)
    ]
    head = ("an epoch of", "", "measured ms", "simulated ms", "error")
    return table(head, body, left=2) + "\n" + json.dumps(parameters, indent=1)


def _fitted(epoch_ms: np.ndarray) -> dict[str, float]:
    training = [at for at, run in enumerate(RUNS) if run.fits]
    wanted = epoch_ms[training]
    found = np.array([100.0, 1e-3, 1e-3, 1e-2, 0.1])
    for _ in range(10):  # which lane is the slowest depends on the parameters
        features = np.array([_features(RUNS[at], found) for at in training])
        found = nonnegative_least_squares(features / wanted[:, None], np.ones(len(training)))
    return {name: float(f"{value:.4g}") for name, value in zip(_NAMES, found, strict=True)}


def _features(run: RealRun, parameters: np.ndarray) -> np.ndarray:
    spread = KeySpread(
        keys=Keys(number=run.keys, zipf=run.zipf), key_groups=run.key_groups, seed=(0,)
    ).phase(0)
    rows = run.rows * spread.share
    keys, touched = spread.keys_among(rows), 1 - np.exp(-rows)
    owner = run.assignment().executor_of
    lanes = np.array([[x[owner == at].sum() for x in (rows, keys, touched)] for at in (0, 1)])
    slowest = lanes[int((lanes @ parameters[2:]).argmax())]
    return np.array([1.0, run.rows / 2, *slowest])


def _fitted_warming(warmings: list[dict[str, float]]) -> dict[str, float]:
    size = np.array([w["state_bytes"] for w in warmings])
    took = np.array([w["duration_ms"] for w in warmings])
    features = np.column_stack((np.ones(len(size)), size))
    fixed, per_byte = nonnegative_least_squares(features, took)
    return {
        "warm_fixed_ms": float(f"{fixed:.3g}"),
        "read_bytes_per_ms": float(f"{1 / per_byte:.3g}"),
    }


def nonnegative_least_squares(features: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Minimise the squared error over coefficients of at least 0, exactly: for few columns.

    The optimum is the plain least squares solution on the columns that are not 0 in it, so trying
    every subset of the columns finds it.
    """
    columns = range(features.shape[1])
    best, least = np.zeros(features.shape[1]), float(wanted @ wanted)
    for size in range(1, len(columns) + 1):
        for some in combinations(columns, size):
            solved = np.linalg.lstsq(features[:, some], wanted, rcond=None)[0]
            error = float(((features[:, some] @ solved - wanted) ** 2).sum())
            if (solved >= 0).all() and error < least:
                best, least = np.zeros(features.shape[1]), error
                best[list(some)] = solved
    return best


def _simulated_ms(run: RealRun, costs: CostModel) -> float:
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(), Machine())),
        components=(
            SimulatedComponent(name="counts", key_groups=run.key_groups, key_bytes=_KEY_BYTES),
        ),
        rate=Rate(rows_per_s=100.0 * run.rows),
        keys=Keys(number=run.keys, zipf=run.zipf),
        duration_s=100.0,
        max_rows=run.rows,
        costs=costs,
        assignments={"counts": run.assignment(("0", "1"))},
    )
    simulation = Simulation(scenario, seed=0)
    while len(simulation.history.epochs) < 12:
        simulation.step()
    return 1000 * float(np.median(simulation.history.column("took_s")[4:]))


def draw(kept: Mapping[str, Any], path: Path) -> None:
    """Draw simulated epochs over measured ones, of a calibration as it is kept."""
    runs = kept["runs"]
    picture = Figure(figsize=(5, 5), layout="constrained")
    axes = picture.subplots()
    for fitted, label, marker in ((True, "fitted", "o"), (False, "held out", "s")):
        which = [run for run in runs if run["fitted"] is fitted]
        axes.loglog(
            [run["measured_ms"] for run in which],
            [run["simulated_ms"] for run in which],
            marker,
            label=label,
        )
    measured = [run["measured_ms"] for run in runs]
    ends = [0.8 * min(measured), 1.25 * max(measured)]
    axes.loglog(ends, ends, color="0.6", linewidth=1)
    axes.fill_between(ends, np.multiply(ends, 0.8), np.multiply(ends, 1.2), color="0.9", zorder=0)
    axes.set(xlabel="measured epoch (ms)", ylabel="simulated epoch (ms)")
    axes.set_title("Epochs, real and simulated; grey: within 20 %", fontsize=10)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=120)
