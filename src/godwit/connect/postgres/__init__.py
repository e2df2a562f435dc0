"""PostgreSQL: tables to write to."""
