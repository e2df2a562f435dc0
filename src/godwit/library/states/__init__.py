"""Several named states of one operator (values, lists, maps), read and written entry by entry.

`declared` has what users write; `stored` what every kind of state shares; `values`, `lists` and
`maps` one kind each: what functions get, and how entries of the local store have it; `operator`
puts them together.
"""
