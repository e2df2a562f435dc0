"""Paper 2, figure 4: 60 nodes, 1200 key groups, 30 operators."""

from __future__ import annotations

from experiments.paper2.solver import solver_figure

FIGURE = solver_figure(60, 1200)
