"""Basic values that all other packages share: key groups, assignments, errors, events.

Nothing here does I/O or knows Spark; NumPy is the only dependency.
"""
