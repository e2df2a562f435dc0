"""`godwit demo`: a year of flights, one live migration, one killed executor, one comparison.

Read `story` first: it has the steps.
"""
