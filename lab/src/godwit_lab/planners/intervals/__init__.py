"""Paper 1: the fewest bytes moved, when every executor owns one range of key groups.

`ssm` plans one migration, `oms` a known sequence of them, and `mtm` looks ahead by what `pmc` has
computed from the probabilities of future sizes.
"""
