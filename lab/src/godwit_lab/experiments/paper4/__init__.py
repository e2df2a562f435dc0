"""Figures of paper 4: load balancing of stateful operators."""
