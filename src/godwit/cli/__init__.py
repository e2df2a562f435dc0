"""The command line: the only place where everything may meet everything. Start with `main`."""
