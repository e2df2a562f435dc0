"""Figures of paper 5: executor-centric elasticity."""
