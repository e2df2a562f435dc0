"""The checkpoint: the durable truth about a query's state.

A key group's state is a snapshot and the changelog segments after it (`chains`); one commit record
per epoch names the files that count (`commit_log`). Everything stored is read by name and checked.
"""
