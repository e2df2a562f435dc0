"""Connectors: systems that a flow reads from and writes to, each in a package of its own.

The core does not import them: entry points in ``pyproject.toml`` add their calls to ``gw.sinks``,
``gw.sources`` and ``gw.formats``; files and plain formats are found by name, without metadata of a
distribution.  A connector imports the contracts of `godwit.sinks` and
`godwit.sources`, and the library of its system only when the user makes the sink or source.
"""
