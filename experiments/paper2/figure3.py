"""Paper 2, figure 3: 40 nodes, 800 key groups, 20 operators."""

from __future__ import annotations

from experiments.paper2.solver import solver_figure

FIGURE = solver_figure(40, 800)
