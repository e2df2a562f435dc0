"""What the controller reaches, beside nobody controlling: ``python -m benchmarks.control ROW``.

Read `rows` first: each row of the table is a function that returns figures beside their targets.
"""
