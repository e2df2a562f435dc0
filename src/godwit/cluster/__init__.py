"""Clusters that run a flow: Spark, and a simulated one in virtual time.

Both drive the same conductor, planners and controller; neither knows the other.
"""
