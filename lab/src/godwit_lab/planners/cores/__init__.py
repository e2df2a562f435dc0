"""Cores of machines to executors (paper 5)."""
