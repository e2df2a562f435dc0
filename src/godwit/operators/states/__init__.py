"""Several named states of one operator: values, lists and maps; only what is touched moves.

`declared` is what users write, `of_key` what their functions are given; `stored` says what every
kind shares, and `values`, `lists` and `maps` how each lies in entries of the local store;
`operator` puts them together.
"""
