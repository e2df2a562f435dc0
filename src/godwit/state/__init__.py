"""State: where it lives, how it is written down, and how it is found again.

The durable truth of a key group is in the *checkpoint*: a snapshot plus the changelog segments
after it.  An executor's *local store* is a cache of a committed version and can always be brought
forward from the checkpoint; losing it costs time, never data.
"""
