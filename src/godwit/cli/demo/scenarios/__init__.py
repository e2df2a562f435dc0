"""`godwit demo --scenario`: streams that shift, with the controller off and on.

Read `workload` first: it says what comes in, and when.
"""
