"""Keyed operators: their contract, and what users declare: states, timers, windows.

Begin with `operator`, the contract between an operator and the lane that runs it. Operators are
pure: rows and state in, rows and state out. Those that come with Godwit are in `godwit.library`.
"""
