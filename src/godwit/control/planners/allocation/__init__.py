"""Paper 2: even load within a budget of moves, draining, collocation of key groups."""
