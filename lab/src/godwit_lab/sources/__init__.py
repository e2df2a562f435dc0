"""Sources for experiments."""
