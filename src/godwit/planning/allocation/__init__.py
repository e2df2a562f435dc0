"""Paper 2: even load within a budget of moves, draining, and key groups that talk kept together.

`milp` evens the load, `albic` also collocates; `cola` and the `baselines` are what they are held
against.  The rest is their machinery: the model, its exact solver, bound and search, units of key
groups that move as one, and the graph of traffic.
"""
