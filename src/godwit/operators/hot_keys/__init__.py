"""Hot keys: keys with more rows than one lane can process, divided among several lanes.

`grid`    the grid of parts of a key, and the part of each row
`orders`  requests to divide keys, for the next epoch
`parts`   states of parts, which functions merge by ``merge=``
"""
