"""Delta Lake: tables to write to."""
