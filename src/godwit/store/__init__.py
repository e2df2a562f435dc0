"""The local store: memory-mapped hash tables that cache committed versions of key groups.

Begin with `table`, whose mapped file is an `image`; `index` finds entries, `local_store` holds the
tables of one executor. Losing it costs time, never data.
"""
