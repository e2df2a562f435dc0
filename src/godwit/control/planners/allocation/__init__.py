"""Paper 2: even load within a budget of moves, draining, and key groups that talk kept together."""
