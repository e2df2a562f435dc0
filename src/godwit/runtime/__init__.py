"""A run of a flow: the query that users hold, its loop of epochs, and all that continues beside it.

Nothing here knows Spark: a cluster is behind ports, as in `godwit.engine.cluster`.
"""
