"""Simulated runs beyond what two cores can show, and the simulator's distance from real runs."""
