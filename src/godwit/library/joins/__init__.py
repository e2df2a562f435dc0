"""Joins of two keyed streams by event time.

`sides`     rows of two streams as rows of one operator
`interval`  all pairs within an interval
`newest`    the newest row of the other stream as of a row's time
"""
