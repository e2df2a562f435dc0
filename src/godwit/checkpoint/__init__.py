"""The checkpoint: the durable truth about a query's state.

Begin with `records`: its files, and the rule that makes a commit atomic. `commit_log` commits
epochs; `chains` has the snapshot and changelog segments of every key group's state.
"""
