"""Executors of an application: discovery, scaling, and a local cluster."""
