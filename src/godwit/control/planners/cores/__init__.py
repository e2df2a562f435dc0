"""Paper 5: cores per executor from a latency target, cores to machines, key groups to lanes."""
