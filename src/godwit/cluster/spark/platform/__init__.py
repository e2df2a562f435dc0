"""Executors and processes: found, added, removed, lost, and a local cluster of them."""
