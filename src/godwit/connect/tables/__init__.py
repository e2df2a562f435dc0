"""Changes of tables of a database: what the sources of several databases share."""
