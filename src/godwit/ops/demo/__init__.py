"""`godwit demo`: a year of flights, one live migration, one killed executor, one comparison.

Read `story` first: it is the plot.
"""
