"""Random histories of a controlled stream, simulated: what the loop promises, checked on each.

``python -m lab.tests.histories --histories 10000 --seed 0`` draws histories (a cluster, a workload,
one kind of trouble, a planner), runs them, and says which promises were broken, by which planner,
with the seed that shows it again: ``python -m lab.tests.histories --only SEED``.
"""
