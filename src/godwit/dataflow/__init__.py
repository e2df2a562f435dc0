"""What users build: flows of sources, streams, keyed operators and sinks.

Read `flow` and `stream` for what a user writes, `operator` for the contract between a keyed
operator and the lane that runs it, and `compiled` for what a runtime gets.
"""
