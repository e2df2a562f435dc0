"""`godwit advise`: what an ordinary Spark streaming run lost to partitions that do not move.

`event_log` reads Spark's file, `stages` finds the stateful stages in it, and `advice` says what is
computed and sums it up.
"""
