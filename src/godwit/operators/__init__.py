"""Keyed operators: aggregates, windows, joins, functions per key.

Begin with `operator`, the contract between an operator and the lane that runs it. Operators are
pure: rows and state in, rows and state out.
"""
