"""Changes of tables of a database: shared parts of the sources of several databases."""
