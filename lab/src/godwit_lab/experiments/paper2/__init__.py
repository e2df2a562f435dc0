"""Figures of paper 2: load balancing, scaling and collocation in one plan."""
