"""Sinks: where committed results go, each exactly-once as far as its target allows.

`sink.Sink` is the contract; every other file is one target.  `godwit.sinks` is what users import.
"""
