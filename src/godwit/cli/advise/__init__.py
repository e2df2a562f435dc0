"""`godwit advise`: what an ordinary Spark streaming run lost to partitions that do not move.

Read `what_if` first: it says what is computed.  `event_log` reads Spark's file, `stages` finds the
stateful stages in it, `advice` sums them up.
"""
