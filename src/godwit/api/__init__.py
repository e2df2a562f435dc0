"""The user's API: a flow, its streams, and keyed operators on them.

Begin with `flow`, then `streams`. Every call is checked in its own line and adds
a node to the graph of `godwit.plan.nodes`.
"""
