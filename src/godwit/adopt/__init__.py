"""Spark streaming queries, run by Godwit unchanged.

`writer` has what users call, `translate` makes a flow of a plan.  The package imports neither:
lanes need the operators alone.
"""
