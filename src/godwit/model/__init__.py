"""The words everything else is said in: key groups, assignments, errors, events.

Nothing here does I/O or knows Spark; NumPy is the only dependency.
"""
