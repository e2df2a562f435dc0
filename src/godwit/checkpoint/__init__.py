"""The checkpoint: the durable truth about a query's state.

Begin with `records`: its files, and the rule that makes a commit atomic. `commit_log` commits
epochs; `chains` says which snapshot and changelog segments make up the state of a key group.
"""
