"""Operators that come with Godwit: aggregates, windows, joins, functions per key.

The core knows what users write (`godwit.operators`) and the contract of an operator
(`godwit.operators.operator`); `godwit.library.binding` makes an operator of a node of the plan, and
is found by name.
"""
