"""Any Python value as the state of a key: encoded, checked, and read by a later program.

Begin with `codec`; `types` describes a type of state, `upgrade` brings values to today's type.
"""
