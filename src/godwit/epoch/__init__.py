"""The driver's part of an epoch, without Spark.

Between the conductor, which says how every component runs, and the lanes, which do it: what lanes
are told (`instructor`), and what their reports come to (`outcomes`); and how a run takes up its
checkpoint (`takeover`).  Whatever realizes lanes and ports, Spark's executors or one process of a
test, uses these and nothing of its own in their place.
"""
