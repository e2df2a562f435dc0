"""Paper 2, figure 2: 20 nodes, 400 key groups, 10 operators."""

from __future__ import annotations

from experiments.paper2.solver import solver_figure

FIGURE = solver_figure(20, 400)
