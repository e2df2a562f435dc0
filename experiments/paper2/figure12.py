"""Paper 2, figure 12: Real Job 2, delays by airplane and year."""

from __future__ import annotations

from experiments.paper2.real_jobs import Job, job_figure

FIGURE = job_figure(
    Job(operators=("extract", "by airplane"), streams=((0, 1, True, 1000.0),)),
    title="Real Job 2",
    claim="ALBIC gradually reaches the full collocation that COLA has at once, halves the load, "
    "has the lower load distance, and migrates 10 key groups a period, COLA nearly 200.",
    workload="Traffic and loads of the paper's job (delays summed by airplane and year); the load "
    "index follows from the collocation.",
    most_percent=100.0,
)
