"""The controller against no controller: ``python -m benchmarks.control ROW``.

Read `rows` first: each row of the table is a function that returns figures beside their targets.
"""
