"""Drawn flows over event time, on the real lanes in one process, against plain Python.

`reference` says what comes out, from the guide's words alone, one row at a time; `drawing` draws a
flow and its history; `playing` runs both and compares every epoch. `own_sources` draws sources of
Godwit's own for it, and `own_playing` runs it over them.
"""
