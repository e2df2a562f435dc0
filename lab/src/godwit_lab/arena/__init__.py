"""The arena: autoscalers of the literature beside Godwit's, on the same streams in virtual time.

The problem: a rule for the number of executors is judged by the streams that its authors chose, on
the mechanism that they had.  Here every rule gets the same rows, executors and statistics, and
every rule is carried out both by live migration and by stopping and starting again.

A *match* is one autoscaler on one pattern of load (`patterns`) and one query (`queries`), with one
mechanism and seed (`match`).  It counts the share of time in which the latency target is missed,
executor-seconds over the least that suffices (`least`), reconfigurations, late rows and bytes of
state moved; `table` compares them.  ``godwit arena`` is the command.

Invariant: equal matches give equal figures, and no rule sees more than the statistics of the last
period (`godwit.control.situation.ScalingSituation`), except the oracle, which knows the load.
"""
