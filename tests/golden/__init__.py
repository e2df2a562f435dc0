"""Checkpoints that an earlier version wrote, and the flows that continue them."""
