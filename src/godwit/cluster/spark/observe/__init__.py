"""Observability of a query: listeners, progress, metrics."""
