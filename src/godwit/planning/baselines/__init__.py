"""Paper 1's baselines: what systems do that plan nothing, or little."""
