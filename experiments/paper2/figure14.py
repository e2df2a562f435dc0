"""Paper 2, figure 14: Real Job 4, delays, routes, weather and couriers."""

from __future__ import annotations

from experiments.paper2.real_jobs import Job, job_figure

FIGURE = job_figure(
    Job(
        operators=(
            "extract", "by airplane", "by route", "weather", "rain score", "courier",
            "store airplanes", "store couriers",
        ),
        streams=(
            (0, 1, True, 1000.0),
            (0, 2, False, 1000.0),
            (1, 6, True, 250.0),
            (3, 4, True, 100.0),
            (4, 5, False, 100.0),
            (2, 5, True, 500.0),
            (5, 7, True, 100.0),
        ),
    ),
    title="Real Job 4",
    claim="COLA reaches a collocation of 61 %; ALBIC gradually reaches a similar one and keeps a "
    "low load distance, with 10 migrations a period.",
    workload="Operators of the paper's job (delays, routes joined with weather, couriers, stores); "
    "rates between them are chosen, as the paper does not give them.",
    most_percent=61.0,
)  # fmt: skip
