"""Connectors: systems that a flow reads from and writes to, each in a package of its own."""
