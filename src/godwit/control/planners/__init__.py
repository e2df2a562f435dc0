"""The product's planners: pure functions over arrays, which the registry finds by entry points.

================  =====  =================================================================
`allocation`      2      even load within a budget, draining: `milp`, the default
`fusion`          3      operators fused into components
`placing`         3      key columns that operators share, beside an exchange between them
`splitting`       4      windows in one phase or two
`spreading`              parts of hot keys
`cores`           5      cores to a latency target; key groups to lanes
================  =====  =================================================================

The middle column is the paper (``docs/bibliography.md``).  All others are in `godwit_lab.planners`.
"""
