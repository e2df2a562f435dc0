"""Paper 2, figure 13: Real Job 3, delays by airplane and year, and by route."""

from __future__ import annotations

from experiments.paper2.real_jobs import Job, job_figure

FIGURE = job_figure(
    Job(
        operators=("extract", "by airplane", "by route"),
        streams=((0, 1, True, 1000.0), (0, 2, False, 1000.0)),
    ),
    title="Real Job 3",
    claim="The trend is that of Real Job 2, with half of its collocation, since delays by route "
    "cannot be collocated with delays by airplane.",
    workload="Traffic and loads of the paper's job, with delays by route besides; the load index "
    "follows from the collocation.",
    most_percent=50.0,
)
